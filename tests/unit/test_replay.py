"""What proposed policies would have refused, decided in plain integers."""

from datetime import UTC, datetime
from typing import Any

import pytest

from extproc.core.ledger_rows import LedgerRow
from extproc.core.policies import (
    ANY,
    EACH,
    Algorithm,
    Dimension,
    LimitPolicy,
    Mode,
    OnExceed,
    Rule,
    Scope,
)
from extproc.core.policy_plan import EPOCH
from extproc.core.replay import Replay, replay
from tests.unit.ledger_cases import row


def policy(dimension: Dimension, limit: int, **given: Any) -> LimitPolicy:
    names = ("algorithm", "window_seconds", "burst", "cycle_start", "cycle_end")
    rule = {name: given.pop(name) for name in names if name in given}
    usual: dict[str, Any] = {
        "name": "p1",
        "version": 1,
        "scope": Scope.USER,
        "value": EACH,
        "rules": (Rule(dimension=dimension, limit=limit, **rule),),
        "effective_from": EPOCH,
    }
    return LimitPolicy(**{**usual, **given})


def rows(*times: str, **given: Any) -> list[LedgerRow]:
    return [row(n, at=f"2026-12-01T{time}", **given) for n, time in enumerate(times, 1)]


def refused(done: Replay) -> list[str]:
    return [each.row.request_id for each in done.refusals]


def test_requests_of_a_minute() -> None:
    traffic = rows("12:00:00", "12:00:30", "12:00:59", "12:01:00")
    done = replay(traffic, [policy(Dimension.RPM, 2)])
    assert refused(done) == ["r3"]
    assert (done.requests, done.refused, done.refused_cost_micros) == (4, 1, 150)
    (rule,) = done.rules
    assert (rule.label, rule.subject) == ("p1/rpm", "user:alice")
    assert (rule.requests, rule.tokens, rule.cost_micros) == (1, 110, 150)


@pytest.mark.parametrize(
    ("dimension", "each", "first"),
    [(Dimension.INPUT_TPM, 100, 4), (Dimension.OUTPUT_TPM, 10, 4), (Dimension.TOTAL_TPM, 110, 4)],
)
def test_tokens_of_a_minute(dimension: Dimension, each: int, first: int) -> None:
    traffic = rows(*["12:00:00"] * 5)
    assert refused(replay(traffic, [policy(dimension, each * 3)])) == [f"r{first}", "r5"]
    assert replay(traffic, [policy(dimension, each * 3 - 1)]).refused == 3


def test_a_refused_request_takes_nothing() -> None:
    """So that a smaller one behind it is let in."""
    big = row(2, tokens={"input": 500})
    traffic = [row(1), big, row(3)]
    assert refused(replay(traffic, [policy(Dimension.TOTAL_TPM, 220)])) == ["r2"]


def test_a_sliding_window_forgets_exactly() -> None:
    traffic = rows("12:00:00", "12:00:59", "12:01:00", "12:01:58", "12:01:59")
    sliding = policy(Dimension.RPM, 2, algorithm=Algorithm.SLIDING)
    assert refused(replay(traffic, [sliding])) == ["r4"]


def test_a_token_bucket_fills_slowly() -> None:
    traffic = rows("12:00:00", "12:00:00", "12:00:29", "12:00:30", "12:00:31")
    leaky = policy(Dimension.RPM, 2, algorithm=Algorithm.BUCKET)
    assert refused(replay(traffic, [leaky])) == ["r3", "r5"]


def test_slots_are_free_after_the_settlement() -> None:
    traffic = rows("12:00:00", "12:00:01", "12:00:02")
    assert refused(replay(traffic, [policy(Dimension.CONCURRENT, 1)])) == ["r2"]


def test_budgets_of_a_day_a_month_and_a_cycle() -> None:
    traffic = [
        row(1, at="2026-12-01T23:59:59"),
        row(2, at="2026-12-01T23:59:59"),
        row(3, at="2026-12-02T00:00:00"),
        row(4, at="2027-01-01T00:00:00"),
    ]
    day = policy(Dimension.COST_MICROS_PER_DAY, 150)
    assert refused(replay(traffic, [day])) == ["r2"]
    month = policy(Dimension.TOKENS_PER_MONTH, 110)
    assert refused(replay(traffic, [month])) == ["r2", "r3"]
    cycle = policy(
        Dimension.COST_MICROS_PER_CYCLE,
        150,
        cycle_start=datetime(2026, 12, 2, tzinfo=UTC),
        cycle_end=datetime(2027, 2, 1, tzinfo=UTC),
    )
    assert refused(replay(traffic, [cycle])) == ["r4"]


def test_each_value_and_each_root_has_a_counter_of_its_own() -> None:
    bob = '{"user":"bob"}'
    traffic = [row(1), row(2, subject=bob), row(3, root="other")]
    assert replay(traffic, [policy(Dimension.RPM, 1)]).refused == 0
    together = policy(Dimension.RPM, 1, value=ANY)
    assert refused(replay(traffic, [together])) == ["r2"]
    across = policy(Dimension.RPM, 1, value=ANY, across_roots=True)
    assert refused(replay(traffic, [across])) == ["r2", "r3"]


def test_models_providers_and_services_are_known() -> None:
    for scope, value in (
        (Scope.MODEL, "gpt-4o"),
        (Scope.PROVIDER, "openai"),
        (Scope.SERVICE, "acme"),
    ):
        assert replay([row()], [policy(Dimension.RPM, 0, scope=scope, value=value)]).refused == 1
        assert replay([row()], [policy(Dimension.RPM, 0, scope=scope, value="x")]).refused == 0
    assert replay([row()], [policy(Dimension.RPM, 0, model="gpt-*")]).refused == 1
    assert replay([row()], [policy(Dimension.RPM, 0, model="claude-*")]).refused == 0


@pytest.mark.parametrize("given", [{"mode": Mode.SHADOW}, {"on_exceed": OnExceed.RECORD}])
def test_what_does_not_refuse_is_only_counted(given: dict[str, Any]) -> None:
    done = replay(rows("12:00:00", "12:00:01"), [policy(Dimension.RPM, 1, **given)])
    assert done.refused == 0
    assert [(rule.refuses, rule.requests) for rule in done.rules] == [(False, 1)]


def test_corrections_belong_to_their_request() -> None:
    later = row(1, revision=2, tokens={"output": 90}, cost_micros=50)
    done = replay([row(1), later], [policy(Dimension.COST_MICROS_PER_DAY, 199)])
    assert (done.requests, done.refused, done.refused_cost_micros) == (1, 1, 200)


def test_values_that_the_ledger_hides_are_told() -> None:
    hidden = row(subject='{"user":"alice","hidden":["api_key"]}')
    done = replay([hidden], [policy(Dimension.RPM, 0, scope=Scope.API_KEY)])
    assert (done.refused, done.unseen) == (0, {Scope.API_KEY: 1})
    assert replay([hidden], [policy(Dimension.RPM, 9)]).unseen == {}


def test_the_list_of_refusals_is_bounded() -> None:
    done = replay(rows(*["12:00:00"] * 5), [policy(Dimension.RPM, 0)], most_refusals=2)
    assert (done.refused, len(done.refusals)) == (5, 2)
