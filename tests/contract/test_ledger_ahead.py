"""The ledger writer reads one batch ahead of what it writes."""

import asyncio
from typing import Any

import pytest
import redis

from extproc.core.ledger import Written
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.event_stream import GROUP, RedisEventSource
from extproc.stores.ledger_table import LedgerTable
from extproc.stores.sql import Database
from tests.support.ledger_writers import Notes, writer
from tests.support.usage_events import ROOT, append, count, event


@pytest.fixture
async def source(batcher: RedisBatcher) -> RedisEventSource:
    return RedisEventSource(batcher, reclaim_ms=0)


def _groups(client: redis.Redis) -> Any:
    return client.xinfo_groups(keys.events(ROOT))


async def test_what_is_being_written_is_not_taken_for_a_dead_writers(
    batcher: RedisBatcher, database: Database, redis_client: redis.Redis
) -> None:
    """Many batches of a dead writer, of which none is read while another is written."""
    append(redis_client, (event(number) for number in range(10)))
    await RedisEventSource(batcher, reclaim_ms=0).read(ROOT, at_most=10)
    notes = Notes()
    source = RedisEventSource(batcher, reclaim_ms=0)
    assert await writer(source, LedgerTable(database), notes, batch=3).sweep() == 10
    assert notes.sum() == (10, 0, 0)


async def test_one_batch_is_read_ahead_and_none_is_dropped_before_it_is_written(
    source: RedisEventSource, database: Database, sql_url: str, redis_client: redis.Redis
) -> None:
    append(redis_client, (event(number) for number in range(10)))
    real, goes_on = LedgerTable(database), asyncio.Event()

    class Slow:
        async def write(self, entries: Any, dead: Any) -> Written:
            await goes_on.wait()
            return await real.write(entries, dead)

    def read() -> Any:
        pending: Any = redis_client.xpending(keys.events(ROOT), GROUP)
        return pending["pending"]

    running = asyncio.create_task(writer(source, Slow(), Notes(), batch=2).sweep())
    async with asyncio.timeout(30):
        while not _groups(redis_client) or read() < 4:
            await source.waiting()  # another turn for all
    for _ in range(5):
        await source.waiting()
        assert read() == 4
    assert redis_client.xlen(keys.events(ROOT)) == 10
    assert count(sql_url, "usage_ledger") == 0
    goes_on.set()
    assert await running == 10
    assert count(sql_url, "usage_ledger") == 10
