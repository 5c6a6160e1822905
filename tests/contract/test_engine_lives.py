"""How long counters live: as long as they may be corrected. Periods; clocks that go back."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from extproc.core.buckets import Bucket, Period, Unit
from extproc.core.reservations import Knowledge, Settlement
from extproc.stores import keys
from extproc.stores.reservation_store import RedisReservationStore
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
HOUR_MS = 3_600_000
RECORD_SLACK_MS, OPEN_SLACK_MS = 900_000, 86_400_000
CYCLE_KEPT_MS = 90 * DAY_MS


def now_ms(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


def outlives_record(counters: Counters, limit: Bucket, rid: str = "r1") -> bool:
    """Both lives are cut in the same moment, so the rounding of the two looks is no matter."""
    record, counter = keys.reservation(ROOT, rid), limit.key
    script = "return {redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[2])}"
    lives: Any = counters.client.eval(script, 2, record, counter)
    return bool(0 < lives[0] <= lives[1])


async def test_a_token_bucket_does_not_forget_the_debt_of_a_long_answer(
    store: RedisReservationStore, counters: Counters
) -> None:
    """Full again after a minute, but its request may be corrected for much longer."""
    limit = token_bucket("b", Unit.TOTAL, 10, capacity=10)
    await admit(store, limit, rid="r1", input_tokens=5, cap=0, deadline_ms=HOUR_MS)
    assert counters.client.pttl(limit.key) > HOUR_MS + OPEN_SLACK_MS - 2000
    assert outlives_record(counters, limit)
    # A short request does not shorten it.
    await admit(store, limit, rid="r2", input_tokens=1, cap=0, deadline_ms=1000)
    assert outlives_record(counters, limit)
    counters.age(limit.key, HOUR_MS)
    await store.settle(settlement("r1", 5, 15))
    assert counters.client.hget(limit.key, "level") == "-5000000"
    refused = await reject(store, limit, input_tokens=1, cap=0)
    assert refused.buckets[0].remaining == -5
    counters.age(limit.key, 60_000)
    # Ten refilled, five owed: five are offered.
    assert (await admit(store, limit, input_tokens=5, cap=0)).buckets[0].remaining == 0
    assert counters.without_ttl() == []


@pytest.mark.parametrize("output", [0, 40], ids=["no change", "more"])
async def test_a_token_bucket_outlives_a_settlement_that_may_be_improved(
    store: RedisReservationStore, counters: Counters, output: int
) -> None:
    limit = token_bucket("b", Unit.TOTAL, 1000, capacity=100)
    await admit(store, limit, rid="r1", input_tokens=10, cap=0, deadline_ms=1000)
    # The reaper comes late, when both have little left.
    for key in (limit.key, keys.reservation(ROOT, "r1")):
        counters.client.pexpire(key, 20_000)
    await store.settle(settlement("r1", 10, output, knowledge=Knowledge.GUESSED))
    assert counters.client.pttl(limit.key) > RECORD_SLACK_MS - 2000
    assert outlives_record(counters, limit)
    await store.settle(settlement("r1", 10, 500))
    assert int(str(counters.client.hget(limit.key, "level"))) <= -400_000_000
    assert outlives_record(counters, limit)


async def test_a_renewed_request_keeps_what_it_took_from(
    store: RedisReservationStore, counters: Counters, inspect: Inspector
) -> None:
    limits = [token_bucket("b", Unit.TOTAL, 1000, capacity=100), quota("q", Unit.TOTAL, 500)]
    await admit(store, *limits, rid="r1", input_tokens=10, cap=0, deadline_ms=1000)
    day = limits[1].key + inspect.minute()[:8]
    counters.client.pexpire(day, HOUR_MS)
    assert await store.renew(ROOT, "r1", deadline_ms=2 * HOUR_MS)
    assert outlives_record(counters, limits[0])
    assert outlives_record(counters, replace(limits[1], key=day))
    # What is gone stays gone.
    counters.client.delete(limits[0].key, day)
    assert await store.renew(ROOT, "r1", deadline_ms=3 * HOUR_MS)
    assert counters.state() == {}


async def test_a_token_bucket_that_lost_its_life_gets_one_again(
    store: RedisReservationStore, counters: Counters
) -> None:
    limit = token_bucket("b", Unit.TOTAL, 1000, capacity=100)
    await admit(store, limit, rid="r1", input_tokens=10, cap=0)
    counters.client.persist(limit.key)
    await store.settle(settlement("r1", 10, 5))
    assert outlives_record(counters, limit)


def cycle(client: redis.Redis, *, days: int, limit: int = 500) -> Bucket:
    """A contract that began on a day whose name stays, and ends so many days from now."""
    ends = now_ms(client) + days * DAY_MS
    start = "20260101T000000"
    return quota("q", Unit.TOTAL, limit, period=Period.CYCLE, period_id=start, period_end_ms=ends)


@pytest.mark.parametrize("spent", [False, True], ids=["admitted", "refused"])
async def test_a_prolonged_cycle_prolongs_its_counter(
    store: RedisReservationStore, counters: Counters, spent: bool
) -> None:
    first = cycle(counters.client, days=1)
    key = first.key + first.period_id
    await admit(store, first, input_tokens=500 if spent else 10, cap=0)
    kept = counters.client.pttl(key)
    assert kept == pytest.approx(DAY_MS + CYCLE_KEPT_MS, abs=5000)
    longer = cycle(counters.client, days=100)
    if spent:
        # Who has spent a contract is only ever refused.
        await reject(store, longer, input_tokens=10, cap=0)
    else:
        await admit(store, longer, input_tokens=10, cap=0)
    assert counters.client.pttl(key) == pytest.approx(100 * DAY_MS + CYCLE_KEPT_MS, abs=5000)
    # A shortened one may still be looked at, and a refusal makes no key.
    await admit(store, first, input_tokens=0, cap=0)
    assert counters.client.pttl(key) == pytest.approx(100 * DAY_MS + CYCLE_KEPT_MS, abs=5000)
    counters.client.delete(key)
    await reject(store, longer, input_tokens=501, cap=0)
    assert counters.state() == {}


@pytest.mark.parametrize(
    ("admitted", "day", "month"),
    [
        ("2025-12-31T23:59:59", "20251231", "202512"),
        ("2028-02-29T23:59:59", "20280229", "202802"),
        ("2027-02-28T23:59:59", "20270228", "202702"),
    ],
)
async def test_what_is_settled_after_midnight_is_booked_on_the_day_of_the_admission(
    store: RedisReservationStore, counters: Counters, admitted: str, day: str, month: str
) -> None:
    limits = [
        quota("day", Unit.TOTAL, 1000),
        quota("month", Unit.COST, 10_000, period=Period.MONTH),
    ]
    prices = {"input_price": 1_000_000, "output_price": 1_000_000}
    await admit(store, *limits, rid="late", **prices)
    at = int(datetime.fromisoformat(admitted).replace(tzinfo=UTC).timestamp() * 1000)
    counters.client.hset(keys.reservation(ROOT, "late"), "at", at)
    for key in counters.state():
        then = day if ":day:" in key else month
        counters.client.rename(key, key.rpartition(":")[0] + ":" + then)
    await admit(store, *limits, rid="today", **prices)
    await store.settle(settlement("late", 10, 700))
    assert counters.quota(limits[0], day) == (710, 0)
    assert counters.quota(limits[1], month) == (710, 0)
    todays = [key for key in counters.state() if not key.endswith((":" + day, ":" + month))]
    assert [counters.client.hget(key, "held") for key in todays] == ["110", "110"]
    assert [counters.client.hget(key, "used") for key in todays] == [None, None]


AMOUNTS = [
    {"input_tokens": -500, "output_tokens": -500},
    {"input_tokens": 0, "output_tokens": -5},
    {"input_tokens": -1, "output_tokens": 0, "cost_micros": -(10**9)},
    {"input_tokens": float("nan"), "output_tokens": float("nan"), "cost_micros": float("nan")},
    {"input_tokens": float("-inf"), "output_tokens": -(2**70)},
]


@pytest.mark.parametrize("amounts", AMOUNTS)
async def test_negative_usage_mints_nothing(
    store: RedisReservationStore,
    counters: Counters,
    inspect: Inspector,
    amounts: dict[str, Any],
) -> None:
    """It is charged as zero, everywhere, and never as a credit."""
    limits = [
        minute("m", Unit.TOTAL, 1000),
        sliding("w", Unit.TOTAL, 1000, window_ms=60_000),
        token_bucket("b", Unit.TOTAL, 1, capacity=1000),
        quota("q", Unit.TOTAL, 1000),
        quota("c", Unit.COST, 1000),
    ]
    today, prices = inspect.minute()[:8], {"input_price": 1_000_000, "output_price": 1_000_000}
    for rid in ("other", "r1"):
        await admit(store, *limits, rid=rid, **prices)
    result = await store.settle(replace(settlement("r1"), **amounts))
    assert result.charged_tokens == 0
    state = counters.state()
    assert state[limits[0].key + inspect.minute()] == "110"
    assert state[keys.amounts(limits[1].key)] == {"other": "110", "r1": "0", "sum": "110"}
    assert int(state[limits[2].key]["level"]) < 891_000_000
    assert counters.quota(limits[3], today) == counters.quota(limits[4], today) == (0, 110)


@pytest.mark.parametrize("huge", [2**51, 2**63, 2**70, float("inf")])
async def test_huge_usage_is_counted_exactly_and_can_be_corrected(
    store: RedisReservationStore, counters: Counters, inspect: Inspector, huge: int
) -> None:
    limits = [minute("m", Unit.TOTAL, 1000), quota("c", Unit.COST, 1000)]
    today = inspect.minute()[:8]
    await admit(store, *limits, rid="r1")
    end: Settlement = settlement("r1", huge, huge, knowledge=Knowledge.COUNTED)
    await store.settle(replace(end, cost_micros=huge))
    assert counters.state()[limits[0].key + inspect.minute()] == str(2 * 2**51)
    assert counters.quota(limits[1], today) == (2**51, 0)
    await store.settle(replace(settlement("r1", 10, 5), cost_micros=3))
    assert counters.state()[limits[0].key + inspect.minute()] == "15"
    assert counters.quota(limits[1], today) == (3, 0)


async def test_a_clock_that_goes_back_gives_nothing_away(
    store: RedisReservationStore, counters: Counters
) -> None:
    """As if all that was taken had been taken by a clock two minutes ahead."""
    limits = [
        sliding("w", Unit.TOTAL, 150, window_ms=60_000),
        sliding("wr", Unit.REQUESTS, 2, window_ms=60_000),
        token_bucket("b", Unit.TOTAL, 150, capacity=150),
        slots("s", 2),
    ]
    await admit(store, *limits, rid="r1", input_tokens=2, cap=0)
    for key in counters.state():
        if not key.startswith("amounts:"):
            counters.age(key, -120_000)
    stamp = counters.client.hget(limits[2].key, "at")
    # 150: the node ahead took 2, this one takes 10 of the 148.
    second = await admit(store, *limits, rid="r2", input_tokens=10, cap=0)
    assert [state.remaining for state in second.buckets] == [138, 0, 138, 0]
    assert counters.client.hget(limits[2].key, "at") == stamp
    refused = await reject(store, *limits, input_tokens=139, cap=0)
    assert [refusal.label for refusal in refused.refusals] == ["w", "wr", "b", "s"]
    # A correction by the slow clock moves neither the stamp nor the level up.
    await store.settle(settlement("r2", 10, 3))
    assert counters.client.hget(limits[2].key, "at") == stamp
    assert counters.client.hget(limits[2].key, "level") == "135000000"
    assert counters.without_ttl() == []
