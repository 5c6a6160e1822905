"""The ledger writer between a real Valkey and a real SQL."""

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
import redis
from sqlalchemy import text

from extproc.core.errors import StoreUnavailableError
from extproc.core.ledger import UsageEvent, Written
from extproc.core.ledger_event import entry_of
from extproc.core.reservations import Knowledge, Outcome, SettleStatus, Source
from extproc.core.usage import Usage
from extproc.providers.registry import provider_of
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.cluster import RedisCluster
from extproc.stores.event_stream import RedisEventSource
from extproc.stores.ledger_table import LedgerTable
from extproc.stores.migrate import upgrade
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.sql import Database
from tests.support.cluster import ValkeyCluster
from tests.support.ledger_writers import Notes, writer
from tests.support.reservations import Inspector, request, settlement
from tests.support.usage_events import ROOT, append, count, event, rows


@pytest.fixture
async def source(batcher: RedisBatcher) -> RedisEventSource:
    return RedisEventSource(batcher, reclaim_ms=0)


async def test_a_row_holds_the_event_and_the_stream_is_gone(
    source: RedisEventSource, database: Database, sql_url: str, redis_client: redis.Redis
) -> None:
    append(redis_client, [event(1), event(2, revision=3, input=-2, output=0, kinds="")])
    notes = Notes()
    assert await writer(source, LedgerTable(database), notes).sweep() == 2
    names = (
        "request_id, endpoint, reservation_id, revision, root, subject, model, provider,"
        " input_tokens, cached_input_tokens, audio_input_tokens, reserved_tokens, cost_micros,"
        " prices, knowledge, status"
    )
    first, second = rows(sql_url, f"SELECT {names} FROM usage_ledger ORDER BY revision")
    who = '{"service":"svc-1"}'
    assert tuple(first) == (
        *("req-1", "openai_chat", "r1", 1, ROOT, who, "gpt-4o", "openai", 10, 4, None, 110, 7),
        *("2500000 10000000", "known", "SETTLED"),
    )
    assert (second.input_tokens, second.cached_input_tokens) == (-2, None)
    ((admitted, settled),) = rows(
        sql_url, "SELECT admitted_at, settled_at FROM usage_ledger WHERE revision = 1"
    )
    assert (str(admitted)[:19], str(settled)[:19]) == ("2026-01-01 00:00:00", "2026-01-01 00:00:05")
    ((hour, requests, input_tokens, cost),) = rows(
        sql_url, "SELECT hour, requests, input_tokens, cost_micros FROM ledger_hour"
    )
    assert (str(hour)[:19], requests, input_tokens, cost) == ("2026-01-01 00:00:00", 1, 8, 14)
    assert redis_client.exists(keys.events(ROOT)) == 0
    assert notes.sum() == (2, 0, 0)


async def test_the_same_event_a_hundred_times_is_one_row(
    source: RedisEventSource, database: Database, sql_url: str, redis_client: redis.Redis
) -> None:
    notes = Notes()
    at_work = writer(source, LedgerTable(database), notes, batch=7)
    for _ in range(2):
        append(redis_client, [event(1)] * 50)
        assert await at_work.sweep() == 50
    assert count(sql_url, "usage_ledger") == 1
    assert rows(sql_url, "SELECT requests, output_tokens, cost_micros FROM ledger_hour") == [
        (1, 20, 7)
    ]
    assert notes.sum() == (1, 99, 0)


async def test_what_a_writer_died_with_is_written_by_the_next(
    batcher: RedisBatcher, database: Database, sql_url: str, redis_client: redis.Redis
) -> None:
    """One died before its commit, one between commit and acknowledgement."""
    append(redis_client, (event(number) for number in range(10)))
    ledger = LedgerTable(database)
    dead = RedisEventSource(batcher, reclaim_ms=0)
    first = await dead.read(ROOT, at_most=4)
    await ledger.write([(entry_of(one, provider_of=provider_of), one) for one in first], [])
    await dead.read(ROOT, at_most=3)
    notes = Notes()
    source = RedisEventSource(batcher, reclaim_ms=0)
    await writer(source, ledger, notes).sweep()
    assert count(sql_url, "usage_ledger") == 10
    assert rows(sql_url, "SELECT requests, cost_micros FROM ledger_hour") == [(10, 70)]
    assert notes.sum() == (6, 4, 0)
    assert redis_client.exists(keys.events(ROOT)) == 0


async def test_a_writer_that_lives_keeps_what_it_has_read(
    batcher: RedisBatcher, redis_client: redis.Redis
) -> None:
    append(redis_client, [event(1)])
    assert await RedisEventSource(batcher).read(ROOT, at_most=9)
    other = RedisEventSource(batcher, reclaim_ms=60_000)
    assert await other.claim(ROOT, at_most=9) == []
    assert await other.read(ROOT, at_most=9) == []
    assert await other.waiting() == {ROOT: 1}


