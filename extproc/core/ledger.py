"""The ledger: one immutable row for each change of what a request is charged.

The first end of a reservation is revision 1. Better knowledge later is another row that holds the
difference, so every number of a row may be added up: over a request, a day, a tenant. A row comes
from a usage event (``lua/include/event.lua``), whose fields ``entry_of`` reads.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from extproc.core.ids import ACROSS_PREFIX, is_root_id, is_valid_id
from extproc.core.reservations import Knowledge, Outcome, Source, State
from extproc.core.subjects import MAX_BYTES
from extproc.core.usage import TOTALS, Usage

VERSION = "1"
# Redis' sums end here, where doubles are exact; differences may be as large either way.
MAX_NUMBER = 2**53
_MAX_TEXT = 256
_MAX_WORD = 64
_MAX_MS = 253_402_300_799_999  # the last of the year 9999
_NUMBER = re.compile(r"-?[0-9]{1,16}", re.ASCII)
_KIND = re.compile(r"([a-z0-9_]{1,32}) (-?[0-9]{1,16})", re.ASCII)
_MINUTE = re.compile(r"([0-9]{12})?", re.ASCII)
# The parts of input and output, and calls, as the ledger has columns of them.
KIND_FIELDS = tuple(
    name for one in fields(Usage) if (name := one.name).removesuffix("_tokens") not in TOTALS
)
_KIND_FIELD = {name.removesuffix("_tokens"): name for name in KIND_FIELDS}
_KNOWLEDGE = {str(int(one)): one.name.lower() for one in Knowledge if one is not Knowledge.NOTHING}


class LedgerEventError(ValueError):
    """A usage event that cannot be a row of the ledger; says which field is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One row: what changed. ``request_id``, ``endpoint``, ``reservation_id`` and ``revision`` name
    it, so that the same event makes one row however often it comes.

    ``endpoint`` is the wire format; ``subject`` who asked (``core.subjects``), empty if not known.
    ``cost_micros`` are micro-USD. Tokens and costs are differences to the revisions before and may
    be negative. Parts by kind are inside ``input_tokens`` and ``output_tokens`` (see
    ``core.usage``), None where nothing of the kind changed. What was reserved stands in revision 1
    and is 0 later. ``prices`` and ``price_version`` are those of the admission. ``knowledge`` is
    guessed, counted or known; ``status`` the state of the reservation. Times are milliseconds since
    the epoch; ``minute`` (UTC, yyyyMMddHHmm) is that of the window in which the request counts.
    """

    request_id: str
    endpoint: str
    reservation_id: str
    revision: int
    root: str
    subject: str
    model: str
    provider: str
    provider_request_id: str = ""
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_write_5m_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    audio_input_tokens: int | None = None
    audio_output_tokens: int | None = None
    image_input_tokens: int | None = None
    image_output_tokens: int | None = None
    other_input_tokens: int | None = None
    server_tool_calls: int | None = None
    reserved_tokens: int
    reserved_cost_micros: int
    cost_micros: int
    prices: str = ""
    price_version: str = ""
    source: str
    knowledge: str
    outcome: str
    status: str
    admitted_at_ms: int
    settled_at_ms: int
    minute: str

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What no two rows share."""
        return self.request_id, self.endpoint, self.reservation_id, self.revision

    @property
    def requests(self) -> int:
        """1 in the row that a request counts by, 0 in its corrections."""
        return int(self.revision == 1)


