"""Rows that were written by hand and cannot be read, on SQLite and on MariaDB: they concern whom
they are about, and nobody else."""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from sqlalchemy import text

from extproc.core.policies import (
    BadEffect,
    Block,
    Dimension,
    Override,
    PolicySet,
    Scope,
)
from extproc.core.policy_plan import EPOCH, PolicyDraft, PolicyFile
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.limit_admin import PolicyAdmin
from extproc.stores.limit_lookup import CachedLimitSource
from extproc.stores.limit_table import LimitTable
from extproc.stores.policy_rows import BadRowsError
from extproc.stores.policy_table import PolicyTable
from extproc.stores.sql import Database
from tests.support.fakes import RecordingTelemetry
from tests.support.policies import ROOT, policy

FUTURE = (datetime.now(UTC) + timedelta(days=2)).replace(microsecond=0)
DEEP = "[" * 20_000

# What becomes of a policy's row.
POLICY_CHANGES = [
    "rules = '[{}]'",
    "rules = 'x'",
    "rules = ''",
    "rules = 'null'",
    "rules = '[]'",
    'rules = \'{"dimension": "rpm"}\'',
    f"rules = '{DEEP}'",
    'rules = \'[{"dimension":"rpm","limit":1.5}]\'',
    'rules = \'[{"dimension":"rpm","limit":true}]\'',
    'rules = \'[{"dimension":"rpm","limit":NaN}]\'',
    'rules = \'[{"dimension":"rpm","limit":"5"}]\'',
    'rules = \'[{"dimension":"gpu","limit":5}]\'',
    f'rules = \'[{{"dimension":"rpm","limit":{"9" * 5000}}}]\'',
    'rules = \'[{"dimension":"cost_micros_per_cycle","limit":5,'
    '"cycle":["1960-01-01T00:00:00+0000","2030-01-01T00:00:00+0000"]}]\'',
    'rules = \'[{"dimension":"cost_micros_per_cycle","limit":5,"cycle":[1,2]}]\'',
    'rules = \'[{"dimension":"cost_micros_per_cycle","limit":5,'
    '"cycle":["2026-01-01T00:00:00+0000","9999-12-31T23:59:59-1400"]}]\'',
    "scope = 'planet'",
    "scope = ''",
    "value = '*all'",
    "value = ''",
    "value = ' alice'",
    "model = ''",
    "mode = 'maybe'",
    "on_exceed = 'x'",
    "across_roots = 7",
    "across_roots = 1",  # of one root: it cannot be
    "version = -1",
    "name = 'a b'",
    "name = 'service_limit'",
]
# SQLite keeps anything in any column.
SQLITE_POLICY_CHANGES = [
    "rules = x'ff'",
    "value = CAST(x'ff' AS TEXT)",
    "value = 'a' || char(0)",
    "model = x'00'",
    "model = 'a' || char(0)",
    "version = 'x'",
    "effective_from = 'soon'",
    "effective_from = 5",
    "effective_from = x'ff'",
    "effective_to = 'never'",
    "effective_to = '12/31/2030'",
    "effective_to = 1893456000",
    "effective_to = ''",
]
MARIADB_POLICY_CHANGES = [
    "value = 'a\\0'",
    "effective_to = '0000-00-00'",
    "effective_from = '0000-00-00'",
]


@pytest.fixture
def policies(database: Database) -> PolicyTable:
    return PolicyTable(database)


@pytest.fixture
def admin(batcher: RedisBatcher, policies: PolicyTable) -> PolicyAdmin:
    return PolicyAdmin(batcher, policies)


@pytest.fixture
async def source(batcher: RedisBatcher, policies: PolicyTable) -> AsyncIterator[CachedLimitSource]:
    source = CachedLimitSource(batcher, policies, telemetry=RecordingTelemetry())
    yield source
    await source.close()


def file(*names: str, root: str | None) -> PolicyFile:
    drafts = (PolicyDraft(policy=policy(n, root=root, effective_from=EPOCH)) for n in names)
    return PolicyFile(root=root, drafts=tuple(drafts))


async def apply(admin: PolicyAdmin, wanted: PolicyFile) -> int:
    changes = await admin.plan(wanted)
    await admin.apply(wanted, changes)
    return len(changes)


async def spoil(database: Database, change: str, *, table: str, where: str = "1 = 1") -> None:
    """As somebody at the prompt of the database who knows no better."""
    is_sqlite = database.engine.dialect.name == "sqlite"
    quoted = table if is_sqlite else f"`{table}`"
    change = change.replace("limit =", '"limit" =' if is_sqlite else "`limit` =")

    def run(connection: Any) -> None:
        if not is_sqlite:
            connection.execute(text("SET SESSION sql_mode = ''"))
        statement = f"UPDATE {quoted} SET {change} WHERE {where}".replace(":", "\\:")
        connection.execute(text(statement))

    await database.run(run)


def bad_of(found: PolicySet | None) -> list[tuple[str, BadEffect]]:
    assert found is not None
    return [(row.table, row.effect) for row in found.bad]


