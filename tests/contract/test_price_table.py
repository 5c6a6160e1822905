"""The table ``price``: nothing is overwritten, all of a file or nothing, twice is once."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from sqlalchemy import text

from extproc.core.price_changes import PriceChangeError, PriceEntry
from extproc.core.prices import PriceClass, Rate
from extproc.stores.migrate import upgrade
from extproc.stores.price_table import PriceTable
from extproc.stores.sql import Database

SINCE = datetime(2026, 1, 1, tzinfo=UTC)


@pytest_asyncio.fixture
async def database(sql_url: str) -> AsyncIterator[Database]:
    upgrade(sql_url)
    database = Database(url=sql_url, timeout_ms=10_000)
    yield database
    await database.close()


def entry(model: str, micros: int, start: datetime | None = None) -> PriceEntry:
    rates = (
        Rate(price_class=PriceClass.INPUT, micros_per_million=micros),
        Rate(price_class=PriceClass.OUTPUT, micros_per_million=4 * micros, permille=500),
        Rate(price_class=PriceClass.REQUEST, micros_per_million=10**18),
        Rate(price_class=PriceClass.OUTPUT, micros_per_million=1, above_input_tokens=2**52),
        Rate(price_class=PriceClass.INPUT, micros_per_million=9, service_tier="batch"),
    )
    return PriceEntry(
        provider="p", model=model, rates=rates, effective_from=start, source="sheet ü"
    )


async def test_what_was_written_is_read_again(database: Database) -> None:
    table = PriceTable(database)
    changes = await table.apply([entry("m", 3), entry("M", 4)])
    assert len(changes) == 10
    loaded = await table.load()
    assert {row.line for row in loaded.book.rows} == {
        change.added.line for change in changes if change.added is not None
    }
    assert {row.source for row in loaded.book.rows} == {"sheet ü"}
    plan = loaded.book.plan("p", "m", loaded.at)
    assert plan is not None
    assert plan.rates == tuple(sorted(entry("m", 3).rates))
    assert (await table.load()).book.version == loaded.book.version


async def test_the_same_file_twice_changes_nothing(database: Database) -> None:
    table = PriceTable(database)
    await table.apply([entry("m", 3, SINCE)])
    before = await table.history()
    assert await table.plan([entry("m", 3)]) == ()
    assert await table.apply([entry("m", 3, SINCE)]) == ()
    assert (await table.history()).version == before.version


async def test_an_old_price_stays_where_it_was(database: Database) -> None:
    table = PriceTable(database)
    await table.apply([entry("m", 3, SINCE)])
    at = SINCE + timedelta(days=1)
    old = (await table.history()).plan("p", "m", at)
    await table.apply([entry("m", 5)])
    history = await table.history()
    assert history.plan("p", "m", at) == old
    loaded = await table.load()
    new = loaded.book.plan("p", "m", loaded.at)
    assert new is not None
    assert new != old
    # The input and the output changed; what did not is the same row.
    assert len(history.rows) == 7
    assert len(loaded.book.rows) == 5


async def test_all_of_a_file_or_nothing_of_it(database: Database) -> None:
    table = PriceTable(database)
    await table.apply([entry("m", 3, SINCE)])
    before = (await table.history()).version
    with pytest.raises(PriceChangeError):
        await table.apply([entry("new", 1), entry("m", 4, SINCE)])
    assert (await table.history()).version == before


async def test_a_row_that_cannot_be_read_is_no_price(database: Database) -> None:
    table = PriceTable(database)
    await table.apply([entry("m", 3, SINCE)])

    await database.run(
        lambda connection: connection.execute(
            text("UPDATE price SET micros_per_million = -1 WHERE price_class = 'input'")
        )
    )
    loaded = await table.load()
    assert loaded.book.plan("p", "m", loaded.at) is None