@dataclass(frozen=True, slots=True)
class UsageEvent:
    """One event as it was read. ``event_id`` is its place in the stream of ``root``."""

    root: str
    event_id: str
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DeadEvent:
    """An event that cannot be written, and why: kept for people."""

    event: UsageEvent
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What became of a batch: rows that are new, events that the ledger had already, dead ones."""

    rows: int = 0
    duplicates: int = 0
    dead: int = 0


class EventSource(Protocol):
    """Usage events in their streams; every call raises StoreUnavailableError and nothing else."""

    async def waiting(self) -> dict[str, int]:
        """How many events wait, by root; without roots where none do."""
        ...

    async def read(self, root: str, *, at_most: int, reclaim: bool) -> list[UsageEvent]:
        """The next events for this reader, who keeps them until they are dropped. ``reclaim``:
        first those that another reader seems to have died with."""
        ...

    async def drop(self, root: str, event_ids: Sequence[str]) -> None:
        """Take events out: the ledger has them."""
        ...


class Ledger(Protocol):
    """The ledger's tables. Raises StoreUnavailableError: then nothing of the batch was written, or,
    where it may have been, the same batch may be written again."""

    async def write(
        self, entries: Sequence[tuple[LedgerEntry, UsageEvent]], dead: Sequence[DeadEvent]
    ) -> Written:
        """All of it in one transaction, committed when this returns; what is there already is
        not written again. An entry that the tables refuse becomes a dead event."""
        ...


def entry_of(event: UsageEvent, *, provider_of: Callable[[str], str]) -> LedgerEntry:
    """Read an event; ``provider_of`` names the provider of a wire format. Raises LedgerEventError
    for one that no script of ours can have written."""
    given = event.fields
    if (version := given.get("v")) != VERSION:
        raise LedgerEventError(f"v: {version!r:.40} is not {VERSION}, which is all that is known")
    root = _text(given, "root")
    if root != event.root or not is_root_id(root):
        hint = " (shared)" if root.startswith(ACROSS_PREFIX) else ""
        raise LedgerEventError(f"root: {root!r:.140}{hint} in the stream of {event.root!r:.140}")
    reservation_id = _text(given, "reservation_id")
    if not is_valid_id(reservation_id):
        raise LedgerEventError(f"reservation_id: {reservation_id!r:.140} is no id")
    endpoint = _text(given, "wire_format", most=_MAX_WORD)
    minute = _text(given, "minute")
    if not _MINUTE.fullmatch(minute):
        raise LedgerEventError(f"minute: {minute!r:.40}")
    subject = _text(given, "who", most=MAX_BYTES)
    if not subject.isascii():
        raise LedgerEventError("who: is not ASCII")
    return LedgerEntry(
        request_id=_text(given, "request_id"),
        endpoint=endpoint,
        reservation_id=reservation_id,
        revision=_number(given, "revision", least=1, most=2**31 - 1),
        root=root,
        subject=subject,
        model=_text(given, "model"),
        provider=provider_of(endpoint),
        input_tokens=_number(given, "input"),
        output_tokens=_number(given, "output"),
        reserved_tokens=_number(given, "reserved", least=0),
        reserved_cost_micros=_number(given, "reserved_cost", least=0),
        cost_micros=_number(given, "cost"),
        prices=_text(given, "prices"),
        price_version=_text(given, "price_version", most=_MAX_WORD),
        source=_word(given, "source", Source),
        knowledge=_knowledge(given),
        outcome=_word(given, "outcome", Outcome),
        status=_word(given, "state", State),
        admitted_at_ms=_number(given, "at", least=0, most=_MAX_MS),
        settled_at_ms=_number(given, "settled", least=0, most=_MAX_MS),
        minute=minute,
        **_kinds(given),
    )


def _text(given: Mapping[str, str], name: str, *, most: int = _MAX_TEXT) -> str:
    text = given.get(name)
    if text is None:
        raise LedgerEventError(f"{name}: is missing")
    if len(text) > most:
        raise LedgerEventError(f"{name}: {len(text)} characters, {most} at most")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise LedgerEventError(f"{name}: is no UTF-8") from None
    return text


def _number(
    given: Mapping[str, str], name: str, *, least: int = -MAX_NUMBER, most: int = MAX_NUMBER
) -> int:
    text = given.get(name, "")
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise LedgerEventError(f"{name}: {text!r:.40} is no number from {least} to {most}")
    return int(text)


def _word(given: Mapping[str, str], name: str, words: type[Source | Outcome | State]) -> str:
    text = given.get(name, "")
    try:
        return words(text).value
    except ValueError:
        raise LedgerEventError(f"{name}: {text!r:.40} is not known") from None


def _knowledge(given: Mapping[str, str]) -> str:
    text = given.get("rank", "")
    if text not in _KNOWLEDGE:
        raise LedgerEventError(f"rank: {text!r:.40} is not known")
    return _KNOWLEDGE[text]


def _kinds(given: Mapping[str, str]) -> dict[str, Any]:
    text = given.get("kinds", "")
    kinds: dict[str, int] = {}
    for part in text.split(", ") if text else ():
        found = _KIND.fullmatch(part)
        field = None if found is None else _KIND_FIELD.get(found[1])
        if found is None or field is None or abs(int(found[2])) > MAX_NUMBER:
            raise LedgerEventError(f"kinds: {part!r:.60} is not known")
        kinds[field] = int(found[2])
    return kinds
