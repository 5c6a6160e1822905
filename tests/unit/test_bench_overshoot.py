"""What the benchmark holds to be a fault, and the lengths of its answers."""

from collections import Counter
from dataclasses import replace
from statistics import mean, median, quantiles

import pytest

from tests.bench.burst import BurstResult
from tests.bench.overshoot import Overshoot, answer_tokens
from tests.bench.report_limits import overshoot_faults, overshoot_values

GOOD = Overshoot(
    burst=BurstResult(statuses=Counter({200: 3, 429: 7}), failed=0, decided_seconds=0.1),
    sent=10,
    limit_tokens=1000,
    used_tokens=600,
    counted_tokens=600,
    left_open=0,
    reserved_tokens=900,
    unused_tokens=300,
    exceeded=0,
    asked=(7, 7, 6),
)
MANY = replace(GOOD.burst, statuses=Counter({200: 4, 429: 6}))


@pytest.mark.parametrize(
    ("run", "text"),
    [
        # Too many for what they reserve, although what they used fits by luck.
        (replace(GOOD, burst=MANY, reserved_tokens=1200), "1 requests and 0 tokens"),
        (replace(GOOD, used_tokens=1001, counted_tokens=1001), "0 requests and 1 tokens"),
        (replace(GOOD, burst=replace(MANY, statuses=Counter({200: 3, 503: 7}))), "7 requests"),
        (replace(GOOD, left_open=1), "not settled"),
        (replace(GOOD, counted_tokens=599), "counted 599"),
        (replace(GOOD, asked=(10, 10, 0)), "never asked"),
    ],
)
def test_what_strict_mode_may_not_do_is_named(run: Overshoot, text: str) -> None:
    (fault,) = overshoot_faults({"strict": run})
    assert text in fault


def test_a_mean_may_pass_a_limit_and_says_by_how_much() -> None:
    run = replace(GOOD, used_tokens=1100, counted_tokens=1100)
    assert overshoot_faults({"strict": GOOD, "mean": run}) == []
    values = overshoot_values({"mean": run})
    assert values["overshoot.mean.overshoot_percent"] == 10
    assert values["overshoot.mean.utilisation_percent"] == 110


def test_accuracy_is_what_was_used_of_what_was_reserved() -> None:
    values = overshoot_values({"strict": GOOD})
    assert values["overshoot.strict.accuracy_percent"] == pytest.approx(66.67, abs=0.01)
    assert values["overshoot.strict.over_reservation_percent"] == pytest.approx(33.33, abs=0.01)


@pytest.mark.parametrize("first", [0, 1000])
def test_answers_are_as_long_as_they_are_said_to_be(first: int) -> None:
    lengths = [answer_tokens(number) for number in range(first, first + 400)]
    assert median(lengths) == pytest.approx(150, rel=0.05)
    assert mean(lengths) == pytest.approx(205, rel=0.05)
    assert quantiles(lengths, n=20)[-1] == pytest.approx(560, rel=0.1)
    assert lengths == [answer_tokens(number) for number in range(first, first + 400)]
