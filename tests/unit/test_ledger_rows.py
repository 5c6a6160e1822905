"""Rows of the ledger as they are read for bills: nothing is left out, revisions are added up."""

from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.ledger_rows import day_of, in_period, reservations, row_of
from tests.unit.ledger_cases import row


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A row as the ledger's table has it."""

    request_id: str = "r1"
    endpoint: str = "openai_chat"
    reservation_id: str = "a" * 32
    revision: int = 2
    root: str = "acme"
    subject: str = '{"user":"alice"}'
    model: str = "gpt-4o"
    provider: str = "openai"
    provider_request_id: str = "req_1"
    input_tokens: int = 100
    output_tokens: int = -10
    cached_input_tokens: int | None = 1
    cache_write_tokens: int | None = 5
    reasoning_tokens: int | None = 3
    cache_write_5m_tokens: int | None = 4
    cache_write_1h_tokens: int | None = None
    audio_input_tokens: int | None = None
    audio_output_tokens: int | None = 0
    image_input_tokens: int | None = None
    image_output_tokens: int | None = None
    other_input_tokens: int | None = None
    server_tool_calls: int | None = 2
    reserved_cost_micros: int = 200
    cost_micros: int = -7
    prices: str = "p1"
    price_version: str = "v1"
    knowledge: str = "known"
    outcome: str = "complete"
    admitted_at_ms: int = 1
    settled_at_ms: int = 2


def test_every_field_of_a_row_is_taken() -> None:
    stored = Stored()
    found = row_of(stored)
    assert found.tokens == {
        "input": 100,
        "output": -10,
        "cached_input": 1,
        "cache_write": 5,
        "reasoning": 3,
        "cache_write_5m": 4,
        "server_tool_calls": 2,
    }
    for field in fields(found):
        if field.name != "tokens":
            assert getattr(found, field.name) == getattr(stored, field.name), field.name
    assert (found.requests, replace(found, revision=1).requests) == (0, 1)


def test_revisions_are_added_up_and_the_last_one_has_the_word() -> None:
    first = row(1, reserved_cost_micros=300, knowledge="guessed", settled_at_ms=5)
    second = replace(
        first,
        revision=2,
        tokens={"input": -100, "output": 5, "reasoning": 4},
        cost_micros=-90,
        reserved_cost_micros=0,
        knowledge="known",
        settled_at_ms=9,
    )
    other = row(2)
    assert list(reservations([first, second, other])) == [
        replace(
            first,
            tokens={"output": 15, "reasoning": 4},
            cost_micros=60,
            knowledge="known",
            settled_at_ms=9,
        ),
        other,
    ]


def test_a_request_with_two_attempts_has_two_reservations() -> None:
    attempts = [row(1), row(1, reservation_id="b" * 32)]
    assert len(list(reservations(attempts))) == 2


def test_days_begin_and_end_to_the_millisecond() -> None:
    start, end = datetime(2026, 12, 1, tzinfo=UTC), datetime(2026, 12, 2, tzinfo=UTC)
    at = round(start.timestamp()) * 1000
    moments = [at - 1, at, at + 86_399_999, at + 86_400_000]
    rows = [row(n, admitted_at_ms=moment) for n, moment in enumerate(moments)]
    assert list(in_period(rows, start, end)) == rows[1:3]
    assert [day_of(each).day for each in rows] == [30, 1, 1, 2]
    assert day_of(rows[0], ZoneInfo("Asia/Tokyo")) == date(2026, 12, 1)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(-(2**53), 2**53)), max_size=20))
def test_sums_of_reservations_are_sums_of_rows(parts: list[tuple[int, int]]) -> None:
    rows = [row(n, cost_micros=cost, tokens={"input": cost}) for n, cost in sorted(parts)]
    merged = list(reservations(rows))
    assert sum(each.cost_micros for each in merged) == sum(cost for _, cost in parts)
    assert sum(each.tokens.get("input", 0) for each in merged) == sum(cost for _, cost in parts)
    assert len(merged) == len({n for n, _ in parts})
