"""The reaper on a real Valkey."""

import asyncio
from typing import Any

import pytest
import redis

from extproc.core.errors import StoreUnavailableError
from extproc.core.limits import ServiceLimit
from extproc.core.ports import OpenReservation
from extproc.core.reservations import Settlement, SettleResult, SettleStatus, State
from extproc.jobs.reaper import Policy, Reaper
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.reservations import ROOT, Inspector, request, settlement


class Notes:
    """The telemetry that a reaper needs, written down."""

    def __init__(self) -> None:
        self.settlements: list[SettleResult] = []
        self.failures: list[str] = []
        self.open: list[int] = []
        self.reviews: list[int] = []
        self.swept = asyncio.Event()

    def settled(self, settlement: Settlement, result: SettleResult, *, seconds: float) -> None:
        self.settlements.append(result)

    def settlement_failed(self, source: str) -> None:
        self.failures.append(source)

    def open_reservations(self, count: int) -> None:
        self.open.append(count)

    def open_reviews(self, count: int) -> None:
        self.reviews.append(count)
        self.swept.set()


def reaper(store: Any, notes: Notes, *, policy: Policy = "estimate") -> Reaper:
    telemetry: Any = notes
    return Reaper(store, telemetry, policy=policy, interval=0.01)


async def open_overdue(store: RedisReservationStore, count: int, *, root: str = ROOT) -> None:
    limit = ServiceLimit(service_id=root, rpm=10_000, tpm=10_000_000)
    calls = (
        store.reserve(request(rid=f"r{i}", root=root, deadline_ms=0, limit=limit))
        for i in range(count)
    )
    await asyncio.gather(*calls)


