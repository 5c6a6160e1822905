"""Concrete counters: what one request meets, resolved from policies. Units stand in ``Unit``."""

from dataclasses import dataclass
from enum import StrEnum

# A script may take from so many counters of one root: it blocks Redis while it runs.
MAX_BUCKETS = 64


class BucketKind(StrEnum):
    """How a counter works in Redis."""

    MINUTE = "minute"  # string per UTC minute, TTL 120 s
    SLIDING = "sliding"  # sorted set by time with a running sum
    BUCKET = "bucket"  # hash: level and the time it was true
    SLOTS = "slots"  # sorted set of leases by deadline
    QUOTA = "quota"  # hash per period: used, held


class Unit(StrEnum):
    """What one request takes: of its estimate at admission, of its usage at settlement."""

    REQUESTS = "requests"  # always 1
    INPUT = "input"
    OUTPUT = "output"
    TOTAL = "total"
    COST = "cost"  # micro-USD
    SLOT = "slot"  # one lease until the end


class Period(StrEnum):
    """Calendar of a quota, in UTC by Redis' clock."""

    NONE = ""
    DAY = "day"
    MONTH = "month"
    CYCLE = "cycle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One counter of one request.

    ``label`` is "policy/dimension" and names it in answers and metrics. ``subject``, "scope:value",
    is for people only: the value may be a client's text. ``key`` is the complete Redis key without
    the period (hash tag included), built by stores.keys. ``limit`` is in ``unit``; ``capacity`` and
    ``refill_per_minute`` are a token bucket's, ``window_ms`` a sliding window's, ``period_end_ms``
    (Unix time) and ``period_id`` a contract cycle's.
    """

    label: str
    kind: BucketKind
    unit: Unit
    key: str
    limit: int
    capacity: int = 0
    refill_per_minute: int = 0
    window_ms: int = 0
    period: Period = Period.NONE
    period_id: str = ""
    period_end_ms: int = 0
    enforced: bool = True
    refuses: bool = True
    subject: str = ""

    @property
    def burst(self) -> int | None:
        """What a token bucket holds when it is full; None for other kinds."""
        return self.capacity if self.kind is BucketKind.BUCKET else None