@pytest.mark.parametrize(
    ("sql_url", "change"),
    [
        *(("sqlite", change) for change in (*POLICY_CHANGES, *SQLITE_POLICY_CHANGES)),
        *(("mariadb", change) for change in (*POLICY_CHANGES, *MARIADB_POLICY_CHANGES)),
    ],
    indirect=["sql_url"],
)
async def test_a_policy_that_cannot_be_read_stops_its_own_root_until_it_is_mended(
    database: Database, policies: PolicyTable, table: LimitTable, admin: PolicyAdmin, change: str
) -> None:
    await apply(admin, file("everywhere", root=None))
    await apply(admin, file("mine", root=ROOT))
    await apply(admin, file("theirs", root="other"))
    await table.put("third", rpm=1, tpm=1)
    await spoil(database, change, table="limit_policy", where="name = 'theirs'")

    with pytest.raises(BadRowsError) as caught:
        await policies.load("other")
    assert caught.value.store == "policies"  # so never a reason to fail open
    assert [(row.table, row.root) for row in caught.value.rows] == [("limit_policy", "other")]
    assert "limit_policy id 3" in str(caught.value)
    for root, names in ((ROOT, ["everywhere", "mine"]), ("third", ["everywhere"])):
        found = await policies.load(root)
        assert found is not None
        assert [p.name for p in found.policies] == names
        assert found.bad == ()

    # Administrators are not stopped: others' files, the list, and the file that mends it.
    assert await apply(admin, file("mine", "new", root=ROOT)) == 1
    assert [p.name for p in (await admin.list()).policies] == ["everywhere", "mine", "new"]
    assert bad_of(await admin.list()) == [("limit_policy", BadEffect.REFUSES)]
    assert [row.id for row in (await admin.check()).bad] == [3]
    # What cannot be read ends, and the policy begins anew.
    assert await apply(admin, file("theirs", root="other")) == 2
    found = await policies.load("other")
    assert found is not None
    assert [p.name for p in found.policies] == ["everywhere", "theirs"]
    assert (await admin.check()).bad == ()
    assert await apply(admin, file("theirs", root="other")) == 0


@pytest.mark.parametrize("change", ["rules = 'x'", "scope = 'planet'", "value = '*all'"])
async def test_a_policy_of_every_root_that_cannot_be_read_is_left_out_and_told(
    database: Database,
    admin: PolicyAdmin,
    source: CachedLimitSource,
    caplog: pytest.LogCaptureFixture,
    change: str,
) -> None:
    await apply(admin, file("good", "wrong", root=None))
    await apply(admin, file("mine", root=ROOT))
    await spoil(database, change, table="limit_policy", where="name = 'wrong'")
    with caplog.at_level(logging.ERROR, "tokenweir.limits"):
        found = await source.load(ROOT)
    assert found.policies is not None
    assert found.cached
    assert [p.name for p in found.policies.policies] == ["good", "mine"]
    (line,) = [record for record in caplog.records if record.name == "tokenweir.limits"]
    fields: dict[str, Any] = vars(line)
    assert fields["root"] == ROOT
    ((row,), telemetry) = (fields["rows"], source._telemetry)
    assert {key: row[key] for key in ("table", "id", "name", "effect")} == {
        "table": "limit_policy",
        "id": 2,
        "name": "wrong",
        "effect": "left out",
    }
    assert row["reason"]
    assert isinstance(telemetry, RecordingTelemetry)
    assert telemetry.lines == ["unreadable_row limit_policy"]
    assert await apply(admin, file("good", root=None)) == 1
    assert (await admin.check()).bad == ()


async def test_a_root_with_a_wrong_row_is_refused_without_hammering_sql_and_comes_back(
    database: Database,
    admin: PolicyAdmin,
    source: CachedLimitSource,
    caplog: pytest.LogCaptureFixture,
    redis_client: redis.Redis,
) -> None:
    await apply(admin, file("mine", root=ROOT))
    await spoil(database, "rules = 'x'", table="limit_policy")
    with caplog.at_level(logging.ERROR, "tokenweir.limits"):
        for _ in range(50):
            with pytest.raises(BadRowsError):
                await source.load(ROOT)
    assert len(caplog.records) < 10
    await apply(admin, file("mine", root=ROOT))
    async with asyncio.timeout(10):
        while True:
            try:
                found = await source.load(ROOT)
                break
            except BadRowsError:
                await asyncio.sleep(0.05)
    assert found.cached
    assert redis_client.exists(keys.config(ROOT))


