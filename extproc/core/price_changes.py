"""From the prices of a file to the rows that are to end and to be added; see docs/prices.md.

A file states all prices of each entry that it names, from a moment on, and says nothing of others.
No row is ever overwritten: a price that changes ends, and another one begins at that moment.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from extproc.core.price_book import MAX_SOURCE, PriceRow
from extproc.core.prices import Rate, RatePlan


class PriceChangeError(ValueError):
    """The file cannot be loaded: it would change what has been; a line for each price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceEntry:
    """All prices of one provider's models from ``effective_from`` on; None: from when it is loaded.

    Raises ValueError for prices that are no plan together.
    """

    provider: str
    model: str
    rates: tuple[Rate, ...]
    effective_from: datetime | None = None
    source: str = ""

    def __post_init__(self) -> None:
        RatePlan(self.rates)
        if len(self.source) > MAX_SOURCE:
            raise ValueError(f"source must be at most {MAX_SOURCE} characters")

    def rows(self, now: datetime) -> list[PriceRow]:
        """The rows that it is, where nothing was there before. Raises ValueError."""
        return [
            PriceRow(
                provider=self.provider,
                model=self.model,
                rate=rate,
                source=self.source,
                effective_from=self.effective_from or now,
            )
            for rate in self.rates
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceChange:
    """One price that changes at ``at``: ``ended`` rows get an end, ``added`` is new; the first may
    be empty, the second None."""

    at: datetime
    ended: tuple[PriceRow, ...]
    added: PriceRow | None

    def end_of(self, row: PriceRow) -> datetime:
        """A price that was to begin later never begins."""
        return max(self.at, row.effective_from)

    def text(self) -> str:
        """The change in one line, in micro-USD for a million."""
        row = self.added or self.ended[0]
        rate = row.rate
        words = [row.provider, row.model, rate.price_class.value]
        if rate.service_tier:
            words.append(f"tier {rate.service_tier}")
        if rate.above_input_tokens:
            words.append(f"above {rate.above_input_tokens}")
        before = ", ".join(_amount(each.rate) for each in self.ended) or "none"
        after = "none" if self.added is None else _amount(self.added.rate)
        return f"{' '.join(words)}: {before} -> {after} from {self.at:%Y-%m-%dT%H:%M:%SZ}"


def plan_changes(
    entries: Iterable[PriceEntry], stored: Sequence[PriceRow], now: datetime
) -> tuple[PriceChange, ...]:
    """What makes the entries true; nothing for what is so already.

    ``stored`` are all rows of these entries, those that have ended too. Raises PriceChangeError for
    a beginning in the past where a price counted then, or counts still: it would change old bills.
    """
    by_key: dict[tuple[object, ...], list[PriceRow]] = {}
    for row in stored:
        by_key.setdefault(row.key, []).append(row)
    changes: list[PriceChange] = []
    problems: list[str] = []
    for entry in entries:
        # A class that the file does not name has no price any more.
        wanted: dict[tuple[object, ...], PriceRow | None] = {
            key: None for key in by_key if key[:2] == (entry.provider, entry.model)
        }
        wanted |= {row.key: row for row in entry.rows(now)}
        for key, new in wanted.items():
            change = _change(new, by_key.get(key, []), entry.effective_from or now)
            if change is None:
                continue
            changes.append(change)
            if change.at < now and _would_change_history(entry, stored, change.at):
                problems.append(f"{change.text()}: a price counted then, which is never changed")
    if problems:
        raise PriceChangeError("\n".join(problems))
    return tuple(changes)


def applied(stored: Sequence[PriceRow], changes: Iterable[PriceChange]) -> list[PriceRow]:
    """The rows as they are after the changes."""
    rows = list(stored)
    for change in changes:
        rows = [
            replace(row, effective_to=change.end_of(row)) if row in change.ended else row
            for row in rows
        ]
        if change.added is not None:
            rows.append(change.added)
    return rows


def _change(wanted: PriceRow | None, rows: list[PriceRow], at: datetime) -> PriceChange | None:
    later = [row for row in rows if _counts_after(row, at)]
    if wanted is None:
        return PriceChange(at=at, ended=tuple(later), added=None) if later else None
    if len(later) == 1:
        (only,) = later
        begins = only.effective_from <= at
        if begins and only.effective_to is None and only.rate == wanted.rate:
            return None
    return PriceChange(at=at, ended=tuple(later), added=wanted)


def _counts_after(row: PriceRow, at: datetime) -> bool:
    if row.effective_to is None:
        return True
    return row.effective_to > at and row.effective_to > row.effective_from


def _would_change_history(entry: PriceEntry, stored: Sequence[PriceRow], at: datetime) -> bool:
    """Whether any price of the entry counted at or after ``at``: a class that is added to an entry
    in the past would change what its tokens cost then."""
    return any(
        (row.provider, row.model) == (entry.provider, entry.model) and _counts_after(row, at)
        for row in stored
    )


def _amount(rate: Rate) -> str:
    part = "" if rate.permille == 1000 else f" x {rate.permille}/1000"
    return f"{rate.micros_per_million}{part}"
