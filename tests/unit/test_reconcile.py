"""Ledger and export side by side: what differs, by how much, and what is let pass."""

from collections import Counter
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.cli_ledger_texts import reconciliation_table
from extproc.core.exports import Export, ExportRow
from extproc.core.ledger_rows import CLASSES, disjoint
from extproc.core.reconcile import By, Names, Tolerance, differences
from tests.unit.ledger_cases import row

DAY = date(2026, 12, 1)


def told(**given: Any) -> ExportRow:
    usual: dict[str, Any] = {
        "day": DAY,
        "provider": "openai",
        "model": "gpt-4o",
        "key": "acme",
        "request_id": None,
        "tokens": {"input": 100, "output": 10},
        "cost_micros": 150,
        "requests": 1,
    }
    return ExportRow(**{**usual, **given})


def export(*rows: ExportRow, **given: Any) -> Export:
    usual: dict[str, Any] = {
        "provider": "openai",
        "rows": rows,
        "classes": frozenset({"input", "cached_input", "output"}),
        "tells_cost": True,
        "tells_requests": True,
    }
    return Export(**{**usual, **given})


def test_sides_that_say_the_same_do_not_differ() -> None:
    found = differences([row()], export(told()))
    assert found.beyond == ()
    assert {each.measure: each.ledger for each in found.groups} == {
        "cost_micros": 150,
        "input": 100,
        "output": 10,
        "requests": 1,
    }


def test_a_difference_has_both_sides_and_its_sign() -> None:
    found = differences([row(), row(2)], export(told(cost_micros=290, requests=2)))
    assert [(x.group, x.measure, x.ledger, x.export, x.difference) for x in found.beyond] == [
        (("2026-12-01", "gpt-4o"), "cost_micros", 300, 290, 10),
        (("2026-12-01", "gpt-4o"), "input", 200, 100, 100),
        (("2026-12-01", "gpt-4o"), "output", 20, 10, 10),
    ]


def test_what_only_one_side_has_is_a_difference() -> None:
    found = differences([row(model="ours")], export(told(model="theirs")), by=(By.MODEL,))
    assert {(x.group[0], x.measure): x.difference for x in found.beyond} == {
        ("ours", "cost_micros"): 150,
        ("ours", "input"): 100,
        ("ours", "output"): 10,
        ("ours", "requests"): 1,
        ("theirs", "cost_micros"): -150,
        ("theirs", "input"): -100,
        ("theirs", "output"): -10,
        ("theirs", "requests"): -1,
    }
    assert all(total.difference == 0 for total in found.totals)


def test_corrections_of_the_ledger_are_no_requests() -> None:
    rows = [row(), replace(row(), revision=2, tokens={"output": 5}, cost_micros=25)]
    right = told(tokens={"input": 100, "output": 15}, cost_micros=175)
    assert differences(rows, export(right)).beyond == ()


def test_only_what_the_export_tells_is_compared() -> None:
    usage = export(told(cost_micros=None), tells_cost=False)
    costs = export(told(tokens={}, requests=None), classes=frozenset(), tells_requests=False)
    assert {x.measure for x in differences([row()], usage).groups} == {
        "input",
        "output",
        "requests",
    }
    assert {x.measure for x in differences([row()], costs).groups} == {"cost_micros"}


@pytest.mark.parametrize(
    ("classes", "sums"),
    [
        (CLASSES, {"input": 40, "cached_input": 30, "cache_write_5m": 20, "cache_write_1h": 10}),
        (
            ("input", "cached_input", "cache_write"),
            {"input": 40, "cached_input": 30, "cache_write": 30},
        ),
        (("input", "cached_input"), {"input": 70, "cached_input": 30}),
        (("input",), {"input": 100}),
    ],
)
def test_classes_that_an_export_does_not_know_are_added_up(
    classes: tuple[str, ...], sums: dict[str, int]
) -> None:
    tokens = {
        "input": 100,
        "cached_input": 30,
        "cache_write": 30,
        "cache_write_5m": 20,
        "cache_write_1h": 10,
    }
    given = export(told(tokens=sums), classes=frozenset(classes))
    found = differences([row(tokens=tokens)], given)
    assert found.beyond == ()
    assert {x.measure: x.ledger for x in found.groups if x.measure in CLASSES} == sums