async def test_a_wrong_row_that_is_to_come_refuses_nobody_before(
    database: Database,
    policies: PolicyTable,
    admin: PolicyAdmin,
    source: CachedLimitSource,
    redis_client: redis.Redis,
) -> None:
    await apply(admin, file("mine", root=ROOT))
    later = policy("mine", root=ROOT, value="bob", effective_from=FUTURE)
    planned = PolicyDraft(policy=later, has_start=True)
    await apply(admin, PolicyFile(root=ROOT, drafts=(planned,)))
    await spoil(database, "rules = 'x'", table="limit_policy", where="version = 2")
    found = await policies.load(ROOT)
    assert bad_of(found) == [("limit_policy", BadEffect.LEFT_OUT)]
    assert found is not None
    assert [row.begins for row in found.bad] == [FUTURE]
    soon = (datetime.now(UTC) + timedelta(seconds=50)).strftime("%Y-%m-%d %H:%M:%S")
    await spoil(database, f"effective_from = '{soon}'", table="limit_policy", where="version = 2")
    await source.load(ROOT)
    assert redis_client.ttl(keys.config(ROOT)) <= 50  # and then it is looked at again
    past = (datetime.now(UTC) - timedelta(seconds=50)).strftime("%Y-%m-%d %H:%M:%S")
    await spoil(database, f"effective_from = '{past}'", table="limit_policy", where="version = 2")
    with pytest.raises(BadRowsError):
        await policies.load(ROOT)


@pytest.mark.parametrize(
    ("change", "block", "here", "everywhere"),
    [
        ("scope = 'planet'", False, BadEffect.REFUSES, BadEffect.LEFT_OUT),
        ("value = ''", False, BadEffect.REFUSES, BadEffect.LEFT_OUT),
        ("value = '*each'", False, BadEffect.REFUSES, BadEffect.LEFT_OUT),
        ("reason = 'a\nb'", True, BadEffect.BLOCKS, BadEffect.BLOCKS),
    ],
)
async def test_a_block_that_cannot_be_read(  # noqa: PLR0917 - fixtures
    database: Database,
    policies: PolicyTable,
    table: LimitTable,
    change: str,
    block: bool,
    here: BadEffect,
    everywhere: BadEffect,
) -> None:
    await table.put(ROOT, rpm=1, tpm=1)
    await table.put("other", rpm=1, tpm=1)
    await policies.block(Block(scope=Scope.USER, value="eve", reason="x", until=FUTURE))
    await spoil(database, change, table="block")
    found = await policies.load(ROOT)
    assert bad_of(found) == [("block", everywhere)]
    assert found is not None
    wanted = [Block(scope=Scope.USER, value="eve", until=FUTURE)] if block else []
    assert list(found.blocks) == wanted
    await spoil(database, f"root = '{ROOT}'", table="block")
    if here is BadEffect.REFUSES:
        with pytest.raises(BadRowsError):
            await policies.load(ROOT)
    else:
        assert bad_of(await policies.load(ROOT)) == [("block", here)]
    assert bad_of(await policies.load("other")) == []
    assert bad_of(await policies.all()) == [("block", here)]


async def test_a_block_whose_end_cannot_be_read_has_not_ended(
    database: Database, policies: PolicyTable, table: LimitTable
) -> None:
    is_sqlite = database.engine.dialect.name == "sqlite"
    await table.put(ROOT, rpm=1, tpm=1)
    await policies.block(Block(scope=Scope.USER, value="eve", root=ROOT))
    for until in ["'soon'", "'12/31/2030'", "''", "5", "x'ff'"] if is_sqlite else ["'0000-00-00'"]:
        await spoil(database, f"until = {until}", table="block")
        found = await policies.load(ROOT)
        assert bad_of(found) == [("block", BadEffect.BLOCKS)]
        assert found is not None
        assert found.blocks == (Block(scope=Scope.USER, value="eve", root=ROOT),)


@pytest.mark.parametrize("change", ["dimension = 'gpu'", "limit = -1"])
async def test_an_override_that_cannot_be_read_leaves_the_policy_its_own_limit(
    database: Database, policies: PolicyTable, admin: PolicyAdmin, change: str
) -> None:
    await apply(admin, file("p", root=ROOT))
    await apply(admin, file("theirs", root="other"))
    rule = Dimension.TOTAL_TPM
    for name in ("p", "theirs"):
        await policies.override(
            name, rule, Override(policy=name, dimension=rule, limit=5, until=FUTURE)
        )
    await spoil(database, change, table="limit_override", where="policy = 'p'")
    found = await policies.load(ROOT)
    assert bad_of(found) == [("limit_override", BadEffect.LEFT_OUT)]
    assert found is not None
    assert (len(found.policies), found.overrides) == (1, ())
    other = await policies.load("other")
    assert bad_of(other) == []
    assert other is not None
    assert [o.limit for o in other.overrides] == [5]


async def test_a_wrong_service_limit_concerns_its_service_only(
    database: Database, policies: PolicyTable, table: LimitTable
) -> None:
    for name in (ROOT, "other"):
        await table.put(name, rpm=1, tpm=1)
    await spoil(database, "rpm = -1", table="service_limit", where=f"service_id = '{ROOT}'")
    assert await policies.load("other") is not None
    assert [limit.service_id for limit in await table.all()] == ["other"]
    assert [(row.name, row.effect) for row in await table.bad()] == [(ROOT, BadEffect.REFUSES)]
    assert [row.table for row in (await policies.check()).bad] == ["service_limit"]
    await table.put(ROOT, rpm=2, tpm=2)
    assert await table.bad() == []
