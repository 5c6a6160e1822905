"""A reservation that holds something at several roots: whoever ends it at its own root ends it at
all, and knows of the others from the record alone."""

import asyncio
from dataclasses import replace

import pytest
import redis

from extproc.core.buckets import Unit
from extproc.core.estimates import EstimateMode, EstimatePlan
from extproc.core.outcomes import release_of
from extproc.core.reservations import Admitted, LimitsMissing, Outcome, Source, State
from extproc.jobs.reaper import Reaper
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.engine import Counters, asking, cache_view, minute, slots
from tests.support.fakes import RecordingTelemetry
from tests.support.reservations import ROOT, Inspector, request, settlement
from tests.support.tcp import silent, tcp_server

CEILING = "across:provider:openai"
SECOND = "across:model:gpt-4o"


@pytest.fixture
def there(redis_client: redis.Redis, inspect: Inspector) -> Inspector:
    """A look at the shared root."""
    cache_view(redis_client)
    return Inspector(redis_client, CEILING)


async def hold(store: RedisReservationStore, rid: str) -> None:
    """110 tokens, a request and a slot at its own root and at two others."""
    for root, others in ((ROOT, (CEILING, SECOND)), (CEILING, ()), (SECOND, ())):
        buckets = (
            minute("rpm", Unit.REQUESTS, 100, root=root),
            minute("tpm", Unit.TOTAL, 1000, root=root),
            slots("slots", 5, root=root),
        )
        asked = asking(*buckets, rid=rid, root=root, is_pinned=root != ROOT)
        assert isinstance(await store.reserve(replace(asked, other_roots=others)), Admitted)


def totals(client: redis.Redis) -> dict[str, list[str]]:
    """By root: the values of its counters, requests before tokens."""
    state = Counters(client).state()
    return {
        root: [value for key, value in state.items() if f"{{{root}}}" in key]
        for root in (ROOT, CEILING, SECOND)
    }


def everywhere(values: list[str]) -> dict[str, list[str]]:
    return dict.fromkeys((ROOT, CEILING, SECOND), values)


def is_open(client: redis.Redis) -> int:
    return sum(int(client.zcard(keys.pending(root))) for root in (ROOT, CEILING, SECOND))


def due(client: redis.Redis, root: str) -> float:
    return float(client.zscore(keys.pending(root), "r1") or 0)


async def test_a_settlement_reaches_all_roots(
    store: RedisReservationStore, there: Inspector, redis_client: redis.Redis
) -> None:
    await hold(store, "r1")
    result = await store.settle(settlement("r1", 10, 20, history=True))
    assert result.other_roots == (CEILING, SECOND)
    assert totals(redis_client) == everywhere(["1", "30"])
    assert is_open(redis_client) == 0
    assert there.history() == {}


async def test_a_release_by_somebody_without_a_handle_reaches_all_roots(
    store: RedisReservationStore, there: Inspector, redis_client: redis.Redis
) -> None:
    """As the ending does it for a client that left in the moment of its admission."""
    await hold(store, "r1")
    await store.release(release_of("r1", ROOT, Outcome.NOT_FORWARDED, Source.ENDING))
    assert totals(redis_client) == everywhere(["1", "0"])
    assert is_open(redis_client) == 0


async def test_an_undo_gives_requests_back_everywhere(
    store: RedisReservationStore, there: Inspector, redis_client: redis.Redis
) -> None:
    await hold(store, "r1")
    undo = release_of("r1", ROOT, Outcome.NOT_FORWARDED, Source.ADMISSION)
    await store.release(replace(undo, undo=True))
    assert totals(redis_client) == everywhere(["0", "0"])


async def test_a_release_that_overtakes_the_other_roots_makes_them_take_nothing(
    store: RedisReservationStore, there: Inspector, redis_client: redis.Redis
) -> None:
    own = asking(minute("tpm", Unit.TOTAL, 1000), rid="r1")
    await store.reserve(replace(own, other_roots=(CEILING,)))
    await store.release(release_of("r1", ROOT, Outcome.NOT_FORWARDED, Source.ENDING))
    late = asking(minute("tpm", Unit.TOTAL, 1000, root=CEILING), rid="r1", root=CEILING)
    with pytest.raises(Exception, match="released before it was made"):
        await store.reserve(replace(late, is_pinned=True))
    assert totals(redis_client)[CEILING] == []


async def test_the_same_settlement_again_mends_what_a_crash_left_open(
    store: RedisReservationStore, there: Inspector, redis_client: redis.Redis
) -> None:
    await hold(store, "r1")
    await store.settle(replace(settlement("r1", 10, 20), follows=False))
    assert is_open(redis_client) == 2
    await store.settle(settlement("r1", 10, 20))
    assert totals(redis_client) == everywhere(["1", "30"])


async def test_a_renewal_reaches_all_roots(
    store: RedisReservationStore, there: Inspector, redis_client: redis.Redis
) -> None:
    await hold(store, "r1")
    deadlines = [due(redis_client, root) for root in (ROOT, CEILING, SECOND)]
    assert await store.renew(ROOT, "r1", deadline_ms=500_000)
    for root, before in zip((ROOT, CEILING, SECOND), deadlines, strict=True):
        assert due(redis_client, root) > before + 400_000
        assert redis_client.zscore(keys.slots(root, "slots"), "r1") == due(redis_client, root)


