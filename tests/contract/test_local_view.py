"""The local view on a real Valkey: hot subjects are admitted without a call, nothing is lost."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from extproc.core.estimates import EstimateMode, EstimatePlan
from extproc.core.ids import new_reservation_id
from extproc.core.limits import ServiceLimit
from extproc.core.local_view import LocalReserver
from extproc.core.policies import (
    Algorithm,
    Dimension,
    LimitPolicy,
    Mode,
    OnExceed,
    PolicySet,
    Rule,
    Scope,
)
from extproc.core.reservations import Admitted, Rejected, WindowView
from extproc.core.reserving import Attempt
from extproc.core.slice_keeper import Slice, SliceKeeper
from extproc.core.slices import Drawing, SlicePlan, SliceRequest, SliceTaken
from extproc.core.views import to_json, version_of
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.slice_store import SlicedReservationStore
from extproc.stores.views import Views
from tests.support.local_view import DESCRIPTOR, PLAN, RESERVE, Lookup, Worker
from tests.support.reservations import ROOT, Inspector, request
from tests.support.valkey import wait_for_quiet_minute


@pytest.fixture
async def make(redis_url: str) -> AsyncIterator[Callable[..., Worker]]:
    """Makes workers, each with a connection of its own."""
    batchers: list[RedisBatcher] = []
    keepers: list[SliceKeeper] = []

    def made(plan: SlicePlan = PLAN, views: Views | None = None) -> Worker:
        batcher = RedisBatcher(url=redis_url, timeout_ms=5000)
        store = SlicedReservationStore(batcher)
        held: list[int] = []

        class Telling:
            def slices_held(self, tokens: int) -> None:
                held.append(tokens)

        keeper = SliceKeeper(store, plan, Telling())
        reserver = LocalReserver(
            store=store,
            limits=Lookup(),
            views=views or Views(),
            estimate=EstimatePlan(),
            clock=lambda: datetime.now(UTC),
            keeper=keeper,
            plan=plan,
        )
        batchers.append(batcher)
        keepers.append(keeper)
        return Worker(reserver, keeper, store, held)

    yield made
    for keeper in keepers:
        await keeper.close(timeout_seconds=5)
    for batcher in batchers:
        await batcher.close()


@pytest.fixture
def worker(make: Callable[..., Worker], inspect: Inspector) -> Worker:
    """A worker, and a simple root with room for slices of 10,000 tokens."""
    inspect.cache(rpm=100_000, tpm=1_000_000)
    return make()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_hot_subject_is_admitted_without_a_call(
    worker: Worker, inspect: Inspector, redis_client: redis.Redis
) -> None:
    await worker.ask_until_local()
    before = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
    first = worker.reserver.admit(Attempt(request(), DESCRIPTOR))
    second = worker.reserver.admit(Attempt(request(), DESCRIPTOR))
    assert first is not None
    assert second is not None
    after = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert after == before
    assert first.reserved_tokens == RESERVE
    assert first.requests is not None
    assert first.tokens is not None
    assert second.requests is not None
    assert second.tokens is not None
    assert first.tokens.remaining - second.tokens.remaining == RESERVE
    assert first.requests.remaining - second.requests.remaining == 1
    assert 0 < first.tokens.reset_ms <= 60_000
    # They get their records without more ado.
    await until(lambda: inspect.record(second.reservation_id) != {})
    assert inspect.record(first.reservation_id)["charged"] == str(RESERVE)


async def test_idle_slices_go_back_and_the_books_balance(
    worker: Worker, inspect: Inspector
) -> None:
    await worker.ask_until_local()
    for _ in range(30):
        await worker.ask()
    count = len(worker.admitted)
    assert sum(bool(one.slice_id) for one in worker.admitted) > 20
    assert max(worker.held) > 0
    await until(lambda: worker.held[-1] == 0 and inspect.open() == count)
    assert inspect.used() == (count, count * RESERVE)
    spent = await worker.end_all()
    assert (inspect.used(), inspect.open()) == ((count, spent), 0)


async def test_a_stop_returns_what_is_held(worker: Worker, inspect: Inspector) -> None:
    await worker.ask_until_local()
    assert await worker.keeper.close(timeout_seconds=5) == 0
    count = len(worker.admitted)
    assert (inspect.used(), inspect.open()) == ((count, count * RESERVE), count)
    assert worker.held[-1] == 0
    after = await worker.ask()
    assert isinstance(after, Admitted)
    assert not after.slice_id


async def test_a_slice_admits_nothing_after_its_life(
    make: Callable[..., Worker], inspect: Inspector
) -> None:
    inspect.cache(rpm=100_000, tpm=1_000_000)
    worker = make(replace(PLAN, idle_seconds=5))
    first = await worker.ask_until_local()
    ids = {first.slice_id}
    started = time.monotonic()
    while time.monotonic() - started < 1.2:
        verdict = await worker.ask()
        assert isinstance(verdict, Admitted)
        if verdict.slice_id == first.slice_id:
            assert time.monotonic() - started < PLAN.life_seconds + 0.05
        ids.add(verdict.slice_id)
        await asyncio.sleep(0.002)
    assert len(ids - {""}) >= 2


async def test_a_slice_ends_with_its_minute() -> None:
    """What is admitted counts in the minute in which it is."""

    class NearTheEdge:
        calls = 0

        async def take_slice(self, request: SliceRequest, plan: SlicePlan) -> SliceTaken:
            left = WindowView(limit=1000, remaining=900, reset_ms=150)
            return SliceTaken(
                minute="202612010100",
                requests=10,
                tokens=1000,
                minute_left_ms=150,
                expected_output_tokens=None,
                views=(left, left),
            )

        async def draw(self, root: str, slice_id: str, drawings: Sequence[Drawing]) -> bool:
            return True

        async def return_slice(self, root: str, slice_id: str) -> None:
            self.calls += 1

    class Telling:
        def slices_held(self, tokens: int) -> None:
            pass

    store = NearTheEdge()
    keeper = SliceKeeper(store, replace(PLAN, life_seconds=5, idle_seconds=5), Telling())
    found: list[Slice | None] = []
    started = time.monotonic()
    asked = SliceRequest(
        slice_id="slice.1",
        root=ROOT,
        model="",
        version="",
        buckets=(),
        least_tokens=1,
        overdue_ms=1000,
        deadline_ms=1000,
        estimate=EstimatePlan(),
    )
    keeper.take_soon(asked, found.append)
    await until(lambda: bool(found))
    latest = time.monotonic() + 0.145
    (one,) = found
    assert one is not None
    first = Drawing(reservation_id="r1", input_tokens=1, reserved_tokens=1)
    assert one.admit(first, started)
    assert not one.admit(replace(first, reservation_id="r2"), latest)
    await until(lambda: store.calls == 1)
    assert not one.is_open
    assert time.monotonic() - started < 5


async def test_a_change_of_limits_ends_the_slice(
    worker: Worker, inspect: Inspector, redis_client: redis.Redis
) -> None:
    await worker.ask_until_local()
    inspect.cache(rpm=0, tpm=0)
    async with asyncio.timeout(20):
        while not isinstance(verdict := await worker.ask(), Rejected):
            assert isinstance(verdict, Admitted)
            # Only from the slice, and no longer than until its first draw has come back.
            assert verdict.slice_id
            await asyncio.sleep(0.02)
    assert sum(bool(one.slice_id) for one in worker.admitted) <= 4


async def test_others_are_refused_too_early_by_no_more_than_all_slices(
    make: Callable[..., Worker], inspect: Inspector
) -> None:
    """Three workers hold a slice each while a fourth fills the limit."""
    inspect.cache(rpm=1_000_000, tpm=1_000_000)
    plan = replace(PLAN, life_seconds=5, idle_seconds=5)
    workers = [make(plan) for _ in range(3)]
    for one in workers:
        await one.ask_until_local()
    filler = make(replace(plan, hot_requests=10**9))
    verdicts = [await filler.ask(cap=9000, default=9000) for _ in range(120)]
    refused = next(one for one in verdicts if isinstance(one, Rejected))
    used = sum(one.reserved_tokens for each in (*workers, filler) for one in each.admitted)
    held = sum(one.held[-1] for one in workers)
    assert refused.tokens is not None
    assert used <= 1_000_000
    # What is not held was used, so the refusal is right but for what is in slices.
    await until(lambda: sum(one.held[-1] for one in workers) + used <= 1_000_000)
    assert used + 9010 > 1_000_000 - held
    assert 0 < held <= 3 * 10_000
    # And the workers still admit what they hold, which passes no limit.
    for one in workers:
        assert isinstance(one.reserver.admit(Attempt(request(), DESCRIPTOR)), Admitted)
    assert (inspect.used()[1] or 0) <= 1_000_000


async def test_nothing_special_comes_from_a_slice(worker: Worker) -> None:
    await worker.ask_until_local()

    async def is_local(**values: Any) -> bool:
        verdict = await worker.ask(**values)
        return isinstance(verdict, Admitted) and bool(verdict.slice_id)

    assert await is_local()
    assert not await is_local(idempotency_key="digest")
    assert not await is_local(limit=ServiceLimit(service_id=ROOT, rpm=100, tpm=100_000))
    # Larger than the slice: asked for, and the slice stays.
    assert not await is_local(cap=50_000, default=50_000)
    assert await is_local()
    # One id is admitted once.
    assert await is_local(rid="twice", owner="a")
    assert worker.reserver.admit(Attempt(request(rid="twice"), DESCRIPTOR)) is None


def view_of(*policies: LimitPolicy) -> PolicySet:
    return PolicySet(root=ROOT, service=None, policies=policies, blocks=(), overrides=())


def policy(rule: Rule, **more: Any) -> LimitPolicy:
    values: dict[str, Any] = {"scope": Scope.SERVICE, "value": ROOT, **more}
    started = datetime(2026, 1, 1, tzinfo=UTC)
    return LimitPolicy(name="p", version=1, rules=(rule,), effective_from=started, **values)


TPM = Rule(dimension=Dimension.TOTAL_TPM, limit=1_000_000)
DAY = Rule(dimension=Dimension.TOKENS_PER_DAY, limit=1_000_000)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (policy(TPM), True),
        (policy(DAY), True),
        (policy(replace(TPM, algorithm=Algorithm.SLIDING)), False),
        (policy(replace(TPM, algorithm=Algorithm.BUCKET)), False),
        (policy(Rule(dimension=Dimension.CONCURRENT, limit=10_000)), False),
        (policy(Rule(dimension=Dimension.INPUT_TPM, limit=1_000_000)), False),
        (policy(Rule(dimension=Dimension.COST_MICROS_PER_DAY, limit=10**9)), False),
        (policy(TPM, mode=Mode.SHADOW), False),
        (policy(TPM, on_exceed=OnExceed.RECORD), False),
        (policy(TPM, across_roots=True), False),
    ],
)
async def test_only_sums_of_minutes_and_periods_are_sliced(
    make: Callable[..., Worker],
    inspect: Inspector,
    redis_client: redis.Redis,
    made: LimitPolicy,
    expected: bool,
) -> None:
    views, policies = Views(), view_of(made)
    version = views.learn(policies).version
    text = to_json(policies)
    assert version == version_of(text)
    redis_client.hset(keys.config(ROOT), mapping={"status": 1, "version": version, "view": text})
    worker = make(views=views)
    for _ in range(40):
        assert isinstance(await worker.ask(), Admitted)
        await asyncio.sleep(0.002)
    assert any(one.slice_id for one in worker.admitted) is expected
    count = len(worker.admitted)
    await worker.keeper.close(timeout_seconds=5)
    spent = await worker.end_all()
    assert inspect.open() == 0
    if expected:
        (counter,) = [
            key for key in redis_client.scan_iter() if key.startswith(("rate:", "quota:"))
        ]
        kind = redis_client.type(counter)
        value = (
            redis_client.get(counter) if kind == "string" else redis_client.hget(counter, "used")
        )
        assert int(str(value)) == spent == count * 30


async def test_a_slice_that_redis_forgot_costs_nobody_anything(
    worker: Worker, inspect: Inspector, redis_client: redis.Redis
) -> None:
    """Redis lost its memory: limits are learned anew, and ends still find their way."""
    await worker.ask_until_local()
    redis_client.flushdb()
    inspect.cache(rpm=100_000, tpm=1_000_000)
    await worker.keeper.close(timeout_seconds=5)
    assert worker.held[-1] == 0
    await worker.end_all()
    assert inspect.open() == 0


def test_never_with_strict_estimates() -> None:
    unused: Any = None
    with pytest.raises(ValueError, match="strict"):
        LocalReserver(
            store=unused,
            limits=unused,
            views=unused,
            estimate=EstimatePlan(mode=EstimateMode.STRICT),
            clock=unused,
            keeper=unused,
            plan=PLAN,
        )


async def test_what_the_history_says_is_reserved(
    worker: Worker, inspect: Inspector, redis_client: redis.Redis
) -> None:
    redis_client.hset(
        keys.output_prefix(ROOT) + inspect.minute(1), mapping={"count": 2, "output_tokens": 90}
    )
    wait_for_quiet_minute(redis_client)
    local = await worker.ask_until_local()
    assert local.reserved_tokens == 10 + 45
    capped = worker.reserver.admit(Attempt(request(cap=7), DESCRIPTOR))
    assert capped is not None
    assert capped.reserved_tokens == 17
    pictures = replace(request(), skips_history=True, reservation_id=new_reservation_id())
    given = worker.reserver.admit(Attempt(pictures, DESCRIPTOR))
    assert given is not None
    assert given.reserved_tokens == RESERVE
