"""The demo's arithmetic: what is due, and how far the counters are from it."""

import pytest

from extproc.demo.books import Record, chargeable_tokens, drift
from extproc.demo.fake_provider import JournalEntry

MINUTE = "202611300715"


def entry(request_id: str, **changes: object) -> JournalEntry:
    values: dict[str, object] = {
        "request_id": request_id,
        "path": "/v1/chat/completions",
        "label": "",
        "input_tokens": 10,
        "output_tokens_produced": 5,
        "status": 200,
        "ending": "finished",
        **changes,
    }
    return JournalEntry(**values)  # type: ignore[arg-type]


def record(request_id: str, *, minute: str = MINUTE) -> Record:
    return Record(
        root="svc",
        state="SETTLED",
        minute=minute,
        outcome="complete",
        input_tokens=10,
        reserved_tokens=99,
        charged_tokens=15,
        token_limit=1000,
        request_id=request_id,
    )


@pytest.mark.parametrize(("status", "due"), [(200, 15), (500, 0), (429, 0), (0, 0)])
def test_only_answers_are_due(status: int, due: int) -> None:
    assert chargeable_tokens(entry("a", status=status)) == due


def test_an_abandoned_stream_is_due_for_what_was_written() -> None:
    assert chargeable_tokens(entry("a", output_tokens_produced=3, ending="client_gone")) == 13


def test_balanced_books_have_no_drift() -> None:
    journal = [entry("a"), entry("b"), entry("c", status=500)]
    records = [record("a"), record("b"), record("c")]
    assert drift({("svc", MINUTE): 30}, records, journal) == 0


@pytest.mark.parametrize("counter", [29, 31])
def test_one_token_too_few_or_too_many_is_a_drift_of_one(counter: int) -> None:
    records, journal = [record("a"), record("b")], [entry("a"), entry("b")]
    assert drift({("svc", MINUTE): counter}, records, journal) == 1


def test_errors_of_two_minutes_do_not_cancel_out() -> None:
    records = [record("a", minute="202611300714"), record("b")]
    windows = {("svc", "202611300714"): 14, ("svc", MINUTE): 16}
    assert drift(windows, records, [entry("a"), entry("b")]) == 2


def test_what_was_served_without_a_reservation_counts_whole() -> None:
    assert drift({}, [], [entry("a")]) == 15


def test_a_window_that_expired_counts_whole() -> None:
    assert drift({}, [record("a")], [entry("a")]) == 15
