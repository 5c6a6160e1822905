"""What a 429 says: the binding limit in its own unit, and what helps."""

from typing import Any

import pytest

from extproc.core.buckets import Unit
from extproc.core.reservations import Refusal, Rejected
from extproc.core.resolve import BLOCK_LABEL
from extproc.envoy_io.replies import rejected_message


def rejected(unit: Unit, *, limit: int = 100, retry: int | None = 5000, **more: Any) -> Rejected:
    label = more.pop("label", "p/it")
    refusal = Refusal(
        label=label, unit=unit, limit=limit, remaining=min(limit, 40), retry_after_ms=retry, **more
    )
    return Rejected(
        root="acme",
        refused_by=label,
        requested_tokens=110,
        requested_input_tokens=30,
        requested_cost_micros=7,
        requests=None,
        tokens=None,
        retry_after_ms=retry,
        refusals=(refusal,),
    )


@pytest.mark.parametrize(
    ("unit", "said"),
    [
        (Unit.INPUT, "input tokens of limit p/it: Limit 100, Used 60, Requested 30."),
        (Unit.OUTPUT, "output tokens of limit p/it: Limit 100, Used 60, Requested 80."),
        (Unit.TOTAL, "tokens of limit p/it: Limit 100, Used 60, Requested 110."),
        (Unit.COST, "cost in micro-USD of limit p/it: Limit 100, Used 60, Requested 7."),
        (Unit.REQUESTS, "requests of limit p/it: Limit 100, Used 60, Requested 1."),
        (Unit.SLOT, "concurrent requests of limit p/it: Limit 100, Used 60, Requested 1."),
    ],
)
def test_what_was_asked_is_in_the_limits_own_unit(unit: Unit, said: str) -> None:
    text = rejected_message(rejected(unit))
    assert said in text
    assert text.endswith("Please try again in 5s.")


def test_a_limit_that_admits_nothing_does_not_ask_for_smaller_requests() -> None:
    text = rejected_message(rejected(Unit.SLOT, limit=0, retry=None))
    assert text.endswith("This limit admits nothing: have it raised.")
    assert "smaller" not in text


def test_a_token_bucket_speaks_of_its_burst() -> None:
    text = rejected_message(rejected(Unit.REQUESTS, limit=120, retry=500, burst=50))
    assert "Burst 50, refilled by 120 a minute, Used 10, Requested 1. " in text
    assert "Limit 120" not in text


def test_a_block_says_who_is_blocked() -> None:
    label = f"{BLOCK_LABEL}user"
    blocked = rejected(Unit.REQUESTS, limit=0, retry=None, label=label, subject="user:mal:lory")
    assert rejected_message(blocked) == "User mal:lory is blocked here."
    unnamed = rejected(Unit.REQUESTS, limit=0, retry=None, label=label)
    assert rejected_message(unnamed) == "Service acme is blocked here."