async def test_the_reaper_finds_shared_roots_and_ends_what_nobody_ends(
    store: RedisReservationStore, there: Inspector, redis_client: redis.Redis
) -> None:
    await hold(store, "r1")
    assert {CEILING, SECOND} <= set(await store.roots())
    await store.settle(replace(settlement("r1", 10, 20), follows=False))
    for root in (CEILING, SECOND):
        redis_client.zadd(keys.pending(root), {"r1": 1})
    assert await Reaper(store, RecordingTelemetry()).sweep() == 2
    assert totals(redis_client)[CEILING] == ["1", "110"]
    assert is_open(redis_client) == 0


async def test_shared_roots_that_nobody_asks_for_are_forgotten(
    store: RedisReservationStore, batcher: RedisBatcher, redis_client: redis.Redis
) -> None:
    redis_client.zadd(keys.ROOTS_ACROSS, {"across:model:old": 1})
    ceiling = minute("tpm", Unit.TOTAL, 1000, root=CEILING)
    await store.reserve(asking(ceiling, root=CEILING, is_pinned=True))
    assert await RedisReservationStore(batcher).roots() == [CEILING]
    assert redis_client.smembers(keys.ROOTS) == set()


async def test_a_warm_request_does_not_register_again(
    store: RedisReservationStore, there: Inspector, redis_client: redis.Redis
) -> None:
    ceiling = minute("tpm", Unit.TOTAL, 1000, root=CEILING)
    await store.reserve(asking(ceiling, root=CEILING, is_pinned=True))
    redis_client.config_resetstat()
    await store.reserve(asking(ceiling, root=CEILING, is_pinned=True))
    assert "cmdstat_zadd" in redis_client.info("commandstats")  # of the script: pending
    redis_client.delete(keys.ROOTS_ACROSS)
    await store.reserve(asking(ceiling, root=CEILING, is_pinned=True))
    assert not redis_client.exists(keys.ROOTS_ACROSS)


async def registered(client: redis.Redis, *roots: str) -> None:
    async with asyncio.timeout(5):
        while client.smembers(keys.ROOTS) != set(roots):
            await asyncio.sleep(0.005)


async def test_a_warm_request_registers_its_root_again_and_does_not_wait_for_it(
    store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis
) -> None:
    """In a cluster, the set's own master may have lost it while this root's has everything."""
    inspect.cache(rpm=100, tpm=100_000)
    registry = store._registry
    assert isinstance(await store.reserve(request()), Admitted)
    assert list(registry._under_way) == [ROOT]
    await registered(redis_client, ROOT)
    redis_client.delete(keys.ROOTS)
    await store.reserve(request())
    assert not registry._under_way  # known for a while
    registry._known[ROOT] -= 31
    await store.reserve(request())
    await registered(redis_client, ROOT)


async def test_what_was_not_registered_is_tried_again_and_fails_nobody(
    store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis
) -> None:
    inspect.cache(rpm=100, tpm=100_000)
    redis_client.set(keys.ROOTS, "no set")
    registry = store._registry
    assert isinstance(await store.reserve(request()), Admitted)
    (task,) = registry._under_way.values()
    await task
    assert redis_client.get(keys.ROOTS) == "no set"
    redis_client.delete(keys.ROOTS)
    assert isinstance(await store.reserve(request()), Admitted)
    await registered(redis_client, ROOT)


async def test_registering_is_bounded_and_ends_with_the_store() -> None:
    async with tcp_server(silent) as port:
        batcher = RedisBatcher(url=f"redis://127.0.0.1:{port}", timeout_ms=1000)
        store = RedisReservationStore(batcher)
        registry = store._registry
        for number in range(1000):
            registry.add_soon(f"svc-{number % 500}")
        assert len(registry._under_way) == 64
        await store.close()
        assert not registry._under_way
        await batcher.close()


async def test_who_is_not_admitted_is_not_registered(
    store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis
) -> None:
    """Or anybody could fill the set with names."""
    assert await store.reserve(request()) == LimitsMissing()
    redis_client.hset(keys.config(ROOT), "status", "unknown")
    await store.reserve(request())
    assert not store._registry._under_way


async def test_what_another_root_has_estimated_is_taken_as_it_is_but_fits_an_empty_counter(
    store: RedisReservationStore, there: Inspector, redis_client: redis.Redis
) -> None:
    redis_client.hset(
        keys.output_prefix(CEILING) + there.minute(1), mapping={"count": 1, "output_tokens": 900}
    )
    given = EstimatePlan(mode=EstimateMode.GIVEN)
    wide = minute("wide", Unit.TOTAL, 1000, root=CEILING)
    narrow = minute("narrow", Unit.TOTAL, 50, root=CEILING)
    for bucket, reserved in ((wide, 110), (narrow, 50)):
        verdict = await store.reserve(
            asking(bucket, root=CEILING, is_pinned=True, estimate=given, default=100)
        )
        assert isinstance(verdict, Admitted)
        assert verdict.reserved_tokens == reserved


async def test_settling_twice_by_the_record_moves_no_root_twice(
    store: RedisReservationStore, there: Inspector, redis_client: redis.Redis
) -> None:
    await hold(store, "r1")
    for state in (State.SETTLED, State.SETTLED):
        await store.settle(replace(settlement("r1", 10, 20), state=state))
    assert totals(redis_client) == everywhere(["1", "30"])
