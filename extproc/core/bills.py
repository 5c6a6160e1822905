"""A bill from ledger rows: what was charged, and the same computed again from tokens and prices.

The total is what stands in the ledger. A bill never repairs: where the computation says something
else, the reservation is listed as a discrepancy, and the line ``UNEXPLAINED`` holds the difference,
so that the lines always add up to the total.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, tzinfo
from typing import NamedTuple

from extproc.core.ledger_rows import LedgerRow, day_of, disjoint, in_period, reservations
from extproc.core.policies import Scope
from extproc.core.subjects import read_subject

# Classes of lines that are no tokens: a cost that is not known by class, and what was charged but
# cannot be computed.
WHOLE = "whole"
UNEXPLAINED = "unexplained"
_LAST = {WHOLE: 1, UNEXPLAINED: 2}


class Priced(NamedTuple):
    """So many tokens or calls of one class, and what they cost in micro-USD."""

    quantity: int
    micros: int


# What a whole reservation cost by class, by the prices that stand in it: a partition of its tokens,
# and the sum is its cost. Raises LookupError or ValueError where it cannot be computed.
CostOf = Callable[[LedgerRow], Mapping[str, Priced]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BillLine:
    """What one class of tokens of one model cost on one day, at one version of the prices.

    ``requests`` had such tokens; a request stands in the lines of several classes.
    """

    day: date
    model: str
    price_version: str
    token_class: str
    requests: int
    tokens: int
    cost_micros: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Discrepancy:
    """A reservation of which the ledger and the computation say different things.

    ``computed_micros`` is None where there is no price to compute with.
    """

    day: date
    request_id: str
    endpoint: str
    reservation_id: str
    model: str
    price_version: str
    charged_micros: int
    computed_micros: int | None

    @property
    def difference_micros(self) -> int:
        """Charged without reason; negative: not charged."""
        return self.charged_micros - (self.computed_micros or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """A bill for what was admitted in [start, end). Days are those of ``zone``.

    ``computed_micros`` is None where nothing was computed. ``by_knowledge`` says how much of the
    total was measured and how much is an estimate.
    """

    tenant: str
    start: datetime
    end: datetime
    zone: str
    lines: tuple[BillLine, ...]
    discrepancies: tuple[Discrepancy, ...]
    requests: int
    total_micros: int
    computed_micros: int | None
    by_knowledge: Mapping[str, int]


def bill(
    rows: Iterable[LedgerRow],
    *,
    tenant: str,
    start: datetime,
    end: datetime,
    zone: tzinfo = UTC,
    cost_of: CostOf | None = None,
) -> Bill:
    """The bill of ``rows``, which are already the tenant's; rows outside the period are left out.

    Without ``cost_of`` nothing is computed again, and costs are not known by class.
    """
    lines: dict[tuple[date, str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    discrepancies: list[Discrepancy] = []
    knowledge: Counter[str] = Counter()
    requests = total = computed_total = 0
    for row in reservations(in_period(rows, start, end)):
        day = day_of(row, zone)
        parts: Mapping[str, Priced] = _parts(row, WHOLE, row.cost_micros)
        if cost_of is not None:
            parts, computed = _computed(cost_of, row)
            computed_total += computed or 0
            if computed != row.cost_micros:
                discrepancies.append(_discrepancy(row, day, computed))
        requests += row.requests
        total += row.cost_micros
        knowledge[row.knowledge] += row.cost_micros
        for name, priced in parts.items():
            line = lines[day, row.model, row.price_version, name]
            line[0] += row.requests
            line[1] += priced.quantity
            line[2] += priced.micros
    return Bill(
        tenant=tenant,
        start=start,
        end=end,
        zone=str(zone),
        lines=tuple(_line(place, lines[place]) for place in sorted(lines, key=_place)),
        discrepancies=tuple(discrepancies),
        requests=requests,
        total_micros=total,
        computed_micros=None if cost_of is None else computed_total,
        by_knowledge=dict(sorted(knowledge.items())),
    )


def whole(cost_of: Callable[[LedgerRow], int]) -> CostOf:
    """A CostOf from a function that knows no classes."""
    return lambda row: _parts(row, WHOLE, cost_of(row))


def is_of(row: LedgerRow, scope: Scope, value: str) -> bool:
    """Whether the row's subject has this value of a scope; unreadable subjects have none."""
    if scope is Scope.MODEL:
        return row.model == value
    try:
        return read_subject(row.subject).values.get(scope) == value
    except ValueError:
        return False


def _parts(row: LedgerRow, name: str, micros: int) -> dict[str, Priced]:
    """The tokens by class without a cost, and the whole cost as one part more."""
    parts = {name: Priced(count, 0) for name, count in disjoint(row.tokens).items()}
    return {**parts, name: Priced(0, micros)}


def _computed(cost_of: CostOf, row: LedgerRow) -> tuple[Mapping[str, Priced], int | None]:
    try:
        parts = {name: each for name, each in cost_of(row).items() if any(each)}
    except (LookupError, ValueError):
        return _parts(row, UNEXPLAINED, row.cost_micros), None
    computed = sum(each.micros for each in parts.values())
    if computed != row.cost_micros:
        parts[UNEXPLAINED] = Priced(0, row.cost_micros - computed)
    return parts, computed


def _discrepancy(row: LedgerRow, day: date, computed: int | None) -> Discrepancy:
    return Discrepancy(
        day=day,
        request_id=row.request_id,
        endpoint=row.endpoint,
        reservation_id=row.reservation_id,
        model=row.model,
        price_version=row.price_version,
        charged_micros=row.cost_micros,
        computed_micros=computed,
    )


def _place(key: tuple[date, str, str, str]) -> tuple[date, str, str, int, str]:
    day, model, version, name = key
    return day, model, version, _LAST.get(name, 0), name


def _line(key: tuple[date, str, str, str], sums: list[int]) -> BillLine:
    day, model, version, name = key
    requests, tokens, cost = sums
    return BillLine(
        day=day,
        model=model,
        price_version=version,
        token_class=name,
        requests=requests,
        tokens=tokens,
        cost_micros=cost,
    )
