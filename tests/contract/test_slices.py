"""Slices on a real Valkey: what is taken ahead is used or given back, whoever dies in between."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import redis

from extproc.core.buckets import Bucket, Unit
from extproc.core.estimates import EstimatePlan
from extproc.core.handles import Handle, handle_from_fields
from extproc.core.outcomes import AnswerFacts, release, release_of, settle_answer, settle_ending
from extproc.core.reservations import (
    Knowledge,
    Outcome,
    Settlement,
    SettleStatus,
    Slip,
    Source,
    State,
)
from extproc.core.slices import Drawing, SlicePlan, SliceRequest, SliceTaken
from extproc.core.usage import Usage
from extproc.jobs.reaper import Reaper
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.slice_store import SlicedReservationStore
from tests.support.engine import VERSION, Counters, cache_view, minute, quota
from tests.support.fakes import RecordingTelemetry
from tests.support.reservations import ROOT, Inspector, settlement
from tests.support.valkey import wait_for_quiet_minute

PLAN = SlicePlan(share_permille=10, most_requests=50, most_tokens=5000)
POLICIES = (
    minute("rpm", Unit.REQUESTS, 10_000),
    minute("tpm", Unit.TOTAL, 1_000_000),
    quota("day", Unit.TOTAL, 10_000_000),
)
Used = Callable[[], tuple[int, int]]


@pytest.fixture
def store(batcher: RedisBatcher) -> SlicedReservationStore:
    """The store of one worker."""
    return SlicedReservationStore(batcher)


@pytest.fixture(params=["simple", "policies"])
def kind(request: pytest.FixtureRequest, inspect: Inspector, redis_client: redis.Redis) -> str:
    """A root of either kind, with the same limits, which are known to Redis."""
    if request.param == "simple":
        inspect.cache(rpm=10_000, tpm=1_000_000)
    else:
        cache_view(redis_client)
    return str(request.param)


@pytest.fixture
def used(kind: str, inspect: Inspector, redis_client: redis.Redis) -> Used:
    """Requests and tokens that the counters hold; all of tokens must say the same."""
    name = inspect.minute()

    def simple() -> tuple[int, int]:
        requests, tokens = inspect.used(name)
        return requests or 0, tokens or 0

    def policies() -> tuple[int, int]:
        requests = int(str(redis_client.get(POLICIES[0].key + name) or 0))
        tokens = int(str(redis_client.get(POLICIES[1].key + name) or 0))
        assert sum(Counters(redis_client).quota(POLICIES[2], name[:8]) or (0, 0)) == tokens
        return requests, tokens

    return simple if kind == "simple" else policies


def asking(kind: str, *, slice_id: str = "slice.1", **values: Any) -> SliceRequest:
    is_simple = kind == "simple"
    buckets: tuple[Bucket, ...] = () if is_simple else POLICIES
    request = SliceRequest(
        slice_id=slice_id,
        root=ROOT,
        model="gpt-4o",
        version="" if is_simple else VERSION,
        buckets=buckets,
        least_tokens=10,
        overdue_ms=60_000,
        deadline_ms=60_000,
        estimate=EstimatePlan(),
    )
    return replace(request, **values)


async def take(store: SlicedReservationStore, kind: str, **values: Any) -> SliceTaken:
    taken = await store.take_slice(asking(kind, **values), PLAN)
    assert taken is not None
    return taken


def drawing(rid: str, reserved: int = 110) -> Drawing:
    return Drawing(reservation_id=rid, input_tokens=10, reserved_tokens=reserved, model="gpt-4o")


def ended(rid: str, output: int = 20, *, slice_id: str = "slice.1", **values: Any) -> Settlement:
    """The end of a request that was admitted from a slice with a reserve of 110."""
    slip = Slip(slice_id=slice_id, input_tokens=10, reserved_tokens=110, model="gpt-4o")
    return replace(settlement(rid, 10, output, **values), slip=slip)


def given_back(rid: str) -> Settlement:
    """A request that was not forwarded, as far as its admission knows."""
    end = ended(rid, knowledge=Knowledge.GUESSED, source=Source.ADMISSION, state=State.RELEASED)
    return replace(end, outcome=Outcome.NOT_FORWARDED)


async def reap(store: SlicedReservationStore) -> int:
    return await Reaper(store, RecordingTelemetry()).sweep()


async def test_takes_a_share_and_gives_back_what_is_left(
    store: SlicedReservationStore, kind: str, used: Used, inspect: Inspector
) -> None:
    taken = await take(store, kind)
    assert (taken.requests, taken.tokens) == (50, 5000)
    assert used() == (50, 5000)
    assert taken.views[1].remaining == 995_000
    await store.return_slice(ROOT, "slice.1")
    assert (used(), inspect.open()) == ((0, 0), 0)
    await store.return_slice(ROOT, "slice.1")
    assert used() == (0, 0)


async def test_what_is_drawn_is_an_ordinary_reservation(
    store: SlicedReservationStore, kind: str, used: Used, inspect: Inspector
) -> None:
    await take(store, kind)
    assert await store.draw(ROOT, "slice.1", [drawing("r1"), drawing("r2", 300)])
    assert used() == (50, 5000)
    await store.return_slice(ROOT, "slice.1")
    assert (used(), inspect.open()) == ((2, 410), 2)
    assert (await store.settle(settlement("r1", 10, 20))).status is SettleStatus.APPLIED
    assert used() == (2, 330)
    assert (await store.settle(settlement("r1", 10, 20))).status is SettleStatus.NOOP
    await store.release(settlement("r2", state=State.RELEASED))
    assert (used(), inspect.open()) == ((2, 30), 0)


async def test_a_draw_may_come_twice(store: SlicedReservationStore, kind: str, used: Used) -> None:
    await take(store, kind)
    for _ in range(2):
        assert await store.draw(ROOT, "slice.1", [drawing("r1")])
    await store.settle(settlement("r1", 10, 20))
    assert await store.draw(ROOT, "slice.1", [drawing("r1"), drawing("r1")])
    await store.return_slice(ROOT, "slice.1")
    assert used() == (1, 30)


async def test_a_settlement_that_comes_first_draws(
    store: SlicedReservationStore, kind: str, used: Used, inspect: Inspector
) -> None:
    await take(store, kind)
    assert (await store.settle(ended("r1"))).status is SettleStatus.APPLIED
    assert used() == (50, 5000 - 110 + 30)
    assert await store.draw(ROOT, "slice.1", [drawing("r1")])
    assert (await store.settle(ended("r1"))).status is SettleStatus.NOOP
    await store.return_slice(ROOT, "slice.1")
    assert (used(), inspect.open()) == ((1, 30), 0)


async def test_who_comes_after_the_slice_is_charged_all_the_same(
    store: SlicedReservationStore, kind: str, used: Used, inspect: Inspector
) -> None:
    await take(store, kind)
    await store.return_slice(ROOT, "slice.1")
    assert (await store.settle(ended("r1"))).status is SettleStatus.APPLIED
    assert used() == (1, 30)
    assert (await store.settle(ended("r1", 999))).status is SettleStatus.NOOP
    # Drawn by its worker after all, which was slow; nobody ends it.
    await store.draw(ROOT, "slice.1", [drawing("r2")])
    assert used() == (1, 30)
    await store.settle(ended("r2", 50, knowledge=Knowledge.GUESSED, source=Source.REAPER))
    assert used() == (1, 30)  # not overdue yet
    await store.settle(ended("r2", 50))
    assert (used(), inspect.open()) == ((2, 90), 0)


async def test_a_release_that_comes_first_may_still_be_overturned(
    store: SlicedReservationStore, kind: str, used: Used
) -> None:
    """Admission's answer seemed not to arrive; Envoy had it, and forwarded the request."""
    await take(store, kind)
    assert (await store.release(given_back("r1"))).status is SettleStatus.APPLIED
    await store.return_slice(ROOT, "slice.1")
    assert used() == (1, 0)
    assert (await store.settle(ended("r1"))).status is SettleStatus.IMPROVED
    assert used() == (1, 30)


