"""The ledger beside a provider's export: sums of both sides by day, model, key or request."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from enum import StrEnum

from extproc.core.exports import Export, ExportRow
from extproc.core.ledger_rows import (
    CACHE_WRITE,
    CACHE_WRITE_1H,
    CACHE_WRITE_5M,
    CACHED_INPUT,
    INPUT,
    LedgerRow,
    day_of,
    disjoint,
)


class By(StrEnum):
    """What sums are taken by."""

    DAY = "day"
    MODEL = "model"
    KEY = "key"
    REQUEST = "request"


COST = "cost_micros"
REQUESTS = "requests"
_PPM = 1_000_000
# A class that an export does not tell apart is counted there as this one.
_COARSER = {
    CACHE_WRITE_5M: CACHE_WRITE,
    CACHE_WRITE_1H: CACHE_WRITE,
    CACHE_WRITE: INPUT,
    CACHED_INPUT: INPUT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """What is still alike: an absolute difference, or one in so many millionths of the export's
    sum. Whichever allows more counts."""

    micros: int = 0
    tokens: int = 0
    requests: int = 0
    ppm: int = 0

    def allows(self, measure: str, difference: int, export: int) -> bool:
        """Whether ``difference`` to what the export says can be left."""
        absolute = {COST: self.micros, REQUESTS: self.requests}.get(measure, self.tokens)
        return abs(difference) <= max(absolute, abs(export) * self.ppm // _PPM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What the export's names are called in the ledger; a name that is absent is the same."""

    models: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One measure of one group on both sides. ``group`` has the values that sums are taken by.

    ``measure`` is a token class, ``requests`` or ``cost_micros``.
    """

    group: tuple[str, ...]
    measure: str
    ledger: int
    export: int
    is_tolerated: bool

    @property
    def difference(self) -> int:
        """Positive: the ledger has more than the provider says."""
        return self.ledger - self.export


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """All groups, and the totals of both sides; see ``beyond`` for what someone must look at."""

    by: tuple[By, ...]
    groups: tuple[Difference, ...]
    totals: tuple[Difference, ...]

    @property
    def beyond(self) -> tuple[Difference, ...]:
        """The groups whose difference is not tolerated."""
        return tuple(each for each in self.groups if not each.is_tolerated)


def differences(
    ledger: Iterable[LedgerRow],
    export: Export,
    *,
    by: tuple[By, ...] = (By.DAY, By.MODEL),
    tolerance: Tolerance | None = None,
    names: Names | None = None,
    key_of: Callable[[LedgerRow], str] = lambda row: row.root,
    zone: tzinfo = UTC,
) -> Reconciliation:
    """Both sides by group, ordered by group and measure.

    Only what the export tells is compared; classes that it does not tell apart are added up first.
    A request of the ledger is known by its provider's request id, and has none ("") in rows where
    that was not seen. ``ledger`` holds rows of the export's provider and days only.
    """
    names = names or Names()
    tolerance = tolerance or Tolerance()
    ours: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    theirs: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for row in ledger:
        values = {
            By.DAY: day_of(row, zone).isoformat() if By.DAY in by else "",
            By.MODEL: row.model,
            By.KEY: key_of(row) if By.KEY in by else "",
            By.REQUEST: row.provider_request_id,
        }
        _add(ours[tuple(values[each] for each in by)], _of_ledger(row, export))
    for told in export.rows:
        values = {
            By.DAY: told.day.isoformat(),
            By.MODEL: names.models.get(told.model, told.model),
            By.KEY: names.keys.get(told.key, told.key),
            By.REQUEST: told.request_id or "",
        }
        _add(theirs[tuple(values[each] for each in by)], _of_export(told))
    groups = [
        _difference(group, measure, ours[group][measure], theirs[group][measure], tolerance)
        for group in sorted({*ours, *theirs})
        for measure in sorted({*ours[group], *theirs[group]})
    ]
    measures = sorted({each.measure for each in groups})
    return Reconciliation(
        by=by,
        groups=tuple(groups),
        totals=tuple(_total(groups, measure, tolerance) for measure in measures),
    )


def _add(sums: Counter[str], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        sums[name] += count


def _of_ledger(row: LedgerRow, export: Export) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for name, count in disjoint(row.tokens).items():
        told: str | None = name
        while told is not None and told not in export.classes:
            told = _COARSER.get(told)
        if told is not None:
            sums[told] += count
    if export.tells_cost:
        sums[COST] += row.cost_micros
    if export.tells_requests:
        sums[REQUESTS] += row.requests
    return sums


def _of_export(row: ExportRow) -> dict[str, int]:
    sums = dict(row.tokens)
    if row.cost_micros is not None:
        sums[COST] = row.cost_micros
    if row.requests is not None:
        sums[REQUESTS] = row.requests
    return sums


def _difference(
    group: tuple[str, ...], measure: str, ledger: int, export: int, tolerance: Tolerance
) -> Difference:
    return Difference(
        group=group,
        measure=measure,
        ledger=ledger,
        export=export,
        is_tolerated=tolerance.allows(measure, ledger - export, export),
    )


def _total(groups: Iterable[Difference], measure: str, tolerance: Tolerance) -> Difference:
    of_measure = [each for each in groups if each.measure == measure]
    ledger = sum(each.ledger for each in of_measure)
    export = sum(each.export for each in of_measure)
    return _difference((), measure, ledger, export, tolerance)
