"""Reservations: what is asked of the store, and what it decides.

Life of a reservation: RESERVED, then SETTLED or RELEASED (by someone who knows), or EXPIRED (by the
reaper, who guesses). Later and better knowledge may correct a guess; see ``Knowledge``.

What is made for every request is not frozen, because making it would take three times as long;
only who made it may change it, and only before it is handed on.
"""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from extproc.core.buckets import Bucket, Unit
from extproc.core.estimates import EstimatePlan
from extproc.core.limits import ServiceLimit
from extproc.core.usage import Usage

# Micro-USD for a million tokens: 4,000 USD a token and less.
MAX_PRICE = 2**32


class State(StrEnum):
    """Where a reservation is; the words in Redis are these."""

    RESERVED = "RESERVED"
    SETTLED = "SETTLED"
    RELEASED = "RELEASED"
    EXPIRED = "EXPIRED"
    RECONCILING = "RECONCILING"


class Knowledge(IntEnum):
    """How well a settlement knows the tokens. Only a strictly better one changes an earlier one."""

    NOTHING = 0  # still reserved
    GUESSED = 1  # the reserve itself, or bytes: reaper, ending without a word from metering
    COUNTED = 2  # the streamed text counted by our tokenizer
    KNOWN = 3  # the provider's own usage, or the certainty that nothing was produced


class Source(StrEnum):
    """Who settles."""

    ADMISSION = "admission"
    METERING = "metering"
    ENDING = "ending"
    REAPER = "reaper"
    OPERATOR = "operator"  # a person, after looking


class Outcome(StrEnum):
    """How a request ended."""

    COMPLETE = "complete"  # the provider's usage is known
    COMPLETE_ESTIMATED = "complete_estimated"  # complete, but no usage was reported
    CUT = "cut"  # the answer stopped before its end; who stopped it is not yet known
    CLIENT_GONE = "client_gone"  # the client left after the upstream was called
    UPSTREAM_REFUSED = "upstream_refused"  # an error answer, or no answer, without usage
    UPSTREAM_BROKEN = "upstream_broken"  # the upstream stopped in the middle of the answer
    NOT_FORWARDED = "not_forwarded"  # the upstream was never called
    UNREPORTED = "unreported"  # nobody told us before the deadline


@dataclass(slots=True, kw_only=True)
class ReserveRequest:
    """Everything that one reserve call needs.

    ``root`` is the subject whose keys share a Redis slot (for a plain service its service_id).
    ``output_cap_tokens`` is the client's own cap times the number of choices, None without one.
    ``skips_history``: the default is what this very request says of its answer (pictures, sound),
    so other answers say nothing better.
    ``deadline_ms`` is how long from now it may stay open before the reaper resolves it.
    ``limit`` is None on the warm path, where the script reads the cached limits itself; it is given
    only when they were just read from SQL and could not be cached.

    A root with policies: ``version`` is that of the view by which ``buckets`` are all that the
    request meets there; ``is_pinned`` says that this view was just read from SQL and
    could not be cached, so there is nothing to compare it with. ``input_price`` and
    ``output_price`` are micro-USD for a million tokens; ``is_priced`` is False where nobody knows
    them, so that no limit of cost can admit it.

    ``other_roots`` will be asked next, so that whoever ends the reservation ends it there too.

    ``owner`` and ``request_hash`` tell a repeated call from another request of the same id.
    ``idempotency_key`` is a digest of the client's own key, empty without one; it is remembered for
    ``idempotency_ttl_ms``, and until then stands for ``request_hash``.

    ``subject`` (``core.subjects``) is for the note of a refusal only.
    """

    reservation_id: str
    root: str
    input_tokens: int
    output_cap_tokens: int | None
    default_output_tokens: int
    deadline_ms: int
    wire_format: str = ""
    model: str = ""
    request_id: str = ""
    limit: ServiceLimit | None = None
    estimate: EstimatePlan = field(default_factory=EstimatePlan)
    skips_history: bool = False
    version: str = ""
    buckets: tuple[Bucket, ...] = ()
    is_pinned: bool = False
    input_price: int = 0
    output_price: int = 0
    is_priced: bool = True
    owner: str = ""
    request_hash: str = ""
    other_roots: tuple[str, ...] = ()
    idempotency_key: str = ""
    idempotency_ttl_ms: int = 0
    subject: str = ""

    def __post_init__(self) -> None:
        for name, price in (("input", self.input_price), ("output", self.output_price)):
            if not 0 <= price <= MAX_PRICE:
                raise ValueError(f"{name}_price must be 0 to {MAX_PRICE}, got {price}")