async def test_a_dead_event_is_kept_with_its_reason_and_stops_nobody(
    source: RedisEventSource, database: Database, sql_url: str, redis_client: redis.Redis
) -> None:
    for _ in range(2):
        append(redis_client, [event(1), event(2, input="lots"), {"what": ""}, event(3)])
    notes = Notes()
    await writer(source, LedgerTable(database), notes).sweep()
    assert count(sql_url, "usage_ledger") == 2
    letters = rows(sql_url, "SELECT reason, raw, root FROM ledger_dead ORDER BY id")
    assert len(letters) == 4
    assert letters[0].reason.startswith("input: 'lots' is no number")
    assert '"reservation_id": "r2"' in letters[0].raw
    assert letters[1].reason.startswith("v: None")
    assert notes.sum() == (2, 2, 4)
    assert redis_client.exists(keys.events(ROOT)) == 0


async def test_a_dead_event_that_comes_again_is_one_letter(
    batcher: RedisBatcher, database: Database, sql_url: str, redis_client: redis.Redis
) -> None:
    append(redis_client, [event(2, input="lots")])

    class NoDrop(RedisEventSource):
        async def drop(self, root: str, event_ids: Any) -> None:
            """As one that dies before it."""

    for kind in (NoDrop, RedisEventSource):
        source = kind(batcher, reclaim_ms=0)
        assert await writer(source, LedgerTable(database), Notes()).sweep() == 1
    assert count(sql_url, "ledger_dead") == 1
    assert redis_client.exists(keys.events(ROOT)) == 0


async def test_a_row_that_sql_refuses_is_dead_and_the_others_are_written(
    database: Database, sql_url: str
) -> None:
    """What our own check lets through all the same."""
    pairs = []
    for number in range(5):
        one = UsageEvent(ROOT, f"{number}-0", event(number))
        pairs.append((entry_of(one, provider_of=provider_of), one))
    spoilt: Any = None
    pairs[3] = (pairs[3][0]._replace(outcome=spoilt), pairs[3][1])
    written = await LedgerTable(database).write([*pairs, pairs[0]], [])
    assert (written.rows, written.duplicates, written.dead) == (4, 1, 1)
    ((reason, event_id),) = rows(sql_url, "SELECT reason, event_id FROM ledger_dead")
    assert reason.startswith("refused by SQL")
    assert event_id == "3-0"
    assert rows(sql_url, "SELECT requests FROM ledger_hour") == [(4,)]


async def test_many_writers_at_once_write_each_event_once(
    batcher: RedisBatcher, database: Database, sql_url: str, redis_client: redis.Redis
) -> None:
    """All of them take each other for dead, so they write the same events at the same time."""
    append(redis_client, (event(number, who=f"w{number % 7}") for number in range(400)))
    notes = Notes()
    stop = asyncio.Event()
    writers = [
        writer(RedisEventSource(batcher, reclaim_ms=0), LedgerTable(database), notes, batch=50)
        for _ in range(3)
    ]
    tasks = [asyncio.create_task(one.run(stop)) for one in writers]
    async with asyncio.timeout(60):
        while redis_client.exists(keys.events(ROOT)):
            await asyncio.sleep(0.02)
    stop.set()
    await asyncio.gather(*tasks)
    assert count(sql_url, "usage_ledger") == 400
    assert rows(sql_url, "SELECT SUM(requests), SUM(cost_micros) FROM ledger_hour") == [(400, 2800)]


async def test_an_sql_that_is_away_is_waited_for_and_nothing_is_lost(
    source: RedisEventSource, database: Database, sql_url: str, redis_client: redis.Redis
) -> None:
    append(redis_client, (event(number) for number in range(20)))
    real = LedgerTable(database)
    tries = 0

    class Away:
        async def write(self, entries: Any, dead: Any) -> Written:
            """Away twice; then it commits and the answer is lost; then it is there."""
            nonlocal tries
            tries += 1
            if tries == 3:
                await real.write(entries, dead)
            if tries <= 3:
                raise StoreUnavailableError("sql", "away", transient=True, maybe_applied=True)
            return await real.write(entries, dead)

    notes = Notes()
    assert await writer(source, Away(), notes).sweep() == 20
    assert notes.failures == ["sql"] * 3
    assert count(sql_url, "usage_ledger") == 20
    assert rows(sql_url, "SELECT requests FROM ledger_hour") == [(20,)]


async def test_without_tables_everything_stays_in_redis(
    source: RedisEventSource, database: Database, sql_url: str, redis_client: redis.Redis
) -> None:
    await database.run(lambda connection: connection.execute(text("DROP TABLE usage_ledger")))
    append(redis_client, [event(1)])
    notes, stop = Notes(), asyncio.Event()
    running = asyncio.create_task(writer(source, LedgerTable(database), notes).run(stop))
    async with asyncio.timeout(30):
        while len(notes.failures) < 2:
            await asyncio.sleep(0.02)
    stop.set()
    await running
    assert redis_client.xlen(keys.events(ROOT)) == 1


