"""Cold lookups and changes of limits: SQL on one side, the cache on the other."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
import redis
from sqlalchemy import event

from extproc.core.errors import StoreUnavailableError
from extproc.core.limits import ServiceLimit
from extproc.core.policies import PolicySet
from extproc.core.ports import LimitLookup
from extproc.core.reservations import Admitted, LimitsMissing, Rejected
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.limit_admin import LimitAdmin
from extproc.stores.limit_lookup import CachedLimitSource
from extproc.stores.limit_table import LimitTable
from extproc.stores.policy_table import PolicyTable
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.sql import Database
from tests.support.processes import free_port
from tests.support.reservations import ROOT, Inspector, request

CONFIG = keys.config(ROOT)


@pytest.fixture
async def source(batcher: RedisBatcher, database: Database) -> AsyncIterator[CachedLimitSource]:
    source = CachedLimitSource(batcher, PolicyTable(database))
    yield source
    await source.close()


@pytest.fixture
def admin(batcher: RedisBatcher, table: LimitTable) -> LimitAdmin:
    return LimitAdmin(batcher, table)


@contextmanager
def counted_selects(database: Database) -> Iterator[list[str]]:
    """The SELECTs on service_limit that reach SQL in this block."""
    seen: list[str] = []

    def note(*args: object) -> None:
        statement = str(args[2])
        if statement.startswith("SELECT") and "service_limit" in statement:
            seen.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


class PausedTable(PolicyTable):
    """Has read the row, and holds it back until told to go on."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.has_read = asyncio.Event()
        self.go_on = asyncio.Event()

    async def load(self, root: str) -> PolicySet | None:
        found = await super().load(root)
        self.has_read.set()
        await self.go_on.wait()
        return found


async def test_1000_parallel_lookups_of_a_cold_service_make_one_select(
    source: CachedLimitSource, table: LimitTable, database: Database
) -> None:
    limit = await table.put(ROOT, rpm=5, tpm=50)
    with counted_selects(database) as selects:
        lookups = await asyncio.gather(*(source.load(ROOT) for _ in range(1000)))
    assert lookups == [LimitLookup(limit, cached=True)] * 1000
    assert len(selects) == 1


async def test_a_lookup_fills_the_cache_with_a_jittered_ttl_and_registers_the_root(
    source: CachedLimitSource, table: LimitTable, redis_client: redis.Redis, database: Database
) -> None:
    await table.put(ROOT, rpm=5, tpm=3_000_000_000)
    await source.load(ROOT)
    assert redis_client.hgetall(CONFIG) == {"rpm": "5", "tpm": "3000000000", "status": "1"}
    assert 530 < redis_client.ttl(CONFIG) <= 600
    assert redis_client.smembers(keys.ROOTS) == {ROOT}
    with counted_selects(database) as selects:
        assert (await source.load(ROOT)).cached
    assert selects == []  # the second look in Redis found it


async def test_unknown_services_are_remembered_briefly_and_not_registered(
    source: CachedLimitSource, redis_client: redis.Redis, database: Database
) -> None:
    with counted_selects(database) as selects:
        assert await source.load("nobody") == LimitLookup(None, cached=True)
        assert await source.load("nobody") == LimitLookup(None, cached=True)
    assert len(selects) == 1
    assert 0 < redis_client.ttl(keys.config("nobody")) <= 10
    assert redis_client.smembers(keys.ROOTS) == set()


async def test_cancelled_callers_do_not_break_the_others(
    batcher: RedisBatcher, database: Database, table: LimitTable
) -> None:
    await table.put(ROOT, rpm=5, tpm=50)
    paused = PausedTable(database)
    source = CachedLimitSource(batcher, paused)
    leader, *followers = [asyncio.create_task(source.load(ROOT)) for _ in range(10)]
    await paused.has_read.wait()
    leader.cancel()
    followers[3].cancel()
    for task in (leader, followers[3]):
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
    paused.go_on.set()
    rest = await asyncio.gather(*(task for task in followers if not task.cancelled()))
    assert [lookup.cached for lookup in rest] == [True] * 8
    await source.close()


async def test_an_old_reader_never_overwrites_a_change(
    batcher: RedisBatcher,
    database: Database,
    table: LimitTable,
    admin: LimitAdmin,
    redis_client: redis.Redis,
) -> None:
    """SELECT old, then COMMIT and DEL of the new, then the old reader's backfill: refused."""
    await table.put(ROOT, rpm=5, tpm=50)
    paused = PausedTable(database)
    source = CachedLimitSource(batcher, paused)
    reader = asyncio.create_task(source.load(ROOT))
    await paused.has_read.wait()
    new = await admin.set(ROOT, tpm=77)
    paused.go_on.set()
    assert await reader == LimitLookup(new, cached=True)
    assert redis_client.hget(CONFIG, "tpm") == "77"
    await source.close()