async def test_what_was_released_without_a_handle_takes_nothing(
    store: SlicedReservationStore, kind: str, used: Used, inspect: Inspector
) -> None:
    """Envoy gave the request up; its note comes before the draw, and the worker's word last."""
    await take(store, kind)
    await store.release(release_of("r1", ROOT, Outcome.NOT_FORWARDED, Source.ENDING))
    assert await store.draw(ROOT, "slice.1", [drawing("r1")])
    await store.release(given_back("r1"))
    await store.return_slice(ROOT, "slice.1")
    assert (used(), inspect.open()) == ((0, 0), 0)


@pytest.mark.parametrize("policy", ["estimate", "release", "review"])
async def test_the_reaper_returns_what_a_dead_worker_left(
    store: SlicedReservationStore, kind: str, used: Used, inspect: Inspector, policy: Any
) -> None:
    await take(store, kind, overdue_ms=0)
    await store.draw(ROOT, "slice.1", [drawing("drawn")])
    reaper = Reaper(store, RecordingTelemetry(), policy=policy)
    assert await reaper.sweep() == 1
    assert (used(), inspect.open()) == ((1, 110), 1)
    # Admitted and not drawn, and ended after that.
    await store.settle(ended("undrawn"))
    await store.settle(ended("drawn"))
    assert (used(), inspect.open()) == ((2, 60), 0)
    assert await reaper.sweep() == 0
    assert await store.review_count(ROOT) == 0