async def test_charges_the_estimate_by_default(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    await open_overdue(store, 2)
    limit = ServiceLimit(service_id=ROOT, rpm=10_000, tpm=10_000_000)
    await store.reserve(request(rid="young", deadline_ms=60_000, limit=limit))
    notes = Notes()
    assert await reaper(store, notes).sweep() == 2
    assert inspect.used() == (3, 330)
    assert (inspect.record("r0")["state"], inspect.record("r0")["outcome"]) == (
        "EXPIRED",
        "unreported",
    )
    assert inspect.record("young")["state"] == "RESERVED"
    assert notes.open == [1]
    assert len(notes.settlements) == 2
    # The truth may still come.
    improved = await store.settle(settlement("r0", 10, 5))
    assert improved.status is SettleStatus.IMPROVED
    assert inspect.used() == (3, 235)


async def test_releases_when_told_to_and_still_takes_the_truth(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    await open_overdue(store, 1)
    assert await reaper(store, Notes(), policy="release").sweep() == 1
    assert inspect.used() == (1, 0)
    assert (await store.settle(settlement("r0", 10, 5))).status is SettleStatus.IMPROVED
    assert inspect.used() == (1, 15)


async def test_a_heartbeat_after_the_end_revives_nothing(
    store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis
) -> None:
    await open_overdue(store, 3)
    await store.settle(settlement("r0"))
    await store.release(settlement("r1", state=State.RELEASED))
    assert await reaper(store, Notes()).sweep() == 1
    before = {name: inspect.record(name) for name in ("r0", "r1", "r2")}
    used = inspect.used()
    for name in (*before, "unknown"):
        assert not await store.renew(ROOT, name, deadline_ms=3_600_000)
    assert {name: inspect.record(name) for name in before} == before
    assert (inspect.open(), inspect.used()) == (0, used)
    for name in before:
        assert 0 < redis_client.pttl(keys.reservation(ROOT, name)) <= 900_000
    assert not inspect.record("unknown")


async def test_a_heartbeat_before_the_deadline_keeps_it_from_the_reaper(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    await open_overdue(store, 2)
    assert await store.renew(ROOT, "r1", deadline_ms=60_000)
    assert await reaper(store, Notes()).sweep() == 1
    assert inspect.record("r0")["state"] == "EXPIRED"
    assert inspect.record("r1")["state"] == "RESERVED"


async def test_works_off_more_than_one_batch_and_root(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    await open_overdue(store, 250)
    await open_overdue(store, 3, root="other")
    notes = Notes()
    assert await reaper(store, notes).sweep() == 253
    assert notes.open == [0]


async def test_several_reapers_resolve_each_reservation_once(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    await open_overdue(store, 150)
    counts = await asyncio.gather(*(reaper(store, Notes()).sweep() for _ in range(4)))
    assert sum(counts) == 150
    assert inspect.used() == (150, 150 * 110)


async def test_a_root_that_fails_does_not_stop_the_others(
    store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis
) -> None:
    await open_overdue(store, 2)
    redis_client.sadd(keys.ROOTS, "broken")
    redis_client.set(keys.pending("broken"), "not a sorted set")
    with pytest.raises(StoreUnavailableError) as caught:
        await reaper(store, Notes()).sweep()
    assert not caught.value.transient
    assert inspect.open() == 0


async def test_an_outage_is_survived(store: RedisReservationStore, inspect: Inspector) -> None:
    """run() goes on after failures and stops when told to."""
    await open_overdue(store, 1)

    class Flaky:
        calls = 0
        settle = staticmethod(store.settle)
        open_count = staticmethod(store.open_count)
        review_count = staticmethod(store.review_count)

        async def roots(self) -> list[str]:
            self.calls += 1
            if self.calls < 3:
                raise StoreUnavailableError("redis", "away", transient=True)
            return await store.roots()

        async def overdue(self, root: str, *, at_most: int) -> list[OpenReservation]:
            return await store.overdue(root, at_most=at_most)

    stop, notes = asyncio.Event(), Notes()
    running = asyncio.create_task(reaper(Flaky(), notes).run(stop))
    async with asyncio.timeout(10):
        await notes.swept.wait()
        stop.set()
        await running
    assert inspect.record("r0")["state"] == "EXPIRED"


async def test_a_failed_settlement_is_counted(redis_url: str, inspect: Inspector) -> None:
    batcher = RedisBatcher(url=redis_url, timeout_ms=5000)
    store = RedisReservationStore(batcher)
    await open_overdue(store, 1)
    notes = Notes()

    class Refusing:
        roots = staticmethod(store.roots)
        overdue = staticmethod(store.overdue)

        async def settle(self, settlement: Settlement) -> SettleResult:
            raise StoreUnavailableError("redis", "away", transient=True)

    with pytest.raises(StoreUnavailableError):
        await reaper(Refusing(), notes).sweep()
    assert notes.failures == ["reaper"]
    assert inspect.open() == 1
    await batcher.close()


class RenewedMeanwhile:
    """The store, where a heartbeat comes between the reaper's look and its settlement."""

    def __init__(self, store: RedisReservationStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def overdue(self, root: str, *, at_most: int) -> list[OpenReservation]:
        found = await self._store.overdue(root, at_most=at_most)
        for one in found:
            await self._store.renew(root, one.reservation_id, deadline_ms=60_000)
        return found


@pytest.mark.parametrize("policy", ["estimate", "release", "review"])
async def test_what_is_renewed_after_the_look_stays_open(
    store: RedisReservationStore, inspect: Inspector, policy: Policy
) -> None:
    await open_overdue(store, 1)
    notes = Notes()
    assert await reaper(RenewedMeanwhile(store), notes, policy=policy).sweep() == 0
    assert inspect.record("r0")["state"] == State.RESERVED
    assert inspect.open() == 1
    assert notes.settlements == []


async def test_a_part_of_a_cluster_that_is_away_does_not_stop_the_others(
    store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis
) -> None:
    for root in ("a-away", "b-there"):
        await open_overdue(store, 1, root=root)

    class PartlyAway(RenewedMeanwhile):
        async def overdue(self, root: str, *, at_most: int) -> list[OpenReservation]:
            if root == "a-away":
                raise StoreUnavailableError("redis", "away", transient=True)
            return await self._store.overdue(root, at_most=at_most)

    with pytest.raises(StoreUnavailableError):
        await reaper(PartlyAway(store), Notes()).sweep()
    assert Inspector(redis_client, "b-there").record("r0")["state"] == "EXPIRED"
    assert Inspector(redis_client, "a-away").record("r0")["state"] == "RESERVED"