async def test_a_reader_that_is_always_overtaken_answers_without_caching(
    batcher: RedisBatcher, table: LimitTable, redis_client: redis.Redis, database: Database
) -> None:
    class Overtaken(PolicyTable):
        reads = 0

        async def load(self, root: str) -> PolicySet | None:
            found = await super().load(root)
            self.reads += 1
            redis_client.delete(CONFIG)
            return found

    limit = await table.put(ROOT, rpm=5, tpm=50)
    overtaken = Overtaken(database)
    source = CachedLimitSource(batcher, overtaken)
    assert await source.load(ROOT) == LimitLookup(limit, cached=False)
    assert overtaken.reads == 3
    assert redis_client.hgetall(CONFIG) == {}
    await source.close()


async def test_readers_of_several_processes_share_a_lease_and_both_answer(
    batcher: RedisBatcher, database: Database, table: LimitTable
) -> None:
    limit = await table.put(ROOT, rpm=5, tpm=50)
    tables = [PausedTable(database) for _ in range(2)]
    sources = [CachedLimitSource(batcher, paused) for paused in tables]
    readers = [asyncio.create_task(source.load(ROOT)) for source in sources]
    for paused in tables:
        await paused.has_read.wait()
    for paused in tables:
        paused.go_on.set()
    assert await asyncio.gather(*readers) == [LimitLookup(limit, cached=True)] * 2
    for source in sources:
        await source.close()


async def test_a_failed_backfill_never_changes_the_answer(
    table: LimitTable, database: Database
) -> None:
    limit = await table.put(ROOT, rpm=5, tpm=50)
    lonely = RedisBatcher(url=f"redis://127.0.0.1:{free_port()}/0")
    source = CachedLimitSource(lonely, PolicyTable(database))
    with counted_selects(database) as selects:
        assert await source.load(ROOT) == LimitLookup(limit, cached=False)
    assert len(selects) == 1
    await source.close()
    await lonely.close()


async def test_sql_away_matters_only_while_the_cache_is_cold(
    batcher: RedisBatcher, table: LimitTable, source: CachedLimitSource
) -> None:
    limit = await table.put(ROOT, rpm=5, tpm=50)
    broken = Database(url=f"mysql://u:p@127.0.0.1:{free_port()}/x", timeout_ms=500)
    cold = CachedLimitSource(batcher, PolicyTable(broken))
    with pytest.raises(StoreUnavailableError) as caught:
        await asyncio.gather(*(cold.load(ROOT) for _ in range(5)))
    assert caught.value.store == "sql"
    await source.load(ROOT)
    assert await cold.load(ROOT) == LimitLookup(limit, cached=True)
    await cold.close()
    await broken.close()


async def test_the_next_reserve_sees_changed_limits(
    source: CachedLimitSource, admin: LimitAdmin, store: RedisReservationStore, inspect: Inspector
) -> None:
    await admin.set(ROOT, rpm=10, tpm=110)
    await source.load(ROOT)
    assert isinstance(await store.reserve(request()), Admitted)
    assert isinstance(await store.reserve(request()), Rejected)
    await admin.set(ROOT, tpm=220)
    assert await store.reserve(request()) == LimitsMissing()
    await source.load(ROOT)
    assert isinstance(await store.reserve(request()), Admitted)
    assert not (await admin.disable(ROOT)).enabled
    assert (await source.load(ROOT)).limit == await admin.get(ROOT)


async def test_a_new_service_replaces_the_memory_of_its_absence(
    source: CachedLimitSource, admin: LimitAdmin
) -> None:
    await source.load(ROOT)
    limit = await admin.set(ROOT, rpm=1, tpm=1)
    assert (await source.load(ROOT)).limit == limit
    assert await admin.list() == [limit]


async def test_a_failed_commit_deletes_nothing(
    source: CachedLimitSource, admin: LimitAdmin, database: Database, redis_client: redis.Redis
) -> None:
    await admin.set(ROOT, rpm=1, tpm=1)
    await source.load(ROOT)

    def refuse(_: object) -> None:
        from sqlalchemy.exc import OperationalError

        raise OperationalError("COMMIT", {}, Exception("disk full"))

    event.listen(database.engine, "commit", refuse)
    with pytest.raises(StoreUnavailableError) as caught:
        await admin.set(ROOT, tpm=2)
    event.remove(database.engine, "commit", refuse)
    assert caught.value.store == "sql"
    assert redis_client.hget(CONFIG, "tpm") == "1"
    assert (await source.load(ROOT)).limit == await admin.get(ROOT)


async def test_a_cache_that_was_not_cleared_is_said_clearly(table: LimitTable) -> None:
    lonely = RedisBatcher(url=f"redis://127.0.0.1:{free_port()}/0")
    admin = LimitAdmin(lonely, table)
    with pytest.raises(StoreUnavailableError, match="saved, but the cache was not cleared"):
        await admin.set(ROOT, rpm=1, tpm=2)
    assert await table.find(ROOT) == ServiceLimit(service_id=ROOT, rpm=1, tpm=2)
    await lonely.close()
