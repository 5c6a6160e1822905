"""The reserve call with its cold paths, and across slots: taken everywhere, or nowhere."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from extproc.core.buckets import Unit
from extproc.core.errors import StoreUnavailableError
from extproc.core.estimates import EstimateMode, EstimatePlan
from extproc.core.limits import ServiceLimit
from extproc.core.policies import (
    Descriptor,
    Dimension,
    LimitPolicy,
    Mode,
    PolicySet,
    Rule,
    Scope,
)
from extproc.core.ports import LimitLookup
from extproc.core.reservations import (
    Admitted,
    Conflict,
    IdConflict,
    LimitsMissing,
    LimitsStale,
    Refusal,
    Rejected,
    ReserveRequest,
    ServiceRefused,
    ServiceState,
    StoreVerdict,
    Unpriced,
    WindowView,
)
from extproc.core.reserving import Attempt, Reserver
from extproc.core.views import to_json, version_of
from extproc.stores.views import Views
from tests.support.fakes import ListedLimits, RecordingStore, admitted

NOW = datetime(2026, 11, 30, 9, tzinfo=UTC)
LIMIT = ServiceLimit(service_id="acme", rpm=1, tpm=1)
REQUEST = ReserveRequest(
    reservation_id="r1",
    root="acme",
    input_tokens=5,
    output_cap_tokens=None,
    default_output_tokens=10,
    deadline_ms=1000,
)


def policy(name: str, scope: Scope, value: str, *, across: bool = False) -> LimitPolicy:
    return LimitPolicy(
        name=name,
        version=1,
        scope=scope,
        value=value,
        rules=(Rule(dimension=Dimension.RPM, limit=5),),
        across_roots=across,
        effective_from=datetime(2026, 1, 1, tzinfo=UTC),
    )


def policies(*found: LimitPolicy) -> PolicySet:
    return PolicySet(root="acme", service=None, policies=found)


OWN = policies(policy("own", Scope.USER, "alice"))
SHARED = policies(
    policy("own", Scope.USER, "alice"),
    policy("ceiling", Scope.PROVIDER, "openai", across=True),
)
ACROSS = "across:provider:openai"


class Bench:
    def __init__(self, store: RecordingStore, limits: ListedLimits | None = None) -> None:
        self.store = store
        self.views = Views()
        self.limits = limits or ListedLimits()
        self.attempt = Attempt(
            REQUEST,
            Descriptor(
                root="acme",
                values={Scope.USER: "alice", Scope.PROVIDER: "openai"},
                requested_model="gpt-4o",
            ),
        )
        self.reserver = Reserver(
            store=store,
            limits=self.limits,
            views=self.views,
            estimate=EstimatePlan(mode=EstimateMode.QUANTILE),
            clock=lambda: NOW,
        )

    async def reserve(self) -> object:
        return await self.reserver.reserve(self.attempt)


def rejected(root: str) -> Rejected:
    view = WindowView(limit=5, remaining=0, reset_ms=100)
    return Rejected(
        root=root,
        refused_by="ceiling/rpm",
        requested_tokens=15,
        requests=view,
        tokens=None,
        retry_after_ms=100,
    )


async def test_a_simple_root_is_asked_once_by_the_mean() -> None:
    bench = Bench(RecordingStore())
    assert isinstance(await bench.reserve(), Admitted)
    (asked,) = bench.store.reserved
    assert (asked.version, asked.buckets) == ("", ())
    assert asked.estimate.mode is EstimateMode.MEAN


async def test_a_newer_view_in_redis_is_taken_and_asked_with() -> None:
    view = to_json(OWN)
    bench = Bench(RecordingStore(verdicts=[LimitsStale(version_of(view), view)]))
    assert isinstance(await bench.reserve(), Admitted)
    second = bench.store.reserved[1]
    assert second.version == version_of(view)
    assert [bucket.label for bucket in second.buckets] == ["own/rpm"]
    assert second.estimate.mode is EstimateMode.QUANTILE
    assert bench.limits.asked == []


async def test_policies_that_ended_make_the_root_simple_again() -> None:
    bench = Bench(RecordingStore(verdicts=[LimitsStale("", "")]))
    bench.views.learn(OWN)
    assert isinstance(await bench.reserve(), Admitted)
    assert [request.version != "" for request in bench.store.reserved] == [True, False]


@pytest.mark.parametrize("cached", [True, False])
async def test_missing_limits_are_loaded_and_pinned_only_if_they_could_not_be_cached(
    cached: bool,
) -> None:
    limits = ListedLimits([LimitLookup(LIMIT, cached, OWN)])
    bench = Bench(RecordingStore(verdicts=[LimitsMissing()]), limits)
    assert isinstance(await bench.reserve(), Admitted)
    second = bench.store.reserved[1]
    assert second.is_pinned is not cached
    assert second.buckets


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (LimitLookup(None, True), ServiceState.UNKNOWN),
        (
            LimitLookup(ServiceLimit(service_id="acme", rpm=1, tpm=1, enabled=False), True, OWN),
            ServiceState.DISABLED,
        ),
    ],
)
async def test_unknown_and_disabled_roots_are_refused(
    found: LimitLookup, state: ServiceState
) -> None:
    bench = Bench(RecordingStore(verdicts=[LimitsMissing()]), ListedLimits([found]))
    assert await bench.reserve() == ServiceRefused(state)


async def test_limits_that_change_without_end_do_not_hold_a_request_for_ever() -> None:
    view = to_json(OWN)
    stale = LimitsStale(version_of(view), view)
    bench = Bench(RecordingStore(verdicts=[stale] * 50))
    with pytest.raises(StoreUnavailableError, match="faster than they load"):
        await bench.reserve()


async def test_other_slots_are_asked_after_the_own_one() -> None:
    bench = Bench(RecordingStore())
    bench.views.learn(SHARED)
    verdict = await bench.reserve()
    assert isinstance(verdict, Admitted)
    assert [request.root for request in bench.store.reserved] == ["acme", ACROSS]
    assert bench.attempt.roots == ["acme", ACROSS]
    assert bench.store.released == []


async def test_a_refusal_of_another_slot_undoes_what_the_own_one_took() -> None:
    bench = Bench(RecordingStore(verdicts=[admitted(REQUEST), rejected(ACROSS)]))
    bench.views.learn(SHARED)
    verdict = await bench.reserve()
    assert isinstance(verdict, Rejected)
    (undone,) = bench.store.released
    assert (undone.root, undone.reservation_id, undone.undo) == ("acme", "r1", True)
    assert not undone.follows
    assert verdict.root == "acme"
    assert bench.attempt.is_refused


async def test_every_root_is_asked_for_what_the_own_one_has_estimated() -> None:
    bench = Bench(RecordingStore())
    bench.views.learn(SHARED)
    await bench.reserve()
    own, other = bench.store.reserved
    assert own.other_roots == (ACROSS,)
    assert other.other_roots == ()
    assert other.estimate.mode is EstimateMode.GIVEN
    assert other.default_output_tokens == 10
    assert (other.idempotency_key, other.owner) == ("", own.owner)


class SlowStore(RecordingStore):
    """Loses every reply; who asks again waits."""

    async def reserve(self, request: ReserveRequest) -> StoreVerdict:
        self.reserved.append(request)
        if self.reserved.count(request) > 1:
            await asyncio.Event().wait()
        raise StoreUnavailableError("redis", "late", transient=True, maybe_applied=True)


async def test_a_slow_redis_is_not_asked_twice_by_everyone() -> None:
    store = SlowStore()
    bench = Bench(store)
    attempts = [
        asyncio.create_task(
            bench.reserver.reserve(
                Attempt(replace(REQUEST, reservation_id=f"r{number}"), bench.attempt.descriptor)
            )
        )
        for number in range(100)
    ]
    done, waiting = await asyncio.wait(attempts, timeout=0.2)
    assert (len(done), len(waiting)) == (100 - 64, 64)
    assert all(isinstance(task.exception(), StoreUnavailableError) for task in done)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize("what", [Conflict.IN_FLIGHT, Conflict.KEY_REUSED])
async def test_a_key_in_use_is_a_decision(what: Conflict) -> None:
    bench = Bench(RecordingStore(verdicts=[IdConflict(what)]))
    assert await bench.reserve() == IdConflict(what)


async def test_a_failure_between_the_slots_leaves_their_names_to_whoever_cleans_up() -> None:
    lost = StoreUnavailableError("redis", "gone", transient=True)
    bench = Bench(RecordingStore(verdicts=[admitted(REQUEST), lost]))
    bench.views.learn(SHARED)
    with pytest.raises(StoreUnavailableError):
        await bench.reserve()
    assert bench.attempt.roots == ["acme", ACROSS]


@pytest.mark.parametrize(
    "text", ['{"format":99}', "", "[" * 20_000, '{"a":' * 20_000, "\udcff", '{"policies":"x"}']
)
async def test_a_view_that_is_not_understood_is_left_to_sql(text: str) -> None:
    """Of a newer release, or spoilt. It is not compared then: SQL's word stands for one request."""
    limits = ListedLimits([LimitLookup(LIMIT, False, OWN)] * 2)
    stale = LimitsStale("0" * 16, text)
    bench = Bench(RecordingStore(verdicts=[stale]), limits)
    assert isinstance(await bench.reserve(), Admitted)
    first, second = bench.store.reserved
    assert (first.is_pinned, second.is_pinned) == (False, True)
    assert [bucket.label for bucket in second.buckets] == ["own/rpm"]
    bench.store.verdicts = [stale]
    assert isinstance(await bench.reserve(), Admitted)
    assert bench.store.reserved[-1].is_pinned


