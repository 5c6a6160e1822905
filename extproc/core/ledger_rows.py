"""Rows of the ledger as bills, reconciliation and replay read them.

The rows of one reservation stand together, in the order of their revisions: a later row holds only
the difference that better knowledge made, so what a request used and cost is the sum of its rows.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime, tzinfo
from itertools import groupby
from typing import Protocol

from extproc.core.usage import Usage

# Classes that have a price of their own and of which none is a part of another.
INPUT = "input"
OUTPUT = "output"
CACHED_INPUT = "cached_input"
CACHE_WRITE = "cache_write"
CACHE_WRITE_5M = "cache_write_5m"
CACHE_WRITE_1H = "cache_write_1h"
CALLS = "server_tool_calls"
CLASSES = (INPUT, CACHED_INPUT, CACHE_WRITE_5M, CACHE_WRITE_1H, CACHE_WRITE, OUTPUT, CALLS)


# Attributes of an entry, and the kinds that they are in ``LedgerRow.tokens``.
_KINDS = {one.name: one.name.removesuffix("_tokens") for one in fields(Usage)}


class Entry(Protocol):
    """A row of the ledger's table; it has an attribute for each field of ``Usage`` too."""

    @property
    def request_id(self) -> str: ...
    @property
    def endpoint(self) -> str: ...
    @property
    def reservation_id(self) -> str: ...
    @property
    def revision(self) -> int: ...
    @property
    def root(self) -> str: ...
    @property
    def subject(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def provider_request_id(self) -> str: ...
    @property
    def reserved_cost_micros(self) -> int: ...
    @property
    def cost_micros(self) -> int: ...
    @property
    def prices(self) -> str: ...
    @property
    def price_version(self) -> str: ...
    @property
    def knowledge(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def admitted_at_ms(self) -> int: ...
    @property
    def settled_at_ms(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One change of a charge.

    ``tokens`` are differences by kind, named as ``core.usage.Usage.kinds`` names them: ``input``
    includes what was read from and written to caches, ``output`` includes reasoning; kinds of zero
    may be absent. ``cost_micros`` is a difference too, in micro-USD. Times are Unix milliseconds;
    all rows of a reservation have its ``admitted_at_ms``, its ``prices`` (the text of its rates)
    and their ``price_version`` ("" = none). ``subject`` is the text of ``core.subjects``.
    """

    request_id: str
    endpoint: str
    reservation_id: str
    revision: int
    root: str
    subject: str = ""
    model: str
    provider: str
    provider_request_id: str = ""
    tokens: Mapping[str, int] = field(default_factory=dict)
    reserved_cost_micros: int = 0
    cost_micros: int
    prices: str = ""
    price_version: str = ""
    knowledge: str = ""
    outcome: str = ""
    admitted_at_ms: int
    settled_at_ms: int

    @property
    def requests(self) -> int:
        """1 for the row with which a reservation began in the ledger, 0 for the others."""
        return 1 if self.revision == 1 else 0


def row_of(entry: Entry) -> LedgerRow:
    """A row of the table as it is read here."""
    counts = {kind: getattr(entry, name) for name, kind in _KINDS.items()}
    return LedgerRow(
        request_id=entry.request_id,
        endpoint=entry.endpoint,
        reservation_id=entry.reservation_id,
        revision=entry.revision,
        root=entry.root,
        subject=entry.subject,
        model=entry.model,
        provider=entry.provider,
        provider_request_id=entry.provider_request_id,
        tokens={kind: count for kind, count in counts.items() if count},
        reserved_cost_micros=entry.reserved_cost_micros,
        cost_micros=entry.cost_micros,
        prices=entry.prices,
        price_version=entry.price_version,
        knowledge=entry.knowledge,
        outcome=entry.outcome,
        admitted_at_ms=entry.admitted_at_ms,
        settled_at_ms=entry.settled_at_ms,
    )


def usage_of(row: LedgerRow) -> Usage:
    """What the row used, as prices are applied to it. The totals are known, kinds may not be."""
    counts: dict[str, int | None] = {name: row.tokens.get(kind) for name, kind in _KINDS.items()}
    counts["input_tokens"] = row.tokens.get(INPUT, 0)
    counts["output_tokens"] = row.tokens.get(OUTPUT, 0)
    return Usage(**counts)


def disjoint(tokens: Mapping[str, int]) -> dict[str, int]:
    """``tokens`` of a row by ``CLASSES``: their sum counts nothing twice, zeros are left out.

    Linear, so that the classes of a sum of rows are the sums of their classes.
    """
    read = tokens.get(CACHED_INPUT, 0)
    written = tokens.get(CACHE_WRITE, 0)
    short, long = tokens.get(CACHE_WRITE_5M, 0), tokens.get(CACHE_WRITE_1H, 0)
    classes = {
        INPUT: tokens.get(INPUT, 0) - read - written,
        CACHED_INPUT: read,
        CACHE_WRITE_5M: short,
        CACHE_WRITE_1H: long,
        CACHE_WRITE: written - short - long,
        OUTPUT: tokens.get(OUTPUT, 0),
        CALLS: tokens.get(CALLS, 0),
    }
    return {name: count for name, count in classes.items() if count}


def reservations(rows: Iterable[LedgerRow]) -> Iterator[LedgerRow]:
    """One row for each reservation: the sum of its rows, with the last one's words."""
    for _, group in groupby(rows, key=_identity):
        yield _sum(list(group))


def in_period(rows: Iterable[LedgerRow], start: datetime, end: datetime) -> Iterator[LedgerRow]:
    """The rows of what was admitted in [start, end): all rows of a reservation, or none."""
    first, last = _milliseconds(start), _milliseconds(end)
    return (row for row in rows if first <= row.admitted_at_ms < last)


def day_of(row: LedgerRow, zone: tzinfo = UTC) -> date:
    """The day of the admission in ``zone``."""
    return datetime.fromtimestamp(row.admitted_at_ms // 1000, zone).date()


def _identity(row: LedgerRow) -> tuple[str, str, str]:
    return row.request_id, row.endpoint, row.reservation_id


def _sum(rows: list[LedgerRow]) -> LedgerRow:
    if len(rows) == 1:
        return rows[0]
    tokens: Counter[str] = Counter()
    for row in rows:
        for name, count in row.tokens.items():
            tokens[name] += count
    first = rows[0]
    return replace(
        rows[-1],
        revision=first.revision,
        tokens={name: count for name, count in tokens.items() if count},
        reserved_cost_micros=first.reserved_cost_micros,
        cost_micros=sum(row.cost_micros for row in rows),
        prices=first.prices,
        price_version=first.price_version,
    )


def _milliseconds(moment: datetime) -> int:
    """Exact: a float of seconds is not."""
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
