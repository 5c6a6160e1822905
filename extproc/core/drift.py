"""Quotas and budgets in Redis beside the sums of the ledger: what must be corrected, and why.

Only quotas can be compared: they charge the period of the admission and keep it for as long as it
lasts. What was settled in Redis and is not in the ledger yet must be told, or it would look like
drift; who asks reads the counters first and the ledger after what was unwritten then has arrived.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from extproc.core.buckets import BucketKind, Unit
from extproc.core.counted import buckets_of, hidden_scopes, period_of, taken
from extproc.core.ledger_rows import LedgerRow
from extproc.core.policies import Scope
from extproc.core.resolve import PolicyIndex

# (key without the period, name of the period)
Place = tuple[str, str]


class Why(StrEnum):
    """What a difference means."""

    LOST = "the counter is missing in Redis"
    TOO_LOW = "Redis has counted less than the ledger: a write was lost"
    TOO_HIGH = "Redis has counted more than the ledger: an event was lost, or counted twice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A quota as it stands in Redis: ``used`` of what was settled, without what is held."""

    key: str
    period: str
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The same by the ledger. ``is_complete`` is False where requests may have counted there that
    the ledger cannot tell: such a quota is left alone."""

    label: str
    subject: str
    unit: Unit
    used: int
    is_complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Add ``change`` to the counter's ``used`` to have what the ledger says."""

    key: str
    period: str
    label: str
    subject: str
    unit: Unit
    was: int
    ledger: int
    unwritten: int
    why: Why

    @property
    def change(self) -> int:
        """In the counter's unit; negative where Redis counted too much."""
        return self.ledger + self.unwritten - self.was


def expected(
    rows: Iterable[LedgerRow], index_of: Callable[[str], PolicyIndex]
) -> dict[Place, Expected]:
    """The sums of ``rows`` by quota.

    ``rows`` are all that were admitted in the periods that are compared; ``index_of`` gives the
    policies of a root, all versions, with keys as Redis has them.
    """
    sums: Counter[Place] = Counter()
    found: dict[Place, tuple[str, str, Unit]] = {}
    unseen: set[Scope] = set()
    scopes: dict[Place, Scope] = {}
    for row in rows:
        unseen.update(hidden_scopes(row))
        for bucket in buckets_of(row, index_of(row.root)):
            if bucket.kind is not BucketKind.QUOTA:
                continue
            place = (bucket.key, period_of(bucket, row.admitted_at_ms))
            found[place] = (bucket.label, bucket.subject, bucket.unit)
            scopes[place] = Scope(bucket.subject.partition(":")[0])
            sums[place] += taken(row, bucket.unit)
    return {
        place: Expected(
            label=label,
            subject=subject,
            unit=unit,
            used=sums[place],
            is_complete=scopes[place] not in unseen,
        )
        for place, (label, subject, unit) in found.items()
    }


def corrections(
    readings: Iterable[Reading],
    ledger: Mapping[Place, Expected],
    *,
    unwritten: Mapping[Place, int] | None = None,
) -> tuple[Correction, ...]:
    """What must be added to which counter, ordered by key and period.

    ``unwritten`` is what settled events say that are not in ``ledger`` yet. Counters of which the
    ledger says nothing are left alone: their policy may be gone.
    """
    unwritten = unwritten or {}
    there = {(reading.key, reading.period): reading.used for reading in readings}
    found = []
    for place, told in sorted(ledger.items()):
        waiting = unwritten.get(place, 0)
        used = there.get(place)
        if not told.is_complete or (used or 0) == told.used + waiting:
            continue
        if used is None:
            why = Why.LOST
        else:
            why = Why.TOO_LOW if used < told.used + waiting else Why.TOO_HIGH
        found.append(
            Correction(
                key=place[0],
                period=place[1],
                label=told.label,
                subject=told.subject,
                unit=told.unit,
                was=used or 0,
                ledger=told.used,
                unwritten=waiting,
                why=why,
            )
        )
    return tuple(found)
