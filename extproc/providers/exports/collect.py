"""Adds up what an export says of the same day, model, key and request, exactly, and rounds once."""

from collections.abc import Hashable, Iterable, Mapping
from datetime import date
from decimal import Decimal

from extproc.core.exports import Export, ExportRow
from extproc.providers.exports.values import EXACT, MICROS, Place, whole

MAX_ROWS = 1_000_000
_MAX_SHOWN_TWICE = 5

_Group = tuple[date, str, str, str | None]


class Collector:
    """One file on its way to an Export. Raises ExportError past ``MAX_ROWS`` rows."""

    def __init__(self, file: str, provider: str) -> None:
        self._file = file
        self._provider = provider
        self._tokens: dict[_Group, dict[str, Decimal]] = {}
        self._costs: dict[_Group, Decimal] = {}
        self._requests: dict[_Group, int] = {}
        self._seen: dict[Hashable, str] = {}
        self._twice: list[str] = []
        self._twice_count = 0
        self._rows = 0
        self.warnings: list[str] = []

    def add(
        self,
        *,
        day: date,
        model: str,
        key: str,
        request_id: str | None = None,
        tokens: Mapping[str, Decimal | int],
        cost: Decimal | None = None,
        requests: int | None = None,
    ) -> None:
        """One row: tokens by class, a cost in dollars."""
        group = (day, model, key, request_id)
        sums = self._tokens.setdefault(group, {})
        for name, count in tokens.items():
            sums[name] = EXACT.add(sums.get(name, Decimal(0)), Decimal(count))
        if cost is not None:
            self._costs[group] = EXACT.add(self._costs.get(group, Decimal(0)), cost)
        if requests is not None:
            self._requests[group] = self._requests.get(group, 0) + requests

    def look(self, place: Place, content: Hashable) -> None:
        """Count a row, and notice one that stands twice: it is counted, but somebody should look
        whether the same page was saved twice."""
        self._rows += 1
        if self._rows > MAX_ROWS:
            place.wrong("", f"an export may have {MAX_ROWS} rows")
        first = self._seen.setdefault(content, place.row)
        if first != place.row:
            self._twice_count += 1
            if len(self._twice) < _MAX_SHOWN_TWICE:
                self._twice.append(f"{place.row} is the same as {first}")

    def export(self, *, classes: Iterable[str], tells_cost: bool, tells_requests: bool) -> Export:
        """All that was added, ordered."""
        warnings = [f"{self._file}: {text}" for text in self.warnings]
        if self._twice:
            more = "" if self._twice_count == len(self._twice) else ", and more"
            text = f"{self._twice_count} rows stand twice and are counted twice"
            warnings.append(f"{self._file}: {text} ({'; '.join(self._twice)}{more})")
        return Export(
            provider=self._provider,
            rows=tuple(map(self._row, sorted(self._tokens, key=_order))),
            classes=frozenset(classes),
            tells_cost=tells_cost,
            tells_requests=tells_requests,
            warnings=tuple(warnings),
        )

    def _row(self, group: _Group) -> ExportRow:
        day, model, key, request_id = group
        cost = self._costs.get(group)
        counts = {name: whole(count) for name, count in sorted(self._tokens[group].items())}
        return ExportRow(
            day=day,
            provider=self._provider,
            model=model,
            key=key,
            request_id=request_id,
            tokens={name: count for name, count in counts.items() if count},
            cost_micros=None if cost is None else whole(EXACT.multiply(cost, Decimal(MICROS))),
            requests=self._requests.get(group),
        )


def _order(group: _Group) -> tuple[date, str, str, str]:
    return group[0], group[1], group[2], group[3] or ""