async def test_rows_that_cannot_be_read_are_no_decision() -> None:
    bad = StoreUnavailableError("policies", "limit_policy id 5", transient=False)
    bench = Bench(RecordingStore(verdicts=[LimitsMissing()]), ListedLimits([bad]))
    with pytest.raises(StoreUnavailableError, match="id 5"):
        await bench.reserve()


async def test_an_id_in_use_by_somebody_else_is_no_decision() -> None:
    bench = Bench(RecordingStore(verdicts=[IdConflict(Conflict.OWNER)]))
    with pytest.raises(StoreUnavailableError, match="in use"):
        await bench.reserve()


def _costly(*, shadow: bool = False) -> PolicySet:
    rule = Rule(dimension=Dimension.COST_MICROS_PER_DAY, limit=500)
    budget = replace(policy("budget", Scope.USER, "alice"), rules=(rule,))
    return policies(replace(budget, mode=Mode.SHADOW) if shadow else budget)


@pytest.mark.parametrize(("is_priced", "limit"), [(True, 500), (False, 0)])
async def test_a_model_without_a_price_meets_limits_of_cost_that_admit_nothing(
    is_priced: bool, limit: int
) -> None:
    bench = Bench(RecordingStore())
    bench.views.learn(_costly())
    bench.attempt.request = replace(REQUEST, is_priced=is_priced)
    await bench.reserve()
    assert [bucket.limit for bucket in bench.store.reserved[0].buckets] == [limit]


