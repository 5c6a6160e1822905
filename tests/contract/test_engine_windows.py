"""Sliding windows after a pause: many entries due at once, exact counts, bounded work."""

import pytest

from extproc.core.buckets import Bucket, Unit
from extproc.stores import keys
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.engine import Counters, admit, reject, sliding
from tests.support.reservations import settlement

WINDOW_MS = 60_000
# Of look.lua: what one call takes out, and of how many entries it makes a window anew.
STEP, STEPS, REBUILT = 1000, 8, 2000


def fill(counters: Counters, limit: Bucket, number: int, *, age_ms: int, amount: int) -> None:
    """Entries of ``amount`` tokens each, all ``age_ms`` old."""
    seconds, micros = counters.client.time()
    score = int(seconds) * 1000 + int(micros) // 1000 - age_ms
    ids = [f"{age_ms}-{i}" for i in range(number)]
    for start in range(0, number, 1000):
        part = ids[start : start + 1000]
        counters.client.zadd(limit.key, dict.fromkeys(part, score))
        if limit.unit is not Unit.REQUESTS:
            counters.client.hset(keys.amounts(limit.key), mapping=dict.fromkeys(part, amount))
    if limit.unit is not Unit.REQUESTS:
        counters.client.hincrby(keys.amounts(limit.key), "sum", number * amount)
    for key in (limit.key, keys.amounts(limit.key)):
        counters.client.expire(key, 120)


def exact(counters: Counters, limit: Bucket) -> None:
    """The sum is that of the amounts, and the amounts are those of the entries."""
    amounts = counters.state().get(keys.amounts(limit.key), {"sum": "0"})
    total = int(amounts.pop("sum"))
    assert total == sum(map(int, amounts.values()))
    assert sorted(amounts) == sorted(counters.state().get(limit.key, []))


@pytest.mark.parametrize("due", [5000, (STEPS + 1) * STEP])
@pytest.mark.parametrize("unit", [Unit.TOTAL, Unit.REQUESTS])
async def test_an_idle_window_admits_what_fits_alone_however_much_is_due(
    store: RedisReservationStore, counters: Counters, unit: Unit, due: int
) -> None:
    limit = sliding("w", unit, 5000, window_ms=WINDOW_MS)
    fill(counters, limit, 5000, age_ms=WINDOW_MS + 1, amount=1)
    fill(counters, limit, due - 5000, age_ms=WINDOW_MS + 2, amount=1)
    verdict = await admit(store, limit, rid="r1", input_tokens=5000, cap=0)
    assert verdict.buckets[0].remaining == (0 if unit is Unit.TOTAL else 4999)
    if unit is Unit.TOTAL:
        assert counters.state() == {
            limit.key: ["r1"],
            keys.amounts(limit.key): {"r1": "5000", "sum": "5000"},
        }
    assert counters.without_ttl() == []


@pytest.mark.parametrize("inside", [1, 999, REBUILT, REBUILT + 1])
@pytest.mark.parametrize("due", [STEP - 1, STEP, 2 * STEP + 1])
async def test_what_is_inside_is_counted_and_nothing_else(
    store: RedisReservationStore, counters: Counters, inside: int, due: int
) -> None:
    limit = sliding("w", Unit.TOTAL, 10_000, window_ms=WINDOW_MS)
    fill(counters, limit, due, age_ms=WINDOW_MS + 1, amount=7)
    fill(counters, limit, inside, age_ms=WINDOW_MS // 2, amount=3)
    free = 10_000 - 3 * inside
    refused = await reject(store, limit, input_tokens=free + 1, cap=0)
    assert refused.buckets[0].remaining == free
    assert WINDOW_MS / 2 - 2000 < (refused.retry_after_ms or 0) <= WINDOW_MS / 2
    assert counters.without_ttl() == []
    await admit(store, limit, rid="r1", input_tokens=free, cap=0)
    exact(counters, limit)
    assert len(counters.state()[limit.key]) == inside + 1
    assert counters.without_ttl() == []


async def test_requests_are_exact_while_their_entries_leave_in_steps(
    store: RedisReservationStore, counters: Counters
) -> None:
    limit = sliding("w", Unit.REQUESTS, 2, window_ms=WINDOW_MS)
    fill(counters, limit, 2 * STEP + 500, age_ms=WINDOW_MS + 1, amount=0)
    fill(counters, limit, 1, age_ms=WINDOW_MS // 2, amount=0)
    await admit(store, limit)
    refused = await reject(store, limit)
    # The oldest inside frees it, not what is due and still there.
    assert WINDOW_MS / 2 - 2000 < (refused.retry_after_ms or 0) <= WINDOW_MS / 2
    assert counters.client.zcard(limit.key) == 500 + 2
    await reject(store, limit)
    assert counters.client.zcard(limit.key) == 2


async def test_a_busy_window_is_cleaned_in_bounded_steps_and_says_come_back_at_once(
    store: RedisReservationStore, counters: Counters
) -> None:
    limit = sliding("w", Unit.TOTAL, 10_000, window_ms=WINDOW_MS)
    fill(counters, limit, STEPS * STEP + 500, age_ms=WINDOW_MS + 1, amount=4)
    fill(counters, limit, REBUILT + 1, age_ms=WINDOW_MS // 2, amount=1)
    refused = await reject(store, limit, input_tokens=7000, cap=0)
    assert refused.buckets[0].remaining == 10_000 - (REBUILT + 1) - 4 * 500
    assert refused.retry_after_ms == 1
    assert counters.client.zcard(limit.key) == REBUILT + 1 + 500
    await admit(store, limit, input_tokens=7000, cap=0)
    exact(counters, limit)


async def test_a_correction_finds_its_entry_in_a_window_made_anew(
    store: RedisReservationStore, counters: Counters
) -> None:
    limit = sliding("w", Unit.TOTAL, 1000, window_ms=WINDOW_MS)
    await admit(store, limit, rid="r1", input_tokens=100, cap=0)
    fill(counters, limit, 3 * STEP, age_ms=WINDOW_MS + 1, amount=9)
    await admit(store, limit, rid="r2", input_tokens=1, cap=0)
    await store.settle(settlement("r1", 100, 650))
    refused = await reject(store, limit, input_tokens=250, cap=0)
    assert refused.buckets[0].remaining == 249
    exact(counters, limit)
