"""The ledger: one immutable row for each change of what a request is charged.

The first end of a reservation is revision 1. Better knowledge later is another row that holds the
difference, so every number of a row may be added up: over a request, a day, a tenant. A row comes
from a usage event (``lua/include/event.lua``), which ``core.ledger_event`` reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

from extproc.core.usage import TOTALS, Usage

# The parts of input and output, and calls, as the ledger has columns of them.
KIND_FIELDS = tuple(
    name for one in fields(Usage) if (name := one.name).removesuffix("_tokens") not in TOTALS
)


class LedgerEntry(NamedTuple):
    """One row: what changed. ``request_id``, ``endpoint``, ``reservation_id`` and ``revision`` name
    it, so that the same event makes one row however often it comes.

    ``endpoint`` is the wire format; ``subject`` who asked (``core.subjects``), empty if not known.
    ``cost_micros`` are micro-USD. Tokens and costs are differences to the revisions before and may
    be negative. Parts by kind are inside ``input_tokens`` and ``output_tokens`` (see
    ``core.usage``), None where nothing of the kind changed. What was reserved stands in revision 1
    and is 0 later. ``prices`` and ``price_version`` are those of the admission. ``knowledge`` is
    guessed, counted or known; ``status`` the state of the reservation. Times are milliseconds since
    the epoch; ``minute`` (UTC, yyyyMMddHHmm) is that of the window in which the request counts.

    A tuple, as there are thousands a second; its fields are in the order of the table's columns.
    """

    request_id: str
    endpoint: str
    reservation_id: str
    revision: int
    root: str
    subject: str
    model: str
    provider: str
    provider_request_id: str
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int | None
    cache_write_tokens: int | None
    reasoning_tokens: int | None
    cache_write_5m_tokens: int | None
    cache_write_1h_tokens: int | None
    audio_input_tokens: int | None
    audio_output_tokens: int | None
    image_input_tokens: int | None
    image_output_tokens: int | None
    other_input_tokens: int | None
    server_tool_calls: int | None
    reserved_tokens: int
    reserved_cost_micros: int
    cost_micros: int
    prices: str
    price_version: str
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

    async def read(self, root: str, *, at_most: int) -> list[UsageEvent]:
        """The next events that nobody has read; this reader keeps them until they are dropped."""
        ...

    async def claim(self, root: str, *, at_most: int) -> list[UsageEvent]:
        """Events that a reader seems to have died with; this one's from now on."""
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