async def test_a_stream_that_somebody_spoilt_stops_no_other(
    source: RedisEventSource, database: Database, sql_url: str, redis_client: redis.Redis
) -> None:
    append(redis_client, [event(1, root="bad")], root="bad")
    append(redis_client, [event(2)])
    source._scans_at = float("inf")
    at_work = writer(source, LedgerTable(database), Notes())
    real_waiting = source.waiting

    async def waiting() -> dict[str, int]:
        counts = await real_waiting()
        redis_client.set(keys.events("bad"), "no stream")
        return counts

    source.waiting = waiting  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailableError, match="WRONGTYPE"):
        await at_work.sweep()
    assert count(sql_url, "usage_ledger") == 1


async def test_a_stream_of_a_root_that_nobody_has_registered_is_found(
    source: RedisEventSource, redis_client: redis.Redis
) -> None:
    append(redis_client, [event(1)])
    redis_client.delete(keys.ROOTS)
    assert await source.waiting() == {ROOT: 1}


async def test_in_a_cluster_every_stream_is_read(
    cluster: ValkeyCluster, redis_cluster: RedisCluster, sqlite_url: str
) -> None:
    upgrade(sqlite_url)
    database = Database(url=sqlite_url, timeout_ms=10_000)
    roots = [f"svc-{i}" for i in range(6)]
    for number, root in enumerate(roots):
        client: redis.Redis = cluster.owner(keys.events(root)).client
        append(client, [event(number, root=root)], root=root, registers=False)
    source = RedisEventSource(redis_cluster, reclaim_ms=0)
    assert await writer(source, LedgerTable(database), Notes(), batch=2).sweep() == 6
    assert count(sqlite_url, "ledger_hour") == 6
    assert await source.waiting() == {}
    await database.close()


async def test_the_ledger_adds_up_to_what_redis_charged(
    batcher: RedisBatcher,
    database: Database,
    sql_url: str,
    inspect: Inspector,
    redis_client: redis.Redis,
) -> None:
    """Thousands of reservations with any ends in any order, written while they go on."""
    store = RedisReservationStore(batcher, writes_events=True)
    source = RedisEventSource(batcher, reclaim_ms=60_000)
    notes, stop, dice = Notes(), asyncio.Event(), random.Random(11)
    roots = [f"svc-{i}" for i in range(5)]
    for root in roots:
        Inspector(redis_client, root).cache(rpm=1_000_000, tpm=2**40)
    at_work = writer(source, LedgerTable(database), notes, batch=300)
    running = asyncio.create_task(at_work.run(stop))
    ids = [f"id{i}" for i in range(2000)]
    root_of = {rid: dice.choice(roots) for rid in ids}
    changes = 0

    async def live(rid: str) -> None:
        nonlocal changes
        root = root_of[rid]
        await store.reserve(request(rid=rid, root=root, input_tokens=dice.randrange(1000)))
        for _ in range(dice.randrange(4)):
            end = settlement(
                rid,
                dice.randrange(1000),
                dice.randrange(5000),
                root=root,
                knowledge=dice.choice(list(Knowledge)[1:]),
                outcome=dice.choice(list(Outcome)),
                source=dice.choice((Source.METERING, Source.ENDING, Source.ADMISSION)),
            )
            usage = Usage(input_tokens=1, reasoning_tokens=dice.randrange(3))
            verb = store.release if dice.random() < 0.2 else store.settle
            result = await verb(replace(end, usage=usage))
            changes += result.status not in (SettleStatus.NOOP, SettleStatus.MISSING)

    for start in range(0, len(ids), 100):
        await asyncio.gather(*(live(rid) for rid in ids[start : start + 100]))
    async with asyncio.timeout(60):
        while any(redis_client.exists(keys.events(root)) for root in roots):
            await asyncio.sleep(0.05)
    stop.set()
    await running
    charged = dict.fromkeys(roots, 0)
    for rid in ids:
        record = Inspector(redis_client, root_of[rid]).record(rid)
        if record["rank"] != "0":
            charged[root_of[rid]] += int(record["charged"])
    for table in ("usage_ledger", "ledger_hour"):
        found = rows(
            sql_url, f"SELECT root, SUM(input_tokens + output_tokens) FROM {table} GROUP BY root"
        )
        assert {root: int(total) for root, total in found} == charged
    assert count(sql_url, "usage_ledger") == changes
    ended = rows(sql_url, "SELECT COUNT(DISTINCT reservation_id) FROM usage_ledger")
    assert rows(sql_url, "SELECT SUM(requests) FROM ledger_hour") == ended
