"""From a usage event to a row of the ledger."""

import pytest

from extproc.core.ledger import LedgerEntry, UsageEvent
from extproc.core.ledger_event import LedgerEventError, check, entry_of, is_plain
from extproc.providers.registry import provider_of
from extproc.stores.ledger_tables import usage_ledger
from tests.support.usage_events import ROOT, event


def read(fields: dict[str, str], root: str = ROOT) -> object:
    return entry_of(UsageEvent(root, "1-0", fields), provider_of=provider_of)


def test_an_event_is_a_row() -> None:
    entry = entry_of(UsageEvent(ROOT, "1-0", event()), provider_of=provider_of)
    assert entry.key == ("req-1", "openai_chat", "r1", 1)
    assert (entry.provider, entry.model, entry.root) == ("openai", "gpt-4o", ROOT)
    assert (entry.input_tokens, entry.output_tokens, entry.cost_micros) == (10, 20, 7)
    assert (entry.cached_input_tokens, entry.reasoning_tokens) == (4, 5)
    assert entry.audio_input_tokens is None
    assert (entry.reserved_tokens, entry.reserved_cost_micros) == (110, 9)
    assert (entry.status, entry.outcome, entry.source) == ("SETTLED", "complete", "metering")
    assert (entry.knowledge, entry.minute, entry.requests) == ("known", "202601010000", 1)


def test_a_correction_counts_no_request_and_may_be_negative() -> None:
    fields = event(revision=2, input=-3, output=-(2**53), kinds="server_tool_calls -1")
    entry = entry_of(UsageEvent(ROOT, "1-0", fields), provider_of=provider_of)
    assert (entry.requests, entry.input_tokens, entry.output_tokens) == (0, -3, -(2**53))
    assert entry.server_tool_calls == -1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("v", "2"),
        ("revision", "0"),
        ("revision", str(2**31)),
        ("reservation_id", "a b"),
        ("reservation_id", ""),
        ("request_id", "x" * 257),
        ("request_id", "\udcff"),
        ("root", "other"),
        ("root", "across:model:m"),
        ("who", "é"),
        ("who", "x" * 513),
        ("model", "\udc80"),
        ("wire_format", "x" * 65),
        ("input", "1.5"),
        ("input", "1e308"),
        ("input", ""),
        ("output", str(2**53 + 1)),
        ("cost", "nan"),
        ("cost", "٣"),
        ("kinds", "cached_input"),
        ("kinds", "unheard_of 3"),
        ("kinds", "input 3"),
        ("reserved", "-1"),
        ("state", "LOST"),
        ("outcome", ""),
        ("source", "nobody"),
        ("rank", "0"),
        ("at", "-1"),
        ("settled", str(10**15)),
        ("minute", "2026-01-01"),
    ],
)
def test_what_cannot_be_a_row_says_which_field(name: str, value: str) -> None:
    fields = event()
    fields[name] = value
    with pytest.raises(LedgerEventError, match=f"^{name}: "):
        read(fields, root="across:model:m" if value.startswith("across") else ROOT)


@pytest.mark.parametrize("name", sorted(set(event()) - {"kinds"}))
def test_a_field_that_is_missing_is_said(name: str) -> None:
    fields = event()
    del fields[name]
    with pytest.raises(LedgerEventError, match=f"^{name}: "):
        read(fields)


_NUMBERS: tuple[str, ...] = (
    "0",
    "-0",
    "00",
    "7",
    "-7",
    "",
    " 1",
    "1 2",
    "1_0",
    "+1",
    "1.0",
    "٣",
    "x",
    "1\n",
)
_NUMBERS += tuple(str(n) for n in (2**31 - 1, 2**31, 10**15 - 1, 10**15, 2**53, 2**53 + 1, 10**16))
_TEXTS: tuple[str, ...] = (
    "",
    "a",
    "a b",
    "é",
    "\udcff",
    "a\n",
    "x" * 64,
    "x" * 65,
    "x" * 128,
    "x" * 129,
)
_TEXTS += ("x" * 256, "x" * 257, "x" * 512, "x" * 513, "svc-1", "across:m", "202601010000", "1")


@pytest.mark.parametrize("name", sorted(set(event()) - {"kinds"}))
def test_what_is_taken_at_a_look_is_what_the_checks_let_through(name: str) -> None:
    """With every value in every field; a plain event is never one that a check would refuse."""
    for value in (*_NUMBERS, *_TEXTS):
        one = UsageEvent(ROOT, "1-0", {**event(), name: value})
        try:
            check(one)
        except LedgerEventError:
            assert not is_plain(one), (name, value)


def test_a_usual_event_is_taken_at_a_look() -> None:
    assert is_plain(UsageEvent(ROOT, "1-0", event()))
    assert is_plain(UsageEvent(ROOT, "1-0", event(revision=2, input=-3, cost=-7, minute="")))


def test_two_wrong_fields_do_not_make_a_right_one() -> None:
    """Fields are looked at together, with a space between them."""
    fields = event(input="10 20", output="", minute="202601010000 r1", reservation_id="")
    assert not is_plain(UsageEvent(ROOT, "1-0", fields))


def test_an_entry_is_in_the_order_of_the_columns() -> None:
    names = [column.name for column in usage_ledger.columns][1:]
    assert [name.removesuffix("_ms") for name in LedgerEntry._fields] == names
