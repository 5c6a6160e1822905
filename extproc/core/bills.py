"""A bill from ledger rows: what was charged, and the same computed again from tokens and prices.

The total is what stands in the ledger. A bill never repairs: where the computation says something
else, the reservation is listed as a discrepancy, and the line ``UNEXPLAINED`` holds the difference,
so that the lines always add up to the total.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, tzinfo

from extproc.core.ledger_rows import CLASSES, LedgerRow, day_of, disjoint, in_period, reservations
from extproc.core.policies import Scope
from extproc.core.subjects import read_subject

# Micro-USD by class of a whole reservation, by its price version: their sum is its cost. Raises
# LookupError for a version or model that has no price.
CostOf = Callable[[LedgerRow], Mapping[str, int]]

# Classes of lines that are no tokens: a cost that is not known by class, and what was charged but
# cannot be computed.
WHOLE = "whole"
UNEXPLAINED = "unexplained"
_ORDER = {name: place for place, name in enumerate((*CLASSES, WHOLE, UNEXPLAINED))}


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
        tokens = disjoint(row.tokens)
        costs: Mapping[str, int] = {WHOLE: row.cost_micros}
        if cost_of is not None:
            costs, computed = _computed(cost_of, row)
            computed_total += computed or 0
            if computed != row.cost_micros:
                discrepancies.append(_discrepancy(row, day, computed))
        requests += row.requests
        total += row.cost_micros
        knowledge[row.knowledge] += row.cost_micros
        for name in {**tokens, **costs}:
            line = lines[day, row.model, row.price_version, name]
            line[0] += row.requests
            line[1] += tokens.get(name, 0)
            line[2] += costs.get(name, 0)
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
    return lambda row: {WHOLE: cost_of(row)}


def is_of(row: LedgerRow, scope: Scope, value: str) -> bool:
    """Whether the row's subject has this value of a scope; unreadable subjects have none."""
    if scope is Scope.MODEL:
        return row.model == value
    try:
        return read_subject(row.subject).values.get(scope) == value
    except ValueError:
        return False


def _computed(cost_of: CostOf, row: LedgerRow) -> tuple[Mapping[str, int], int | None]:
    try:
        costs = {name: cost for name, cost in cost_of(row).items() if cost}
    except LookupError:
        return {UNEXPLAINED: row.cost_micros}, None
    computed = sum(costs.values())
    if computed != row.cost_micros:
        costs[UNEXPLAINED] = costs.get(UNEXPLAINED, 0) + row.cost_micros - computed
    return costs, computed


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
    return day, model, version, _ORDER.get(name, len(_ORDER)), name


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