async def test_a_slice_never_gives_more_than_it_has(
    store: SlicedReservationStore, kind: str, used: Used
) -> None:
    await take(store, kind)
    await store.draw(ROOT, "slice.1", [drawing(f"r{i}", 400) for i in range(49)])
    await store.draw(ROOT, "slice.1", [drawing("more", 400), drawing("most", 400)])
    assert used() == (50, 5000)
    await store.return_slice(ROOT, "slice.1")
    assert used() == (50, 5000)
    for rid in (*(f"r{i}" for i in range(49)), "more", "most"):
        await store.settle(settlement(rid, 1, 1))
    assert used() == (51, 102)


async def test_a_return_that_overtakes_stops_the_slice(
    store: SlicedReservationStore, kind: str, used: Used
) -> None:
    """Its reply was lost, or the worker stops while it is asked for."""
    await store.return_slice(ROOT, "slice.1")
    assert await store.take_slice(asking(kind), PLAN) is None
    assert used() == (0, 0)


async def test_nothing_is_drawn_once_records_may_be_forgotten(
    store: SlicedReservationStore, kind: str, used: Used, redis_client: redis.Redis
) -> None:
    """Else a second end, long after the first, would be charged again."""
    await take(store, kind)
    name = keys.reservation(ROOT, "slice.1")
    now = int(redis_client.time()[0]) * 1000
    until = int(str(redis_client.hget(name, "until")))
    assert now + 900_000 + 60_000 <= until + 1000
    await store.return_slice(ROOT, "slice.1")
    assert abs(int(redis_client.pexpiretime(name)) - until) == 0
    redis_client.hset(name, "until", now - 1)
    assert not await store.draw(ROOT, "slice.1", [drawing("r1")])
    assert (await store.settle(ended("r1"))).status is SettleStatus.MISSING
    assert used() == (0, 0)


@pytest.mark.parametrize("change", ["limits", "disabled", "gone"])
async def test_a_draw_tells_that_the_limits_have_changed(
    store: SlicedReservationStore, kind: str, used: Used, redis_client: redis.Redis, change: str
) -> None:
    await take(store, kind)
    assert await store.draw(ROOT, "slice.1", [drawing("r1")])
    name = keys.config(ROOT)
    if change == "limits":
        redis_client.hset(name, "tpm" if kind == "simple" else "version", 7)
    elif change == "disabled":
        redis_client.hset(name, "status", 0)
    else:
        redis_client.delete(name)
    assert not await store.draw(ROOT, "slice.1", [drawing("r2")])
    assert await store.take_slice(asking(kind, slice_id="slice.2"), PLAN) is None
    await store.return_slice(ROOT, "slice.1")
    assert used() == (2, 220)