def test_sums_by_key_and_by_request() -> None:
    rows = [row(1, root="a"), row(2, root="b")]
    theirs = export(told(key="key_1", request_id="req_1"), told(key="key_2", request_id="req_9"))
    names = Names(keys={"key_1": "a", "key_2": "b"}, models={"gpt-4o-2024-08-06": "gpt-4o"})
    assert differences(rows, theirs, by=(By.KEY,), names=names).beyond == ()
    found = differences(rows, theirs, by=(By.REQUEST,), names=names)
    assert {each.group for each in found.beyond} == {("req_2",), ("req_9",)}


def test_names_of_models_are_those_of_the_ledger() -> None:
    names = Names(models={"gpt-4o-2024-08-06": "gpt-4o"})
    theirs = export(told(model="gpt-4o-2024-08-06"))
    assert differences([row()], theirs).beyond != ()
    assert differences([row()], theirs, names=names).beyond == ()


@pytest.mark.parametrize(
    ("tolerance", "cost", "is_alike"),
    [
        (Tolerance(), 151, False),
        (Tolerance(micros=1), 151, True),
        (Tolerance(micros=1), 149, True),
        (Tolerance(micros=1), 152, False),
        (Tolerance(tokens=9, requests=9), 151, False),
        (Tolerance(ppm=10_000), 151, True),
        (Tolerance(ppm=6_000), 151, False),
        (Tolerance(ppm=1_000_000), -150, False),
    ],
)
def test_tolerance(tolerance: Tolerance, cost: int, is_alike: bool) -> None:
    found = differences([row()], export(told(cost_micros=cost)), tolerance=tolerance)
    assert (found.beyond == ()) is is_alike


def test_tolerance_of_credits_is_that_of_their_size() -> None:
    given = export(told(cost_micros=-151))
    ours = [row(cost_micros=-150)]
    assert differences(ours, given, tolerance=Tolerance(ppm=10_000)).beyond == ()


def test_the_table_shows_what_differs() -> None:
    found = differences([row()], export(told(cost_micros=140)))
    text = reconciliation_table(found, shows_all=False)
    assert text.splitlines()[1].split() == [
        "2026-12-01",
        "gpt-4o",
        "cost_micros",
        "150",
        "140",
        "+10",
        "!",
    ]
    assert "1 of 4 sums differ" in text
    assert "requests" in reconciliation_table(found, shows_all=True)


_ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(["2026-12-01T00:00:00", "2026-12-01T23:59:59", "2026-12-02T00:00:00"]),
        st.integers(-(2**60), 2**60),
        st.integers(0, 2**53),
    ),
    max_size=20,
)


@given(_ROWS, _ROWS)
def test_totals_are_the_sums_of_each_side(ours: Any, theirs: Any) -> None:
    ledger = [
        row(n, model=model, at=at, cost_micros=cost, tokens={"input": tokens})
        for n, (model, at, cost, tokens) in enumerate(ours)
    ]
    rows = [
        told(model=m, day=date.fromisoformat(at[:10]), cost_micros=cost, tokens={"input": tokens})
        for m, at, cost, tokens in theirs
    ]
    for by in ((By.DAY,), (By.MODEL, By.DAY), (By.REQUEST,)):
        found = differences(ledger, export(*rows), by=by)
        totals = {each.measure: (each.ledger, each.export) for each in found.totals}
        assert totals.get("cost_micros", (0, 0)) == (
            sum(x[2] for x in ours),
            sum(x[2] for x in theirs),
        )
        assert totals.get("input", (0, 0)) == (sum(x[3] for x in ours), sum(x[3] for x in theirs))
        assert len({(x.group, x.measure) for x in found.groups}) == len(found.groups)
        assert all(x.is_tolerated == (x.ledger == x.export) for x in found.groups)


@given(st.lists(st.dictionaries(st.sampled_from(CLASSES), st.integers(-99, 99)), max_size=5))
def test_classes_of_sums_are_sums_of_classes(rows: list[dict[str, int]]) -> None:
    both: Counter[str] = Counter()
    parts: Counter[str] = Counter()
    for tokens in rows:
        for name, count in tokens.items():
            both[name] += count
        for name, count in disjoint(tokens).items():
            parts[name] += count
    assert disjoint(both) == {name: count for name, count in parts.items() if count}
