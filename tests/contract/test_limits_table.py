"""The limits table on SQLite and on MariaDB."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import inspect as inspect_schema
from sqlalchemy import text

from extproc.core.errors import SettingsError, StoreUnavailableError
from extproc.core.limits import MAX_LIMIT, ServiceLimit
from extproc.stores.limit_table import LimitTable
from extproc.stores.migrate import upgrade
from extproc.stores.sql import Database, make_engine, shown_url
from tests.support.processes import free_port
from tests.support.tcp import silent, tcp_server


async def test_create_change_and_list(table: LimitTable) -> None:
    assert await table.find("a") is None
    created = await table.put("a", rpm=10, tpm=MAX_LIMIT)
    assert created == ServiceLimit(service_id="a", rpm=10, tpm=MAX_LIMIT)
    await table.put("B", rpm=0, tpm=0, enabled=False)
    assert await table.put("a", tpm=3_000_000_000) == ServiceLimit(
        service_id="a", rpm=10, tpm=3_000_000_000
    )
    assert await table.put("a", tpm=3_000_000_000) == await table.find("a")  # nothing to change
    assert [limit.service_id for limit in await table.all()] == ["B", "a"]
    assert (await table.all())[0].enabled is False


async def test_ids_differ_by_case(table: LimitTable) -> None:
    await table.put("svc", rpm=1, tpm=1)
    await table.put("SVC", rpm=2, tpm=2)
    assert (await table.find("svc"), await table.find("Svc")) == (
        ServiceLimit(service_id="svc", rpm=1, tpm=1),
        None,
    )


async def test_wrong_values_are_refused_by_name(table: LimitTable) -> None:
    with pytest.raises(ValueError, match="rpm and tpm are needed"):
        await table.put("new", rpm=1)
    with pytest.raises(ValueError, match="rpm"):
        await table.put("new", rpm=3_000_000_000, tpm=1)
    with pytest.raises(ValueError, match="tpm"):
        await table.put("new", rpm=1, tpm=-1)
    assert await table.all() == []


async def test_many_create_the_same_service_at_once(table: LimitTable) -> None:
    await asyncio.gather(*(table.put("a", rpm=i, tpm=i) for i in range(20)))
    assert len(await table.all()) == 1


async def test_a_wrong_row_is_an_error_and_not_a_limit(
    table: LimitTable, database: Database
) -> None:
    insert = text("INSERT INTO service_limit (service_id, rpm, tpm) VALUES ('a', -1, 5)")
    await database.run(lambda connection: connection.execute(insert))
    with pytest.raises(StoreUnavailableError, match="a cannot be read: service_limit id 1"):
        await table.find("a")


async def test_rows_written_by_hand_are_enabled_and_dated(
    table: LimitTable, database: Database
) -> None:
    insert = text("INSERT INTO service_limit (service_id, rpm, tpm) VALUES ('a', 1, 5)")
    await database.run(lambda connection: connection.execute(insert))
    assert await table.find("a") == ServiceLimit(service_id="a", rpm=1, tpm=5)
    dates = await database.run(
        lambda connection: connection.execute(
            text("SELECT created_at, updated_at FROM service_limit")
        ).one()
    )
    assert None not in dates


async def test_the_schema_is_the_documented_one_and_upgrading_again_is_harmless(
    sql_url: str, table: LimitTable, database: Database
) -> None:
    await table.put("a", rpm=1, tpm=1)
    assert upgrade(sql_url) == "0005"
    assert await table.find("a") is not None
    schema = inspect_schema(database.engine)
    columns = {column["name"]: column for column in schema.get_columns("service_limit")}
    assert list(columns) == [
        "id",
        "service_id",
        "rpm",
        "tpm",
        "status",
        "created_at",
        "updated_at",
    ]
    assert not any(column["nullable"] for column in columns.values())
    unique = schema.get_unique_constraints("service_limit")
    assert [(u["name"], u["column_names"]) for u in unique] == [("uk_service_id", ["service_id"])]


async def test_migration_and_table_definition_agree(database: Database, table: LimitTable) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    # Their tables are part of the schema.
    from extproc.stores import execution_table, ledger_tables  # noqa: F401
    from extproc.stores.tables import metadata

    with database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": "tokenweir_schema",
                "include_name": lambda name, kind, _: name != "tokenweir_schema",
            },
        )
        assert compare_metadata(context, metadata) == []


async def test_sql_away_is_a_transient_error() -> None:
    database = Database(url=f"mysql://u:p@127.0.0.1:{free_port()}/x", timeout_ms=500)
    with pytest.raises(StoreUnavailableError) as caught:
        await LimitTable(database).find("a")
    await database.close()
    assert (caught.value.store, caught.value.transient) == ("sql", True)


async def test_a_server_that_never_answers_is_left_after_the_timeout() -> None:
    async with tcp_server(silent) as port, asyncio.timeout(5):
        database = Database(url=f"mysql://u:p@127.0.0.1:{port}/x", timeout_ms=200)
        with pytest.raises(StoreUnavailableError) as caught:
            await LimitTable(database).find("a")
        await database.close()
    assert caught.value.transient


async def test_missing_tables_are_named_with_the_remedy(sql_url: str) -> None:
    database = Database(url=sql_url)
    try:
        with pytest.raises(StoreUnavailableError) as caught:
            await LimitTable(database).find("a")
    finally:
        await database.close()
    said = str(caught.value)
    assert said.startswith("sql: the tables are missing in ")
    assert said.endswith(": run `tokenweir db upgrade`")
    assert not caught.value.transient


async def test_an_error_is_one_line_without_links(sqlite_url: str) -> None:
    """The driver library ends its texts with an address on the web."""
    database = Database(url=sqlite_url, threads=2, timeout_ms=50)
    database.engine.dispose()
    database.engine = make_engine(sqlite_url, pool_size=1, timeout_ms=50)
    with database.engine.connect(), pytest.raises(StoreUnavailableError) as caught:
        await database.run(lambda _: None)
    await database.close()
    assert str(caught.value).startswith("sql: TimeoutError: QueuePool limit")
    assert caught.value.transient
    assert "Background" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_url_is_shown_without_its_secrets() -> None:
    url = "mysql://user:secret@db:3307/limits?password=secret&ssl_key=file"
    assert shown_url(url) == "mysql+pymysql://user@db:3307/limits"
    assert shown_url("sqlite:///limits.db") == f"sqlite:///{Path.cwd()}/limits.db"


@pytest.mark.parametrize("url", ["postgresql://x/y", "sqlite://", "sqlite:///:memory:", "nonsense"])
def test_a_url_that_cannot_serve_is_refused_by_its_setting(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Database(url=url)
    assert caught.value.key == "database.url"
