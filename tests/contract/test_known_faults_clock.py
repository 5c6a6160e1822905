"""CLOCK: faults that others reported about time; see docs/known-faults.md. (B150 is in
test_engine_lives.py.)"""

import pytest

from extproc.core.buckets import Bucket, Period, Unit
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.engine import Counters, admit, quota, reject
from tests.support.engine_time import pass_time
from tests.support.reservations import Inspector, settlement

DOLLAR = 1_000_000
HALF_HOUR_MS = 1_800_000
MICROS = {"input_price": 1_000_000}  # one for each token


async def test_a_budget_of_an_hour_does_not_refill_within_it(
    store: RedisReservationStore, counters: Counters, inspect: Inspector
) -> None:
    """B154: 1.00 an hour, spent at 0:00; at 0:30 half of it was there again."""
    seconds, micros = counters.client.time()
    one_o_clock = seconds * 1000 + micros // 1000 + 2 * HALF_HOUR_MS

    def budget(*, starts: str, ends: int) -> Bucket:
        return quota(
            "budget",
            Unit.COST,
            DOLLAR,
            period=Period.CYCLE,
            period_id=starts,
            period_end_ms=ends,
        )

    now = budget(starts="20261130T000000", ends=one_o_clock)
    await admit(store, now, rid="r1", input_tokens=DOLLAR, cap=0, **MICROS)
    await store.settle(settlement("r1", DOLLAR, 0))
    name = inspect.minute()
    pass_time(counters.client, HALF_HOUR_MS, minute=name, past=inspect.minute(back=30))
    # Half an hour on, the end is half an hour away.
    now = budget(starts="20261130T000000", ends=one_o_clock - HALF_HOUR_MS)
    refused = await reject(store, now, input_tokens=1, cap=0, **MICROS)
    assert refused.refusals[0].remaining == 0
    assert refused.retry_after_ms == pytest.approx(HALF_HOUR_MS, abs=5000)
    following = budget(starts="20261130T010000", ends=one_o_clock + 2 * HALF_HOUR_MS)
    fresh = await admit(store, following, input_tokens=DOLLAR, cap=0, **MICROS)
    assert fresh.buckets[0].remaining == 0
