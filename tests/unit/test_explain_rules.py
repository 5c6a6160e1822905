"""The arithmetic of `explain`, where a real clock does not come by."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from extproc.core.buckets import Bucket, BucketKind, Period, Unit
from extproc.core.explain_rules import (
    MICRO,
    cost_of,
    never_fits,
    origins,
    period_left_ms,
    period_name,
    refill_ms,
    refilled,
)
from extproc.core.policies import Mode
from extproc.stores.views import bucket_key
from tests.support.engine import quota, token_bucket
from tests.support.policies import NOW, descriptor, policies, policy

SEVEN = token_bucket("b", Unit.TOTAL, 7, capacity=10)


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def test_a_token_bucket_refills_up_to_its_capacity_and_never_backwards() -> None:
    assert refilled(0, stamp=0, now=60_000, bucket=SEVEN) == 7 * MICRO
    assert refilled(0, stamp=0, now=1, bucket=SEVEN) == 116
    assert refilled(0, stamp=0, now=10**12, bucket=SEVEN) == 10 * MICRO
    assert refilled(5, stamp=60_000, now=0, bucket=SEVEN) == 5


def test_the_wait_for_a_token_bucket_is_rounded_up() -> None:
    wait = refill_ms(0, 1, bucket=SEVEN)
    assert wait == 8572
    assert refilled(0, stamp=0, now=wait, bucket=SEVEN) >= MICRO
    assert refilled(0, stamp=0, now=wait - 1, bucket=SEVEN) < MICRO
    assert refill_ms(-5 * MICRO, 2, bucket=SEVEN) == 60_000
    assert refill_ms(2 * MICRO, 2, bucket=SEVEN) == 0
    assert refill_ms(0, 1, bucket=replace(SEVEN, refill_per_minute=0)) is None


@pytest.mark.parametrize(
    ("period", "now", "name", "end"),
    [
        (Period.DAY, "2026-02-28T23:59:59.999", "20260228", "2026-03-01"),
        (Period.DAY, "2028-02-28T00:00", "20280228", "2028-02-29"),
        (Period.MONTH, "2026-12-31T12:00", "202612", "2027-01-01"),
        (Period.MONTH, "2026-01-31T12:00", "202601", "2026-02-01"),
        (Period.MONTH, "2026-02-01T00:00", "202602", "2026-03-01"),
    ],
)
def test_periods_end_in_utc(period: Period, now: str, name: str, end: str) -> None:
    counter = quota("q", Unit.TOTAL, 1, period=period)
    assert period_name(period, at(now)) == name
    assert period_left_ms(counter, at(now)) == at(end) - at(now)


def test_a_cycle_has_its_own_name_and_end() -> None:
    counter = quota("q", Unit.COST, 1, period=Period.CYCLE, period_end_ms=5000)
    assert period_name(Period.CYCLE, 0, period_id="c1") == "c1"
    assert (period_left_ms(counter, 4000), period_left_ms(counter, 6000)) == (1000, 0)


def test_a_limit_of_zero_refuses_what_takes_nothing_too() -> None:
    none = Bucket(label="x", kind=BucketKind.QUOTA, unit=Unit.COST, key="x", limit=0)
    assert never_fits(none, 0)
    assert not never_fits(replace(none, limit=1), 1)
    assert never_fits(replace(none, limit=1), 2)
    assert not never_fits(SEVEN, 10)  # its capacity, not its limit
    assert never_fits(SEVEN, 11)


def test_cost_is_rounded_up_for_each_class() -> None:
    assert cost_of(1, 1, (1, 1)) == 2
    assert cost_of(3_000_001, 0, (10, 10)) == 31
    assert cost_of(2**51, 2**51, (2**32, 2**32)) == 2**52


def test_of_two_versions_in_force_the_higher_is_behind_a_limit() -> None:
    old, new = policy(), policy(version=2, mode=Mode.SHADOW)
    ended = policy(version=3, effective_to=NOW - timedelta(seconds=1))
    other = policy(version=4, model="claude*")
    for order in ((old, new, ended, other), (other, ended, new, old)):
        found = origins(policies(*order), descriptor(), NOW, key=bucket_key)
        assert found == {"p1/total_tpm": (new, new.rules[0])}
