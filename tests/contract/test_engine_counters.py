"""Every kind of counter through reserve, settle and release, at the edges of its time."""

from datetime import UTC, datetime

import pytest
import redis

from extproc.core.buckets import Bucket, Period, Unit
from extproc.core.reservations import Knowledge
from extproc.stores import keys
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.scripts import load_script
from tests.support.engine import (
    Counters,
    admit,
    minute,
    quota,
    reject,
    sliding,
    slots,
    token_bucket,
)
from tests.support.reservations import ROOT, Inspector, settlement

DAY_MS = 86_400_000


def now_ms(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


async def test_minute_counters_take_their_unit_and_settle_to_it(
    store: RedisReservationStore, counters: Counters, inspect: Inspector
) -> None:
    limits = [
        minute("r", Unit.REQUESTS, 10),
        minute("i", Unit.INPUT, 1000),
        minute("o", Unit.OUTPUT, 1000),
        minute("t", Unit.TOTAL, 1000),
        minute("c", Unit.COST, 1000),
    ]
    prices = {"input_price": 1_000_000, "output_price": 2_500_000}
    verdict = await admit(store, *limits, rid="r1", **prices)
    assert [state.remaining for state in verdict.buckets] == [9, 990, 900, 890, 740]
    assert verdict.reserved_cost_micros == 10 + 250
    await store.settle(settlement("r1", 7, 3))
    name = inspect.minute()
    found = counters.state()
    used = {limit.label: found[limit.key + name] for limit in limits}
    assert used == {"r": "1", "i": "7", "o": "3", "t": "10", "c": "15"}
    assert counters.client.ttl(limits[0].key + name) <= 120


async def test_a_minute_counter_is_that_of_the_admission(
    store: RedisReservationStore, counters: Counters, inspect: Inspector
) -> None:
    limit = minute("t", Unit.TOTAL, 1000)
    await admit(store, limit, rid="r1")
    now, before = inspect.minute(), inspect.minute(back=1)
    counters.client.hset(keys.reservation(ROOT, "r1"), "minute", before)
    counters.client.rename(limit.key + now, limit.key + before)
    await admit(store, limit, rid="r2")
    await store.settle(settlement("r1", 10, 5))
    assert counters.state() == {limit.key + before: "15", limit.key + now: "110"}
    counters.client.delete(limit.key + now)
    await store.settle(settlement("r2", 10, 5))
    assert counters.state() == {limit.key + before: "15"}


async def test_a_sliding_window_of_requests_frees_exactly_what_left_it(
    store: RedisReservationStore, counters: Counters
) -> None:
    limit = sliding("w", Unit.REQUESTS, 2, window_ms=60_000)
    await admit(store, limit, rid="r1")
    counters.age(limit.key, 40_000)
    await admit(store, limit, rid="r2")
    refused = await reject(store, limit)
    assert refused.refusals[0].retry_after_ms is not None
    assert 19_000 < refused.refusals[0].retry_after_ms <= 20_000
    counters.age(limit.key, refused.refusals[0].retry_after_ms)
    await admit(store, limit, rid="r3")
    assert counters.state() == {limit.key: ["r2", "r3"]}
    # Ends change nothing about requests, an undo does.
    await store.settle(settlement("r2"))
    await store.release(settlement("r3"))
    assert counters.state() == {limit.key: ["r2", "r3"]}


async def test_a_sliding_window_of_tokens_is_exact_and_is_corrected_while_it_lasts(
    store: RedisReservationStore, counters: Counters
) -> None:
    limit = sliding("w", Unit.TOTAL, 300, window_ms=60_000)
    amounts = keys.amounts(limit.key)
    await admit(store, limit, rid="r1")
    counters.age(limit.key, 30_000)
    await admit(store, limit, rid="r2", input_tokens=20, cap=0)
    counters.age(limit.key, 10_000)
    await admit(store, limit, rid="r3", input_tokens=100, cap=0)
    assert counters.state()[amounts]["sum"] == "230"
    # 71 needs one more than what is free, so the first 110; 200 needs the first two.
    refused = await reject(store, limit, input_tokens=71, cap=0)
    assert 19_000 < (refused.retry_after_ms or 0) <= 20_000
    refused = await reject(store, limit, input_tokens=200, cap=0)
    assert 49_000 < (refused.retry_after_ms or 0) <= 50_000
    await store.settle(settlement("r2", 20, 35))
    assert counters.state()[amounts] == {"r1": "110", "r2": "55", "r3": "100", "sum": "265"}
    counters.age(limit.key, 20_000)
    await admit(store, limit, rid="r4", input_tokens=145, cap=0)
    assert counters.state()[amounts] == {"r2": "55", "r3": "100", "r4": "145", "sum": "300"}
    await store.settle(settlement("r1", 10, 5000))
    assert counters.state()[amounts]["sum"] == "300"
    assert counters.without_ttl() == []


async def test_a_token_bucket_refills_with_time_up_to_its_capacity(
    store: RedisReservationStore, counters: Counters
) -> None:
    limit = token_bucket("b", Unit.TOTAL, 60, capacity=100)
    first = await admit(store, limit, input_tokens=90, cap=0)
    assert first.buckets[0].remaining == 10
    assert 89_000 < first.buckets[0].reset_ms <= 90_000
    refused = await reject(store, limit, input_tokens=40, cap=0)
    assert 29_000 < (refused.retry_after_ms or 0) <= 30_000
    counters.age(limit.key, refused.retry_after_ms or 0)
    second = await admit(store, limit, input_tokens=40, cap=0)
    assert second.buckets[0].remaining == 0
    counters.age(limit.key, 10 * DAY_MS)
    full = await admit(store, limit, input_tokens=0, cap=0)
    assert (full.buckets[0].remaining, full.buckets[0].reset_ms) == (100, 0)


async def test_a_clock_that_goes_back_refills_no_token_bucket(
    store: RedisReservationStore, counters: Counters
) -> None:
    limit = token_bucket("b", Unit.TOTAL, 60, capacity=100)
    await admit(store, limit, input_tokens=90, cap=0)
    counters.age(limit.key, -60_000)
    stamp = counters.client.hget(limit.key, "at")
    verdict = await admit(store, limit, input_tokens=5, cap=0)
    assert verdict.buckets[0].remaining == 5
    assert counters.client.hget(limit.key, "at") == stamp


async def test_a_token_bucket_takes_debt_and_refunds_to_its_capacity(
    store: RedisReservationStore, counters: Counters
) -> None:
    limit = token_bucket("b", Unit.TOTAL, 60, capacity=100)
    await admit(store, limit, rid="r1", input_tokens=50, cap=0)
    await store.settle(settlement("r1", 50, 200))
    refused = await reject(store, limit, rid="r2", input_tokens=1, cap=0)
    assert refused.buckets[0].remaining in (-150, -149)
    assert 149_000 < (refused.retry_after_ms or 0) <= 151_000
    counters.age(limit.key, 170_000)
    await admit(store, limit, rid="r3", input_tokens=10, cap=0)
    counters.age(limit.key, 85_000)
    await store.release(settlement("r3"))
    assert counters.client.hget(limit.key, "level") == "100000000"
    left = (await admit(store, limit, input_tokens=0, cap=0)).buckets[0].remaining
    assert left == 100
    assert counters.without_ttl() == []


async def test_a_bucket_that_was_forgotten_is_not_made_by_a_correction(
    store: RedisReservationStore, counters: Counters
) -> None:
    limits = [
        token_bucket("b", Unit.TOTAL, 60, capacity=500),
        sliding("w", Unit.TOTAL, 500, window_ms=1000),
        quota("q", Unit.TOTAL, 500),
        slots("s", 3),
        minute("m", Unit.TOTAL, 500),
    ]
    await admit(store, *limits, rid="r1")
    for key in counters.state():
        counters.client.delete(key)
    await store.settle(settlement("r1", 10, 5))
    assert counters.state() == {}


async def test_slots_are_leases_that_end_renew_and_lapse(
    store: RedisReservationStore, counters: Counters
) -> None:
    limit = slots("s", 2)
    await admit(store, limit, rid="r1", deadline_ms=10_000)
    await admit(store, limit, rid="r2", deadline_ms=10_000)
    refused = await reject(store, limit, rid="r3")
    assert (refused.refused_by, refused.buckets[0].remaining) == ("s", 0)
    assert 0 < (refused.retry_after_ms or 0) <= 1000
    await store.settle(settlement("r1"))
    await admit(store, limit, rid="r4", deadline_ms=10_000)
    assert counters.state() == {limit.key: ["r2", "r4"]}

    assert await store.renew(ROOT, "r2", deadline_ms=60_000)
    assert not await store.renew(ROOT, "r1", deadline_ms=60_000)
    assert not await store.renew(ROOT, "nobody", deadline_ms=60_000)
    counters.age(limit.key, 20_000)
    counters.age(keys.pending(ROOT), 20_000)
    assert [o.reservation_id for o in await store.overdue(ROOT, at_most=9)] == ["r4"]
    await admit(store, limit, rid="r5")
    assert counters.state() == {limit.key: ["r2", "r5"]}
    await reject(store, limit, rid="r6")
    # A lease that has lapsed is held again by a stream that turns out to be there.
    assert await store.renew(ROOT, "r4", deadline_ms=60_000)
    refused = await reject(store, limit, rid="r6")
    assert refused.buckets[0].remaining == -1
    assert counters.without_ttl() == []


async def test_renewing_never_brings_a_deadline_forward(
    store: RedisReservationStore, counters: Counters
) -> None:
    limit = slots("s", 2)
    await admit(store, limit, rid="r1", deadline_ms=500_000)
    before = counters.client.zscore(keys.pending(ROOT), "r1")
    assert await store.renew(ROOT, "r1", deadline_ms=1000)
    assert counters.client.zscore(keys.pending(ROOT), "r1") == before
    assert counters.client.zscore(limit.key, "r1") == before
    assert counters.client.pttl(keys.reservation(ROOT, "r1")) > 500_000


async def test_a_quota_holds_and_then_uses(
    store: RedisReservationStore, counters: Counters, inspect: Inspector
) -> None:
    limit = quota("q", Unit.TOTAL, 1000)
    today = inspect.minute()[:8]
    verdict = await admit(store, limit, rid="r1")
    assert counters.quota(limit, today) == (0, 110)
    assert 0 < verdict.buckets[0].reset_ms <= DAY_MS
    ttl = counters.client.pttl(limit.key + today)
    assert ttl == pytest.approx(7 * DAY_MS + verdict.buckets[0].reset_ms, abs=2000)
    await store.settle(settlement("r1", 10, 5, knowledge=Knowledge.COUNTED))
    assert counters.quota(limit, today) == (15, 0)
    await store.settle(settlement("r1", 10, 7))
    assert counters.quota(limit, today) == (17, 0)
    await admit(store, limit, rid="r2")
    await store.release(settlement("r2"))
    assert counters.quota(limit, today) == (17, 0)
    refused = await reject(store, limit, input_tokens=990, cap=0)
    assert refused.retry_after_ms == pytest.approx(verdict.buckets[0].reset_ms, abs=5000)
    assert counters.client.pttl(limit.key + today) <= ttl


@pytest.mark.parametrize("when", ["2024-02-29T12:00", "2025-12-31T23:59", "2025-01-31T00:00"])
@pytest.mark.parametrize("period", [Period.DAY, Period.MONTH])
async def test_a_quota_settles_into_the_period_of_the_admission(
    store: RedisReservationStore, counters: Counters, period: Period, when: str
) -> None:
    limit = quota("q", Unit.TOTAL, 1000, period=period)
    await admit(store, limit, rid="r1")
    admitted = datetime.fromisoformat(when).replace(tzinfo=UTC)
    then = admitted.strftime("%Y%m%d" if period is Period.DAY else "%Y%m")
    (key,) = counters.state()
    counters.client.rename(key, limit.key + then)
    counters.client.hset(keys.reservation(ROOT, "r1"), "at", int(admitted.timestamp() * 1000))
    await admit(store, limit, rid="r2")
    await store.settle(settlement("r1", 10, 5))
    assert counters.quota(limit, then) == (15, 0)
    assert counters.client.hget(key, "held") == "110"


async def test_a_contract_cycle_has_its_own_name_and_end(
    store: RedisReservationStore, counters: Counters, redis_client: redis.Redis
) -> None:
    ends = now_ms(redis_client) + 50_000
    cycle: dict[str, Bucket] = {
        name: quota("q", Unit.COST, 500, period=Period.CYCLE, period_id=name, period_end_ms=ends)
        for name in ("c1", "c2")
    }
    price = {"output_price": 1_000_000}
    verdict = await admit(store, cycle["c1"], rid="r1", default=400, **price)
    assert 0 < verdict.buckets[0].reset_ms <= 50_000
    refused = await reject(store, cycle["c1"], cap=101, default=101, **price)
    assert refused.retry_after_ms == pytest.approx(50_000, abs=5000)
    await admit(store, cycle["c2"], rid="r2", default=400, **price)
    await store.settle(settlement("r1", 10, 33))
    assert counters.quota(cycle["c1"], "c1") == (33, 0)
    assert counters.quota(cycle["c1"], "c2") == (0, 400)
    assert counters.client.pttl(cycle["c1"].key + "c1") > 7 * DAY_MS


async def test_month_ends_are_those_of_the_calendar(redis_client: redis.Redis) -> None:
    source = load_script("settle").source
    source = source[: source.index("-- How a reservation ends")]
    for month in range(12 * 20):
        year, number = 2026 + month // 12, month % 12 + 1
        following = datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC)
        end = int(following.timestamp() * 1000)
        first = int(datetime(year, number, 1, tzinfo=UTC).timestamp() * 1000)
        found = redis_client.eval(
            source + "local t = {} for i = 1, #ARGV do t[i] = string.format('%.0f', "
            "period_end('m', tonumber(ARGV[i]))) end return t",
            0,
            first,
            end - 1,
        )
        assert found == [str(end), str(end)]