async def test_none_is_taken_of_what_is_half_used_or_too_small(
    store: SlicedReservationStore, kind: str, used: Used, inspect: Inspector
) -> None:
    large = asking(kind, least_tokens=5001)
    assert await store.take_slice(large, PLAN) is None
    half = replace(PLAN, share_permille=501, most_requests=10_000, most_tokens=1_000_000)
    assert await store.take_slice(asking(kind), half) is not None
    assert await store.take_slice(asking(kind, slice_id="slice.2"), PLAN) is None
    assert used() == (5010, 501_000)
    await store.return_slice(ROOT, "slice.1")
    assert (used(), inspect.open()) == ((0, 0), 0)


async def test_no_key_stays_for_ever(
    store: SlicedReservationStore, kind: str, used: Used, redis_client: redis.Redis
) -> None:
    await take(store, kind)
    await store.draw(ROOT, "slice.1", [drawing("r1")])
    await store.settle(ended("r2"))
    await store.return_slice(ROOT, "slice.1")
    assert Counters(redis_client).without_ttl() == []
    assert used() == (2, 140)


@contextmanager
def killed_worker(url: str, count: int) -> Iterator[list[Handle]]:
    """What a worker admitted that was killed before it drew any of it."""
    command = [sys.executable, "-m", "tests.support.slicing_process", url, str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            handles = [handle_from_fields(one) for one in json.loads(process.stdout.readline())]
        finally:
            process.kill()
    yield [handle for handle in handles if handle is not None]


@pytest.mark.parametrize("is_reaped", [False, True])
async def test_a_worker_killed_between_admission_and_draw_loses_nothing(
    store: SlicedReservationStore,
    inspect: Inspector,
    redis_client: redis.Redis,
    redis_url: str,
    is_reaped: bool,
) -> None:
    inspect.cache(rpm=10_000, tpm=1_000_000)
    wait_for_quiet_minute(redis_client, seconds=20)
    name = inspect.minute()
    with killed_worker(redis_url, 12) as handles:
        assert len(handles) == 12
        slice_id = handles[0].slice_id
        assert {handle.slice_id for handle in handles} == {slice_id}
        assert not any(inspect.record(handle.reservation_id) for handle in handles)
        before = inspect.used(name)[0] or 0
        if is_reaped:
            redis_client.zadd(keys.pending(ROOT), {slice_id: 0})
            assert await reap(store) == 1
        # Metering, the ending and an admission's last word, all elsewhere, and each of them twice.
        usage = Usage(input_tokens=10, output_tokens=20)
        facts = AnswerFacts(
            usage=usage,
            counted_output_tokens=0,
            saw_output=True,
            ended=True,
            finished=True,
            error=False,
        )
        for _ in range(2):
            for handle in handles[:10]:
                await store.settle(settle_answer(handle, facts))
            await store.settle(settle_ending(handles[10], Outcome.CLIENT_GONE))
            await store.release(release(handles[11], Outcome.UPSTREAM_REFUSED, Source.ENDING))
        if not is_reaped:
            assert inspect.used(name)[0] == before
            redis_client.zadd(keys.pending(ROOT), {slice_id: 0})
            assert await reap(store) == 1
        assert inspect.open() == 0
        requests, tokens = inspect.used(name)
        assert tokens == 10 * 30 + 110
        warm = sum(
            "from" not in inspect.record(key.rpartition(":")[2])
            for key in redis_client.scan_iter(match=keys.reservation_prefix(ROOT) + "[0-9a-f]*")
        )
        # A release keeps the request count where there is one to keep.
        assert requests == warm + 11 + (0 if is_reaped else 1)
