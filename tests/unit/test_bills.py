"""A bill adds up, says where prices and ledger differ, and reads the same everywhere."""

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from extproc.cli_ledger_texts import as_json, bill_csv, bill_table, usd
from extproc.core.bills import UNEXPLAINED, WHOLE, Bill, Priced, bill, is_of, whole
from extproc.core.ledger_rows import LedgerRow, disjoint, usage_of
from extproc.core.policies import Scope
from extproc.core.usage import Usage
from tests.unit.ledger_cases import row

START = datetime(2026, 12, 1, tzinfo=UTC)
END = datetime(2027, 1, 1, tzinfo=UTC)
PRICES = {"v1": {"input": 1_000_000, "cached_input": 500_000, "output": 5_000_000}}


def cost_of(one: LedgerRow) -> Mapping[str, Priced]:
    """A million tokens cost so many micro-USD; each class is rounded up."""
    prices = PRICES[one.price_version]
    return {
        name: Priced(count, -(-count * prices[name] // 1_000_000))
        for name, count in disjoint(one.tokens).items()
    }


def made(*rows: LedgerRow, **given: object) -> Bill:
    usual = {"tenant": "acme", "start": START, "end": END, "cost_of": cost_of}
    return bill(rows, **{**usual, **given})  # type: ignore[arg-type]


def test_a_line_is_a_day_a_model_and_a_class() -> None:
    done = made(row(1), row(2), row(3, at="2026-12-02T00:00:00"))
    told = [(x.day.day, x.token_class, x.requests, x.tokens, x.cost_micros) for x in done.lines]
    assert told == [
        (1, "input", 2, 200, 200),
        (1, "output", 2, 20, 100),
        (2, "input", 1, 100, 100),
        (2, "output", 1, 10, 50),
    ]
    assert (done.total_micros, done.computed_micros, done.requests) == (450, 450, 3)
    assert done.discrepancies == ()


def test_parts_of_input_are_not_billed_twice() -> None:
    tokens = {"input": 100, "cached_input": 60, "output": 10}
    done = made(row(tokens=tokens, cost_micros=120))
    assert [(x.token_class, x.tokens, x.cost_micros) for x in done.lines] == [
        ("cached_input", 60, 30),
        ("input", 40, 40),
        ("output", 10, 50),
    ]
    assert done.discrepancies == ()


def test_a_correction_is_computed_with_what_it_corrects() -> None:
    """Each class is rounded up once for a reservation, not once for each of its rows."""
    first = row(tokens={"input": 1}, cost_micros=1)
    second = replace(first, revision=2, tokens={"input": 1}, cost_micros=0)
    PRICES["half"] = {"input": 500_000}
    rows = [replace(one, price_version="half") for one in (first, second)]
    done = made(*rows)
    assert (done.total_micros, done.requests, done.discrepancies) == (1, 1, ())


def test_what_prices_do_not_explain_is_listed_and_still_billed() -> None:
    done = made(row(1), row(2, cost_micros=151), row(3, price_version="gone"))
    assert [(x.request_id, x.computed_micros, x.difference_micros) for x in done.discrepancies] == [
        ("r2", 150, 1),
        ("r3", None, 150),
    ]
    assert (done.total_micros, done.computed_micros) == (451, 300)
    assert sum(x.cost_micros for x in done.lines) == 451
    assert [x.cost_micros for x in done.lines if x.token_class == UNEXPLAINED] == [150, 1]


def test_an_admission_at_the_end_is_of_the_next_bill() -> None:
    first, last = row(1, at="2026-12-01T00:00:00"), row(2, at="2027-01-01T00:00:00")
    assert made(first, last).requests == 1
    late = replace(first, revision=2, settled_at_ms=last.settled_at_ms, cost_micros=7)
    assert made(first, late).total_micros == 157, "a correction is of its admission's bill"


def test_days_are_those_of_the_zone() -> None:
    zone = ZoneInfo("Pacific/Auckland")
    start = datetime(2026, 12, 2, tzinfo=zone)
    done = made(row(at="2026-12-01T12:00:00"), start=start, zone=zone)
    assert {line.day for line in done.lines} == {date(2026, 12, 2)}
    assert done.requests == 1
    assert made(row(at="2026-12-01T10:59:59"), start=start, zone=zone).requests == 0


def test_a_bill_without_prices_has_no_classes_of_cost() -> None:
    done = made(row(), cost_of=None)
    assert {x.token_class: x.cost_micros for x in done.lines} == {
        "input": 0,
        "output": 0,
        WHOLE: 150,
    }
    assert done.computed_micros is None
    assert made(row(), cost_of=whole(lambda _: 149)).discrepancies[0].difference_micros == 1


def test_usage_is_what_prices_are_applied_to() -> None:
    tokens = {"input": 100, "cached_input": 60, "server_tool_calls": 2}
    assert usage_of(row(tokens=tokens)) == Usage(
        input_tokens=100, output_tokens=0, cached_input_tokens=60, server_tool_calls=2
    )
    assert usage_of(row(tokens=tokens)).kinds() == tokens


def test_a_subject_is_found_by_its_scope() -> None:
    assert is_of(row(), Scope.USER, "alice")
    assert not is_of(row(), Scope.USER, "bob")
    assert not is_of(row(), Scope.PROJECT, "alice")
    assert not is_of(row(subject="{"), Scope.USER, "alice")


_TOKENS = st.fixed_dictionaries(
    {"input": st.integers(0, 2**53), "output": st.integers(0, 2**53)},
)


@given(
    st.lists(
        st.tuples(_TOKENS, st.integers(-(2**53), 2**53), st.sampled_from(["v1", "gone"])),
        max_size=20,
    )
)
def test_the_lines_always_add_up_to_the_ledger(
    parts: list[tuple[dict[str, int], int, str]],
) -> None:
    rows = [
        row(n, tokens=tokens, cost_micros=cost, price_version=version)
        for n, (tokens, cost, version) in enumerate(parts)
    ]
    done = made(*rows)
    total = sum(cost for _, cost, _ in parts)
    assert done.total_micros == sum(x.cost_micros for x in done.lines) == total
    assert done.computed_micros is not None
    assert total - done.computed_micros == sum(x.difference_micros for x in done.discrepancies)
    assert sum(x.tokens for x in done.lines) == sum(sum(t.values()) for t, _, _ in parts)
    assert sum(done.by_knowledge.values()) == total


@given(st.integers(-(2**60), 2**60))
def test_dollars_are_exact(micros: int) -> None:
    text = usd(micros)
    assert int(text.replace(".", "")) == micros
    assert len(text.partition(".")[2]) == 6


def test_a_spreadsheet_gets_no_formula() -> None:
    for name in ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"):
        done = made(row(model=name), cost_of=None)
        rows = list(csv.reader(io.StringIO(bill_csv(done))))
        assert rows[1][1].startswith("'"), name
        assert rows[-1][0] == "total"
        assert rows[-1][6:] == ["150", "0.000150"]


def test_texts_are_the_same_each_time_and_say_the_total() -> None:
    done = made(row(1), row(2, cost_micros=151, model="\x1b[31m"))
    for render in (bill_table, bill_csv, as_json):
        assert render(done) == render(made(row(1), row(2, cost_micros=151, model="\x1b[31m")))
    assert "total    0.000301 USD" in bill_table(done)
    assert "\x1b" not in bill_table(done) + bill_csv(done)
    plain = json.loads(as_json(done))
    assert plain["total_micros"] == 301
    assert plain["discrepancies"][0]["difference_micros"] == 1
