"""What `explain` answers: which limits one request meets, what they hold, when it would fit.

Plain values, for the command line and for an API alike; see ``explain_rules`` and
``stores.explain`` for where they come from. Times are Redis'.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from extproc.core.buckets import BucketKind, Period, Unit
from extproc.core.limits import MAX_LIMIT
from extproc.core.policies import Block, Dimension, Mode, OnExceed, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The request that is wondered about.

    ``tokens`` is what it would reserve in all, ``output_tokens`` how much of that is expected
    output; None: not said, so limits of input and of output are each asked for all of them.
    ``is_priced`` False: the model has no price, so no limit of cost that refuses admits it.
    Raises ValueError for what no request can be.
    """

    tokens: int = 1
    output_tokens: int | None = None
    cost_micros: int = 0
    is_priced: bool = True

    def __post_init__(self) -> None:
        for name, value in (("tokens", self.tokens), ("cost_micros", self.cost_micros)):
            if not 0 <= value <= MAX_LIMIT:
                raise ValueError(f"{name} must be 0 to {MAX_LIMIT}, got {value}")
        if self.output_tokens is not None and not 0 <= self.output_tokens <= self.tokens:
            raise ValueError(f"output_tokens must be 0 to {self.tokens}, got {self.output_tokens}")

    def amount(self, unit: Unit) -> int:
        """What it takes from a counter of ``unit``."""
        output = self.output_tokens
        match unit:
            case Unit.INPUT:
                return self.tokens - (output or 0)
            case Unit.OUTPUT:
                return self.tokens if output is None else output
            case Unit.TOTAL:
                return self.tokens
            case Unit.COST:
                return self.cost_micros
            case _:
                return 1


class RootState(StrEnum):
    """Whether anything is admitted at a root."""

    ENABLED = "enabled"
    DISABLED = "disabled"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a counter holds, in its unit. ``held`` is None where it is not kept apart from ``used``.

    ``fits_in_ms`` is when what was asked will fit if nothing more comes; None: never.
    """

    used: int
    held: int | None
    remaining: int
    fits_in_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReport:
    """One limit that the request meets: where it comes from, and what it holds.

    ``subject`` is whose counter it is, ``value`` what the policy says (it may be any or each).
    ``limit`` is in force, ``policy_limit`` the policy's own, another one only during an override.
    ``refuses`` is false for shadow policies and for those that only record. A concurrency limit
    fits at ``fits_in_ms`` at the latest: when enough leases will have ended.
    """

    label: str
    root: str
    policy: str
    version: int | None
    scope: Scope
    value: str
    subject: str
    model: str
    dimension: Dimension
    algorithm: BucketKind
    period: Period
    window_seconds: int | None
    burst: int | None
    mode: Mode
    on_exceed: OnExceed
    refuses: bool
    unit: Unit
    limit: int
    policy_limit: int
    override_until: datetime | None
    used: int
    held: int | None
    remaining: int
    asked: int
    fits_in_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A reservation whose record is spoilt: written by hand, say."""

    root: str
    reservation_id: str
    unreadable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """An open reservation. ``deadline`` is when the reaper may end it."""

    reservation_id: str
    request_id: str
    model: str
    reserved_tokens: int
    admitted_at: datetime | None
    age_ms: int | None
    deadline: datetime
    overdue: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RootHolds:
    """The open reservations of a root, whoever made them: ``open`` in all, the first few listed."""

    root: str
    open: int
    first: tuple[Hold | Unreadable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusingLimit:
    """One limit that refused a request, as it was then; amounts are in ``unit``.

    ``label`` is "block/scope" for a block, which has no subject; otherwise the policy's and the
    dimension's, and a value that is no id is shown as a hash. ``remaining`` is negative where more
    was used than allowed; of a token bucket it is of ``burst``. ``retry_after_ms`` and ``frees_at``
    are when it said that the request would fit, if nothing more came; None: never.
    """

    label: str
    version: int | None
    subject: str
    algorithm: BucketKind
    unit: Unit
    period: str
    asked: int
    limit: int
    remaining: int
    retry_after_ms: int | None
    frees_at: datetime | None
    burst: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalReport:
    """A request that limits refused at ``refused_at``; ``at`` is now.

    ``asked`` is what it would have reserved. ``limits`` refused, and the first of them lasts
    longest: it is the one that the answer was about. ``more`` did too and are not kept.
    ``subject`` is who it was, as far as it is told; of the scopes ``hidden`` it had a value that is
    not. Both are empty in the notes of an older release.
    """

    at: datetime
    root: str
    reservation_id: str
    request_id: str
    model: str
    refused_at: datetime
    asked: Asked
    limits: tuple[RefusingLimit, ...]
    more: int
    subject: Mapping[Scope, str]
    hidden: tuple[Scope, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectReport:
    """All about one kind of request at ``at``.

    ``version`` names the view of the policies that is in force ("" without policies), ``cached``
    whether Redis holds it. ``sql_differs``: the cache would decide by other limits than SQL holds,
    so somebody changed SQL and did not delete the cache key. ``fits_in_ms`` is when the request
    would fit if nothing more came (0: now, None: never), by the policies of now; ``binding`` is the
    label of what it waits for, or "block", "disabled", "unknown". ``refusals`` are the last ones of
    the roots, whoever was refused, the newest first.
    """

    at: datetime
    root: str
    state: RootState
    version: str
    cached: bool
    sql_differs: bool
    subject: Mapping[Scope, str]
    model: str
    asked: Asked
    blocked_by: Block | None
    limits: tuple[LimitReport, ...]
    fits_in_ms: int | None
    fits_at: datetime | None
    binding: str | None
    holds: tuple[RootHolds, ...]
    refusals: tuple[RefusalReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenReport:
    """What a reservation took from one counter, and what it is charged there now.

    ``version`` is the policy's that was in force at the admission; None: not known any more, or a
    service limit. ``period`` names the minute, day, month or cycle of the counter, if it has one.
    """

    label: str
    version: int | None
    subject: str
    algorithm: BucketKind
    unit: Unit
    period: str
    reserved: int
    charged: int
    shadow_refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationReport:
    """The record of one reservation, with its times by Redis' clock.

    ``deadline`` is None unless it is open, ``ended_at`` (the last correction) None while it is.
    ``reserved_cost_micros`` is None without prices. ``policies`` admitted it: name and version.
    ``usage_parts`` are kinds of tokens within what was charged, and calls, as reported.
    """

    at: datetime
    root: str
    reservation_id: str
    request_id: str
    wire_format: str
    model: str
    state: str
    outcome: str
    source: str
    knowledge: str
    reserved_tokens: int
    charged_tokens: int
    reserved_cost_micros: int | None
    charged_cost_micros: int | None
    admitted_at: datetime | None
    deadline: datetime | None
    ended_at: datetime | None
    forgotten_at: datetime | None
    policies: tuple[str, ...]
    taken: tuple[TakenReport, ...]
    usage_parts: str = ""
