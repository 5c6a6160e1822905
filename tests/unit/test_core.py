"""Rules of the core: usage, handles, outcomes."""

from dataclasses import replace

import pytest

from extproc.core.handles import (
    Handle,
    duration_text,
    handle_from_fields,
    limit_fields,
)
from extproc.core.ids import is_valid_id, new_reservation_id
from extproc.core.limits import MAX_LIMIT, ServiceLimit
from extproc.core.outcomes import (
    AnswerFacts,
    release,
    settle_answer,
    settle_ending,
    settle_interrupted,
)
from extproc.core.reservations import Admitted, Knowledge, Outcome, Source, State, WindowView
from extproc.core.usage import Usage

HANDLE = Handle(
    reservation_id="r1",
    root="svc",
    wire_format="openai_chat",
    model="gpt-4o",
    input_tokens=45,
    reserved_tokens=1045,
    encoding="o200k_base",
    hides_usage=True,
    factor_percent=150,
)


def facts(
    *,
    usage: Usage | None = None,
    counted: int = 0,
    saw_output: bool = True,
    ended: bool = True,
    finished: bool = True,
    error: bool = False,
    unread: bool = False,
) -> AnswerFacts:
    return AnswerFacts(
        usage=usage or Usage(),
        counted_output_tokens=counted,
        saw_output=saw_output,
        ended=ended,
        finished=finished,
        error=error,
        unread=unread,
    )


@pytest.mark.parametrize("value", ["svc", "a.b_c:d-e", "x" * 128])
def test_ids_of_the_safe_charset_are_valid(value: str) -> None:
    assert is_valid_id(value)


@pytest.mark.parametrize("value", ["", "x" * 129, "a{b}", "a b", "ä", "a\n", "a*", "a/b", "a\x00"])
def test_anything_else_is_not_an_id(value: str) -> None:
    assert not is_valid_id(value)


def test_reservation_ids_are_valid_and_differ() -> None:
    ids = {new_reservation_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(is_valid_id(value) for value in ids)


@pytest.mark.parametrize("value", [-1, MAX_LIMIT + 1])
def test_a_limit_outside_the_exact_integers_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="tpm"):
        ServiceLimit(service_id="s", rpm=1, tpm=value)


def test_later_usage_overwrites_field_by_field_and_is_never_added() -> None:
    first = Usage(input_tokens=57, output_tokens=0)
    assert first.merged(Usage(input_tokens=57, output_tokens=4)) == Usage(
        input_tokens=57, output_tokens=4
    )


def test_a_placeholder_zero_does_not_overwrite_a_real_number() -> None:
    real = Usage(input_tokens=812, output_tokens=96)
    assert real.merged(Usage(input_tokens=0, output_tokens=0)) == real


def test_a_partial_report_keeps_what_was_known() -> None:
    known = Usage(input_tokens=900, output_tokens=12).merged(Usage(cached_input_tokens=512))
    assert (known.input_tokens, known.output_tokens, known.cached_input_tokens) == (900, 12, 512)


def test_unknown_differs_from_zero() -> None:
    assert not Usage(input_tokens=3).is_known
    assert Usage(input_tokens=0, output_tokens=0).is_known
    assert Usage(input_tokens=0, output_tokens=0).is_zero
    assert not Usage().is_zero


_HOURS = [(3_599_001, "1h0m0s"), (25_404_000, "7h3m24s"), (90_000_000, "25h0m0s")]


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0ms"),
        (-5, "0ms"),
        (999, "999ms"),
        (1000, "1s"),
        (1001, "2s"),
        (90_000, "1m30s"),
        *_HOURS,
    ],
)
def test_durations_are_spelt_as_openai_does(milliseconds: int, text: str) -> None:
    assert duration_text(milliseconds) == text


def test_a_handle_survives_the_trip_through_metadata() -> None:
    assert handle_from_fields(HANDLE.to_fields()) == HANDLE
    # Envoy's request id may be a client's text.
    strange = replace(HANDLE, request_id="a|b||", model="m|x", learned_permille=7)
    assert handle_from_fields(strange.to_fields()) == strange


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rid": "r"},
        {"rid": "r", "root": "svc"},
        {**HANDLE.to_fields(), "root": ""},
        {**HANDLE.to_fields(), "rid": "r}{"},
        {**HANDLE.to_fields(), "hdl": "openai_chat|1|2"},
    ],
)
def test_what_is_not_a_handle_is_none(fields: dict[str, str]) -> None:
    assert handle_from_fields(fields) is None


