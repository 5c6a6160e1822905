"""The price book: every price with the time in which it counts, and which one a model has.

A book is never changed. Its rows are those of the table ``price`` (or of the settings); an old row
keeps its place with the moment at which it ended, so an old bill can always be computed again.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from extproc.core.prices import Rate, RatePlan

CURRENCY = "USD"
MAX_PROVIDER, MAX_MODEL, MAX_SOURCE = 64, 256, 256
ANY = "*"
_WILD = "*?["
_DIGEST_CHARACTERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRow:
    """One price from a moment on, in UTC and whole seconds.

    ``provider`` is a name as requests have it, or "*"; ``model`` a glob. ``effective_to`` None: it
    has no end yet. ``source`` is for people. Raises ValueError for what cannot be stored.
    """

    provider: str
    model: str
    rate: Rate
    effective_from: datetime
    effective_to: datetime | None = None
    source: str = ""
    currency: str = CURRENCY
    id: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name, value, most in (
            ("provider", self.provider, MAX_PROVIDER),
            ("model", self.model, MAX_MODEL),
        ):
            if not 1 <= len(value) <= most or not value.isprintable():
                raise ValueError(f"{name} must be 1 to {most} printable characters")
        if len(self.source) > MAX_SOURCE or not self.source.isprintable():
            raise ValueError(f"source must be at most {MAX_SOURCE} printable characters")
        if self.currency != CURRENCY:
            raise ValueError(f"currency must be {CURRENCY}")
        for moment in (self.effective_from, self.effective_to):
            if moment is not None and (moment.utcoffset() is None or moment.microsecond):
                raise ValueError("times have a zone and whole seconds")

    @property
    def unit(self) -> str:
        """What a million of which the price is for."""
        return "call" if self.rate.price_class.is_call else "token"

    @property
    def key(self) -> tuple[str, str, str, int, str]:
        """What it is the price of; two rows of one key never count at one moment."""
        rate = self.rate
        place = rate.service_tier, rate.above_input_tokens, rate.price_class.value
        return self.provider, self.model, *place

    def is_in_force(self, at: datetime) -> bool:
        return self.effective_from <= at and (self.effective_to is None or at < self.effective_to)

    @property
    def line(self) -> str:
        """What makes it this price and no other, in one line, for digests."""
        rate = self.rate
        words = (*self.key, rate.micros_per_million, rate.permille, self.currency)
        return "\x1f".join(map(str, (*words, self.effective_from.astimezone(UTC).isoformat())))


class PriceBook:
    """Rows, and the plan of prices that a model has by them at a moment."""

    def __init__(self, rows: Iterable[PriceRow] = ()) -> None:
        self._rows = tuple(sorted(rows, key=lambda row: (row.line, row.id or 0)))
        entries: dict[tuple[str, str], list[PriceRow]] = {}
        for row in self._rows:
            entries.setdefault((row.provider, row.model), []).append(row)
        # The most exact first: what is found first counts.
        self._entries = sorted(entries.items(), key=lambda entry: _exactness(*entry[0]))
        ends = (f"{row.line}\x1f{row.effective_to}" for row in self._rows)
        self.version = _digest(ends) if self._rows else ""

    @property
    def rows(self) -> tuple[PriceRow, ...]:
        return self._rows

    def plan(self, provider: str, model: str, at: datetime) -> RatePlan | None:
        """The prices of a model at ``at``; None: it has none, which is not free.

        Of several entries that match, the one with the provider's name comes before one for every
        provider, then a model's name before a glob, then the longer glob. All prices are of that
        one entry. A glob in another case than the model counts where none matches exactly.

        ``provider`` "": whichever it is. An entry without a price of input is as good as none.
        """
        folded = model.lower()
        for is_exact in (True, False):
            for (whose, glob), rows in self._entries:
                if provider and whose not in (ANY, provider):
                    continue
                matches = (
                    fnmatchcase(model, glob) if is_exact else fnmatchcase(folded, glob.lower())
                )
                if not matches:
                    continue
                found = [row for row in rows if row.is_in_force(at)]
                if found:
                    return _plan_or_none(found)
        return None

    def next_change(self, after: datetime) -> datetime | None:
        """The first moment after ``after`` at which a price begins or ends; None: never."""
        moments = (
            moment
            for row in self._rows
            for moment in (row.effective_from, row.effective_to)
            if moment is not None and moment > after
        )
        return min(moments, default=None)


def _plan_or_none(rows: list[PriceRow]) -> RatePlan | None:
    try:
        return plan_of(rows)
    except ValueError:
        return None


def plan_of(rows: Iterable[PriceRow]) -> RatePlan:
    """The plan of one entry's rows, with a digest of these as its version. Raises ValueError for
    rows that are none together."""
    found = sorted(rows, key=lambda row: row.line)
    return RatePlan(tuple(row.rate for row in found), _digest(row.line for row in found))


def _exactness(provider: str, glob: str) -> tuple[bool, bool, int, str, str]:
    is_wild = any(letter in glob for letter in _WILD)
    letters = sum(letter not in _WILD for letter in glob)
    return provider == ANY, is_wild, -letters, glob, provider


def _digest(lines: Iterable[str]) -> str:
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()[:_DIGEST_CHARACTERS]