async def test_a_shadow_limit_of_cost_needs_no_price() -> None:
    bench = Bench(RecordingStore())
    bench.views.learn(_costly(shadow=True))
    bench.attempt.request = replace(REQUEST, is_priced=False)
    await bench.reserve()
    assert [bucket.limit for bucket in bench.store.reserved[0].buckets] == [500]


async def test_what_refused_for_want_of_a_price_is_named() -> None:
    label = "budget/cost_micros_per_day"
    refusal = Refusal(label=label, unit=Unit.COST, limit=0, remaining=0, retry_after_ms=None)
    verdict = replace(rejected("acme"), refused_by=label, refusals=(refusal,))
    bench = Bench(RecordingStore(verdicts=[verdict, verdict]))
    bench.views.learn(_costly())
    bench.attempt.request = replace(REQUEST, is_priced=False)
    assert await bench.reserve() == Unpriced((label,))
    bench.attempt.request = REQUEST
    assert await bench.reserve() == verdict


async def test_a_call_whose_reply_was_lost_may_not_arrive_after_a_refusal() -> None:
    lost = StoreUnavailableError("redis", "late", transient=True, maybe_applied=True)
    bench = Bench(RecordingStore(verdicts=[lost, rejected("acme")]))
    assert isinstance(await bench.reserve(), Rejected)
    (mark,) = bench.store.released
    assert (mark.root, mark.reservation_id, mark.undo) == ("acme", "r1", True)


async def test_a_refusal_without_a_lost_reply_costs_no_second_call() -> None:
    bench = Bench(RecordingStore(verdicts=[rejected("acme")]))
    await bench.reserve()
    assert bench.store.released == []