def test_header_values_are_never_negative() -> None:
    view = WindowView(limit=10, remaining=-3, reset_ms=1500)
    fields = limit_fields(
        Admitted(
            reservation_id="r",
            root="svc",
            minute="202611300700",
            input_tokens=1,
            reserved_tokens=2,
            requests=view,
            tokens=view,
        )
    )
    assert fields["remaining_tokens"] == "0"
    assert fields["reset_requests"] == "2s"


def test_complete_with_usage_is_charged_as_used_and_enters_history() -> None:
    end = settle_answer(HANDLE, facts(usage=Usage(input_tokens=45, output_tokens=511)))
    assert (end.input_tokens, end.output_tokens) == (45, 511)
    assert end.knowledge is Knowledge.KNOWN
    assert end.outcome is Outcome.COMPLETE
    assert end.writes_history
    assert end.model == HANDLE.model


def test_complete_without_usage_is_counted_and_stays_out_of_history() -> None:
    end = settle_answer(HANDLE, facts(counted=500))
    assert (end.input_tokens, end.output_tokens) == (45, 500)
    assert end.knowledge is Knowledge.COUNTED
    assert end.outcome is Outcome.COMPLETE_ESTIMATED
    assert not end.writes_history


def test_a_cut_answer_is_charged_for_what_passed_not_for_the_reserve() -> None:
    end = settle_answer(HANDLE, facts(counted=7, ended=False, finished=False))
    assert end.input_tokens + end.output_tokens == 45 + 7
    assert end.outcome is Outcome.CUT
    assert not end.writes_history


def test_a_cut_after_the_final_usage_is_complete() -> None:
    end = settle_answer(
        HANDLE, facts(usage=Usage(input_tokens=45, output_tokens=9), ended=False, finished=True)
    )
    assert end.outcome is Outcome.COMPLETE
    assert end.output_tokens == 9


def test_running_usage_of_a_cut_answer_is_the_floor_of_the_charge() -> None:
    end = settle_answer(
        HANDLE,
        facts(
            usage=Usage(input_tokens=44, output_tokens=12), counted=10, ended=False, finished=False
        ),
    )
    assert (end.input_tokens, end.output_tokens) == (44, 12)
    assert end.knowledge is Knowledge.COUNTED


def test_an_error_instead_of_an_answer_gives_everything_back() -> None:
    end = settle_answer(HANDLE, facts(saw_output=False, error=True, finished=False))
    assert end.state is State.RELEASED
    assert end.outcome is Outcome.UPSTREAM_REFUSED
    assert end.knowledge is Knowledge.KNOWN


def test_an_error_in_mid_stream_is_charged_and_reconciled() -> None:
    end = settle_answer(HANDLE, facts(counted=3, error=True, finished=False))
    assert end.input_tokens + end.output_tokens == 48
    assert end.state is State.RECONCILING
    assert end.outcome is Outcome.UPSTREAM_BROKEN


def test_an_answer_that_nobody_can_read_keeps_the_reserve_as_a_guess() -> None:
    end = settle_answer(HANDLE, facts(counted=3, unread=True))
    assert end.input_tokens + end.output_tokens == HANDLE.reserved_tokens
    assert end.knowledge is Knowledge.GUESSED
    assert not end.writes_history


def test_our_own_stop_keeps_at_least_the_reserve_as_a_guess() -> None:
    end = settle_interrupted(HANDLE, facts(counted=3, ended=False, finished=False))
    assert end.input_tokens + end.output_tokens == 1045
    assert end.knowledge is Knowledge.GUESSED
    longer = settle_interrupted(HANDLE, facts(counted=2000, ended=False, finished=False))
    assert longer.input_tokens + longer.output_tokens == 2045


@pytest.mark.parametrize("outcome", [Outcome.UPSTREAM_REFUSED, Outcome.NOT_FORWARDED])
def test_the_ending_releases_what_was_never_answered(outcome: Outcome) -> None:
    end = settle_ending(HANDLE, outcome)
    assert end.state is State.RELEASED
    assert end.source is Source.ENDING


def test_the_ending_alone_charges_the_reserve_as_a_guess() -> None:
    end = settle_ending(HANDLE, Outcome.CLIENT_GONE)
    assert end.input_tokens + end.output_tokens == 1045
    assert end.knowledge is Knowledge.GUESSED
    assert settle_ending(HANDLE, Outcome.UPSTREAM_BROKEN).state is State.RECONCILING


def test_a_release_charges_nothing() -> None:
    end = release(HANDLE, Outcome.NOT_FORWARDED, Source.ADMISSION)
    assert (end.input_tokens, end.output_tokens, end.state) == (0, 0, State.RELEASED)
