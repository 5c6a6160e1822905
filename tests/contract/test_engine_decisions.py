"""Decisions over many counters: all or none, every refusal named, shadows, versions, ids."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
import redis

from extproc.core.buckets import Bucket, Unit
from extproc.core.errors import StoreUnavailableError
from extproc.core.limits import MAX_LIMIT, ServiceLimit
from extproc.core.reservations import (
    Admitted,
    Conflict,
    IdConflict,
    LimitsMissing,
    LimitsStale,
    Outcome,
    Rejected,
    ReserveRequest,
    ServiceRefused,
    ServiceState,
)
from extproc.stores import keys
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.engine import (
    STRICT,
    VERSION,
    Counters,
    admit,
    asking,
    cache_view,
    minute,
    quota,
    reject,
    sliding,
    slots,
    token_bucket,
    twelve_limits,
)
from tests.support.reservations import ROOT, Inspector, request, settlement

ONE_OF_EACH = {
    "minute": minute("tight", Unit.TOTAL, 100),
    "sliding": sliding("tight", Unit.TOTAL, 100, window_ms=60_000),
    "bucket": token_bucket("tight", Unit.TOTAL, 100, capacity=100),
    "slots": slots("tight", 1),
    "quota": quota("tight", Unit.TOTAL, 100),
}


@pytest.mark.parametrize("kind", ONE_OF_EACH)
@pytest.mark.parametrize("last", [True, False])
async def test_one_refusal_leaves_all_others_untouched(
    store: RedisReservationStore, counters: Counters, kind: str, last: bool
) -> None:
    limits = [*twelve_limits()[:10], ONE_OF_EACH[kind]]
    if not last:
        limits.reverse()
    await admit(store, *limits, rid="r1", input_tokens=60, cap=0)
    before = counters.state()
    refused = await reject(store, *limits, rid="r2", input_tokens=60, cap=0)
    assert [refusal.label for refusal in refused.refusals] == ["tight"]
    assert refused.refused_by == "tight"
    assert counters.state() == before
    assert counters.client.exists(keys.reservation(ROOT, "r2")) == 0
    assert counters.client.zcard(keys.pending(ROOT)) == 1


async def test_every_refusal_is_named_and_the_longest_binds(
    store: RedisReservationStore, counters: Counters
) -> None:
    limits = [
        slots("streams", 1),
        minute("tpm", Unit.TOTAL, 100),
        minute("fits", Unit.TOTAL, 1000),
        quota("day", Unit.TOTAL, 100),
        token_bucket("burst", Unit.TOTAL, 100, capacity=100),
    ]
    await admit(store, *limits, input_tokens=100, cap=0)
    refused = await reject(store, *limits, input_tokens=50, cap=0)
    retry = {refusal.label: refusal.retry_after_ms for refusal in refused.refusals}
    assert list(retry) == ["streams", "tpm", "day", "burst"]
    assert None not in retry.values()
    assert refused.refused_by == max(retry, key=lambda label: retry[label] or 0)
    assert refused.retry_after_ms == max(value or 0 for value in retry.values())
    assert [refusal.remaining for refusal in refused.refusals] == [0, 0, 0, 0]
    never = await reject(store, *limits, input_tokens=101, cap=0)
    assert (never.refused_by, never.retry_after_ms) == ("tpm", None)
    assert (refused.requests, never.tokens and never.tokens.limit) == (None, 100)


@pytest.mark.parametrize(
    ("limit", "values"),
    [
        (minute("x", Unit.REQUESTS, 0), {}),
        (slots("x", 0), {}),
        (quota("x", Unit.COST, 0), {}),
        (token_bucket("x", Unit.TOTAL, 0, capacity=100), {"input_tokens": 0, "cap": 0}),
        (sliding("x", Unit.INPUT, 9, window_ms=1000), {}),
        (token_bucket("x", Unit.INPUT, 1000, capacity=9), {}),
        (minute("x", Unit.OUTPUT, 50), {"cap": 51, "estimate": STRICT}),
        (quota("x", Unit.COST, 20), {"input_price": 2_000_001}),
    ],
)
async def test_what_never_fits_says_so(
    store: RedisReservationStore, counters: Counters, limit: Bucket, values: dict[str, object]
) -> None:
    refused = await reject(store, minute("other", Unit.REQUESTS, 10), limit, **values)
    assert (refused.refused_by, refused.retry_after_ms) == ("x", None)
    assert counters.state() == {}


@pytest.mark.parametrize(
    ("limit", "reserved"),
    [
        (minute("x", Unit.TOTAL, 50), 50),
        (minute("x", Unit.OUTPUT, 50), 60),
        (token_bucket("x", Unit.TOTAL, 1000, capacity=30), 30),
        (quota("x", Unit.TOTAL, 10), 10),
        (quota("x", Unit.COST, 100), 10 + 40),  # 20 for the input, so 80 for output at 2 a token
        (minute("x", Unit.TOTAL, 50, enforced=False), 110),
        (minute("x", Unit.TOTAL, 50, refuses=False), 110),
    ],
)
async def test_a_guess_never_refuses_what_could_fit_alone(
    store: RedisReservationStore, counters: Counters, limit: Bucket, reserved: int
) -> None:
    prices = {"input_price": 2_000_000, "output_price": 2_000_000}
    assert (await admit(store, limit, **prices)).reserved_tokens == reserved


async def test_money_is_rounded_up_by_class_and_never_overflows(
    store: RedisReservationStore, counters: Counters
) -> None:
    limit = quota("x", Unit.COST, MAX_LIMIT)
    verdict = await admit(
        store, limit, input_tokens=1, cap=1, input_price=1, output_price=1_000_001
    )
    assert verdict.reserved_cost_micros == 1 + 2
    dear = {"input_price": 2**32, "output_price": 2**32}
    refused = await reject(store, limit, input_tokens=MAX_LIMIT, cap=MAX_LIMIT, **dear)
    assert refused.retry_after_ms is None
    limit = quota("y", Unit.COST, MAX_LIMIT)
    clipped = await admit(store, limit, input_tokens=0, default=MAX_LIMIT, **dear)
    assert MAX_LIMIT - 5000 < clipped.reserved_cost_micros <= MAX_LIMIT
    with pytest.raises(ValueError, match="output_price"):
        asking(limit, output_price=2**32 + 1)


async def test_shadow_counts_and_tells_and_never_refuses(
    store: RedisReservationStore, counters: Counters, inspect: Inspector
) -> None:
    trial = minute("trial", Unit.TOTAL, 150, enforced=False)
    limits = [minute("real", Unit.TOTAL, 300), trial]
    first = await admit(store, *limits, rid="r1", input_tokens=100, cap=0)
    assert first.shadow_refusals == ()
    second = await admit(store, *limits, rid="r2", input_tokens=100, cap=0)
    assert second.shadow_refusals == ("trial",)
    assert [state.remaining for state in second.buckets] == [100, -50]
    assert second.tokens is not None
    assert second.tokens.limit == 300
    again = await admit(store, *limits, rid="r2", input_tokens=100, cap=0)
    assert again.shadow_refusals == ("trial",)
    refused = await reject(store, *limits, input_tokens=101, cap=0)
    assert (refused.refused_by, refused.shadow_refusals) == ("real", ("trial",))
    await store.settle(settlement("r2", 1, 1))
    assert counters.state()[trial.key + inspect.minute()] == "102"


async def test_a_limit_that_only_records_shows_the_overage(
    store: RedisReservationStore, counters: Counters, inspect: Inspector
) -> None:
    soft = quota("soft", Unit.TOTAL, 100, refuses=False)
    for _ in range(2):
        verdict = await admit(store, soft, input_tokens=80, cap=0)
        assert verdict.shadow_refusals == ()
    assert verdict.buckets[0].remaining == -60
    assert (verdict.requests, verdict.tokens) == (None, None)
    assert counters.quota(soft, inspect.minute()[:8]) == (0, 160)


async def test_an_old_view_decides_nothing(
    store: RedisReservationStore, counters: Counters
) -> None:
    limit = minute("x", Unit.TOTAL, 1000)
    stale = LimitsStale(VERSION, '{"view":1}')
    assert await store.reserve(asking(limit, version="f" * 16)) == stale
    assert await store.reserve(request()) == stale
    counters.client.hset(keys.config(ROOT), "status", 0)
    assert await store.reserve(asking(limit)) == ServiceRefused(ServiceState.DISABLED)
    counters.client.delete(keys.config(ROOT))
    assert await store.reserve(asking(limit)) == LimitsMissing()
    counters.client.hset(keys.config(ROOT), "lease", "t")
    assert await store.reserve(asking(limit)) == LimitsMissing()
    Inspector(counters.client).cache(rpm=1, tpm=1)
    assert await store.reserve(asking(limit)) == LimitsStale("", "")
    counters.client.hset(keys.config(ROOT), "status", "unknown")
    assert await store.reserve(asking(limit)) == ServiceRefused(ServiceState.UNKNOWN)
    assert counters.state() == {}


@pytest.mark.parametrize("half", ["version", "view"])
@pytest.mark.parametrize("simple", [True, False])
async def test_half_of_a_view_is_as_good_as_none(
    store: RedisReservationStore, redis_client: redis.Redis, half: str, simple: bool
) -> None:
    config = keys.config(ROOT)
    for is_empty in (True, False):
        cache_view(redis_client)
        if simple:
            redis_client.hset(config, mapping={"rpm": 10, "tpm": 1000})
        redis_client.hdel(config, half)
        if is_empty:
            redis_client.hset(config, half, "")
        assert await store.reserve(request()) == LimitsMissing()
        other = asking(minute("x", Unit.TOTAL, 1000), version="f" * 16)
        assert await store.reserve(other) == LimitsMissing()


async def test_a_pinned_view_needs_no_cache_and_registers_its_root(
    store: RedisReservationStore, counters: Counters
) -> None:
    counters.client.delete(keys.config(ROOT))
    await admit(store, minute("x", Unit.TOTAL, 1000), is_pinned=True)
    assert await store.roots() == [ROOT]


async def test_a_view_without_limits_for_this_request_admits_it(
    store: RedisReservationStore, counters: Counters
) -> None:
    verdict = await admit(store, rid="r1")
    assert (verdict.buckets, verdict.reserved_tokens) == ((), 110)
    await store.settle(settlement("r1"))
    assert counters.state() == {}


def _policy(**values: object) -> ReserveRequest:
    return asking(minute("x", Unit.TOTAL, 1000), **values)


def _simple(**values: object) -> ReserveRequest:
    return asking(version="", limit=ServiceLimit(service_id=ROOT, rpm=9, tpm=1000), **values)


@pytest.mark.parametrize("ask", [_policy, _simple])
async def test_an_id_belongs_to_its_owner_and_its_request(
    store: RedisReservationStore, counters: Counters, ask: Callable[..., ReserveRequest]
) -> None:
    who = {"rid": "r1", "owner": "me", "request_hash": "h1"}
    first = await store.reserve(ask(**who))
    assert isinstance(first, Admitted)
    taken = counters.state()
    again = await store.reserve(ask(**who))
    assert isinstance(again, Admitted)
    assert (again.reserved_tokens, again.minute) == (first.reserved_tokens, first.minute)
    assert again.tokens is not None
    assert first.tokens is not None
    assert again.tokens.remaining == first.tokens.remaining
    assert await store.reserve(ask(**{**who, "owner": "you"})) == IdConflict(Conflict.OWNER)
    assert await store.reserve(ask(**{**who, "owner": ""})) == IdConflict(Conflict.OWNER)
    assert await store.reserve(ask(**{**who, "request_hash": "h2"})) == IdConflict(Conflict.REQUEST)
    assert counters.state() == taken
    await store.release(settlement("r1"))
    with pytest.raises(StoreUnavailableError):
        await store.reserve(ask(**who))


async def test_ids_of_other_roots_are_other_ids(
    store: RedisReservationStore, counters: Counters
) -> None:
    other = minute("x", Unit.TOTAL, 1000, root="other")
    cache_view(counters.client, root="other")
    await admit(store, minute("x", Unit.TOTAL, 1000), rid="same", owner="a", request_hash="1")
    await admit(store, other, root="other", rid="same", owner="b", request_hash="2")
    await store.release(settlement("same", root="other"))
    assert sorted(counters.state().values()) == ["0", "110"]
    with pytest.raises(StoreUnavailableError, match="not a counter"):
        await store.reserve(asking(other))


async def test_a_release_that_overtakes_its_reserve_leaves_nothing_to_take(
    store: RedisReservationStore, counters: Counters
) -> None:
    limits = twelve_limits()
    await store.release(settlement("r1"))
    with pytest.raises(StoreUnavailableError):
        await store.reserve(asking(*limits, rid="r1", owner="me", request_hash="h"))
    assert counters.state() == {}


@pytest.mark.parametrize("ask", [_policy, _simple])
async def test_undo_gives_back_requests_too_and_once(
    store: RedisReservationStore,
    counters: Counters,
    inspect: Inspector,
    ask: Callable[..., ReserveRequest],
) -> None:
    simple = ask is _simple
    limits = [
        minute("rpm", Unit.REQUESTS, 10),
        sliding("w", Unit.REQUESTS, 10, window_ms=60_000),
        quota("q", Unit.REQUESTS, 10),
        token_bucket("b", Unit.REQUESTS, 60, capacity=10),
        slots("s", 3),
    ]
    for rid in ("r1", "r2"):
        verdict = await store.reserve(_simple(rid=rid) if simple else asking(*limits, rid=rid))
        assert isinstance(verdict, Admitted)
    undo = replace(settlement("r2", outcome=Outcome.NOT_FORWARDED), undo=True)
    for _ in range(2):
        await store.release(undo)
    if simple:
        assert inspect.used() == (1, 110)
        return
    name, today = inspect.minute(), inspect.minute()[:8]
    state = counters.state()
    assert state[limits[0].key + name] == "1"
    assert state[limits[1].key] == ["r1"]
    assert counters.quota(limits[2], today) == (0, 1)
    assert int(state[limits[3].key]["level"]) >= 9_000_000
    assert state[limits[4].key] == ["r1"]
    # Without undo the request stays counted.
    await store.release(settlement("r1"))
    state = counters.state()
    assert (state[limits[0].key + name], state[limits[1].key]) == ("1", ["r1"])
    assert counters.quota(limits[2], today) == (1, 0)
    assert limits[4].key not in state


async def test_parallel_reserves_admit_exactly_what_fits(
    store: RedisReservationStore, counters: Counters
) -> None:
    limits = [*twelve_limits(), quota("tight", Unit.TOTAL, 37 * 110 + 109)]
    verdicts = await asyncio.gather(*(store.reserve(asking(*limits)) for _ in range(200)))
    assert sum(isinstance(verdict, Admitted) for verdict in verdicts) == 37
    assert sum(isinstance(verdict, Rejected) for verdict in verdicts) == 163


async def test_two_limits_may_not_share_a_counter(
    store: RedisReservationStore, redis_client: redis.Redis
) -> None:
    cache_view(redis_client)
    limit = minute("x", Unit.TOTAL, 10)
    with pytest.raises(StoreUnavailableError, match="share one counter"):
        await store.reserve(asking(limit, limit))