@dataclass(slots=True, kw_only=True)
class WindowView:
    """One limit as the answer's headers show it, after the decision. ``reset_ms`` from now."""

    limit: int
    remaining: int
    reset_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketState:
    """One counter after the decision, in its unit.

    ``remaining`` is negative where a counter that does not refuse was passed, or a token bucket is
    in debt. ``reset_ms`` is how long until all of it is free again if nothing more comes (a slot:
    the longest that a lease can last).
    """

    label: str
    unit: Unit
    limit: int
    remaining: int
    reset_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A counter that refused. ``retry_after_ms`` is when this request will fit it; None: never.

    ``subject``, "scope:value", is for people only, as in ``Bucket``. ``burst`` is what a full token
    bucket holds, which ``remaining`` is of; None for other counters.
    """

    label: str
    unit: Unit
    limit: int
    remaining: int
    retry_after_ms: int | None
    subject: str = ""
    burst: int | None = None


@dataclass(slots=True, kw_only=True)
class Admitted:
    """Everything was taken; minute windows are those of ``minute`` (UTC, yyyyMMddHHmm).

    ``requests`` and ``tokens`` are the tightest of their kind that can refuse, None without one.
    ``shadow_refusals`` are labels of shadow counters that would have refused.
    ``slice_id``: it was admitted from that slice (``core.slices``), empty for all others.
    """

    reservation_id: str
    root: str
    minute: str
    input_tokens: int
    reserved_tokens: int
    requests: WindowView | None
    tokens: WindowView | None
    reserved_cost_micros: int = 0
    buckets: tuple[BucketState, ...] = ()
    shadow_refusals: tuple[str, ...] = ()
    slice_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Nothing was taken. ``refused_by`` is "rpm" or "tpm", or the label of the binding refusal: the
    one that lasts longest.

    ``retry_after_ms`` is when the same request will fit; None when it never can. ``refusals`` are
    all counters that refused, in the order of the request's buckets (of a simple root: none).
    """

    root: str
    refused_by: str
    requested_tokens: int
    requests: WindowView | None
    tokens: WindowView | None
    retry_after_ms: int | None
    requested_cost_micros: int = 0
    requested_input_tokens: int = 0
    buckets: tuple[BucketState, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    shadow_refusals: tuple[str, ...] = ()


class ServiceState(StrEnum):
    """Why a service is refused whatever it asks."""

    UNKNOWN = "unknown"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class ServiceRefused:
    """The service does not exist, or is disabled. Nothing was taken."""

    state: ServiceState


@dataclass(frozen=True, slots=True)
class LimitsMissing:
    """The cache does not hold the limits; nothing was taken: load them and ask again."""


@dataclass(frozen=True, slots=True)
class LimitsStale:
    """The request's buckets are of another view than the one in force; nothing was taken.

    ``view`` is the JSON of what is in force. Both are empty when the root has no policies any more.
    """

    version: str
    view: str


class Conflict(StrEnum):
    """What differs between two requests of one reservation id, or of one idempotency key."""

    OWNER = "owner"
    REQUEST = "request"
    # Of a client's idempotency key: its attempt is still open, or it was of another request.
    IN_FLIGHT = "in_flight"
    KEY_REUSED = "key_reused"


@dataclass(frozen=True, slots=True)
class IdConflict:
    """The reservation id, or the client's idempotency key, is in use. Nothing was taken."""

    what: Conflict


@dataclass(frozen=True, slots=True)
class Unpriced:
    """The model has no price, and ``limits`` (labels) are of cost. Nothing was taken."""

    limits: tuple[str, ...]


Verdict = Admitted | Rejected | ServiceRefused | IdConflict | Unpriced
StoreVerdict = Verdict | LimitsMissing | LimitsStale


@dataclass(frozen=True, slots=True, kw_only=True)
class Slip:
    """What was admitted from a slice, so that whoever ends it can give it its record first: the
    worker that admitted it may have died before it did."""

    slice_id: str
    input_tokens: int
    reserved_tokens: int
    wire_format: str = ""
    model: str = ""
    request_id: str = ""


@dataclass(slots=True, kw_only=True)
class Settlement:
    """The end of a reservation. ``input_tokens`` and ``output_tokens`` are what to charge.

    ``model`` is the one that was asked for, under which a success goes into the history.
    ``writes_history`` is true only after a success whose usage the provider reported.
    ``cost_micros``: None computes it from the prices of the admission. ``undo`` makes a release
    give back the request counts too: for a request that another root refused.
    ``follows``: the other roots that the record names get the same end.
    ``usage`` is what the provider reported, by kind, where metering saw it; ``wire_format`` is that
    of the request. Neither changes what is charged. ``slip`` is of a request that was admitted
    from a slice.
    """

    reservation_id: str
    root: str
    input_tokens: int
    output_tokens: int
    knowledge: Knowledge
    outcome: Outcome
    source: Source
    state: State = State.SETTLED
    writes_history: bool = False
    cost_micros: int | None = None
    undo: bool = False
    follows: bool = True
    model: str = ""
    usage: Usage | None = None
    wire_format: str = ""
    slip: Slip | None = None


class SettleStatus(StrEnum):
    """What a settle or release call did."""

    APPLIED = "applied"  # first end of this reservation
    IMPROVED = "improved"  # a guess was corrected by better knowledge
    CLASSIFIED = "classified"  # tokens unchanged; a plain "cut" got its reason
    NOOP = "noop"  # ended before, with knowledge at least as good
    MISSING = "missing"  # no such reservation (never made, or its record is gone)


@dataclass(slots=True, kw_only=True)
class SettleResult:
    """What the store did, with the values before and after (B15)."""

    status: SettleStatus
    reserved_tokens: int = 0
    charged_before_tokens: int = 0
    charged_tokens: int = 0
    outcome: str = ""
    other_roots: tuple[str, ...] = ()
