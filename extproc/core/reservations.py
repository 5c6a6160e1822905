"""Reservations: what is asked of the store, and what it decides.

Life of a reservation: RESERVED, then SETTLED or RELEASED (by someone who knows), or EXPIRED (by the
reaper, who guesses). Later and better knowledge may correct a guess; see ``Knowledge``.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from extproc.core.limits import ServiceLimit


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveRequest:
    """Everything that one reserve call needs.

    ``root`` is the subject whose keys share a Redis slot (for a plain service its service_id).
    ``output_cap_tokens`` is the client's own cap times the number of choices, None without one.
    ``deadline_ms`` is how long from now it may stay open before the reaper resolves it.
    ``limit`` is None on the warm path, where the script reads the cached limits itself; it is given
    only when they were just read from SQL and could not be cached.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowView:
    """One limit as the answer's headers show it, after the decision. ``reset_ms`` from now."""

    limit: int
    remaining: int
    reset_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """Requests and tokens were taken from window ``minute`` (UTC, yyyyMMddHHmm)."""

    reservation_id: str
    root: str
    minute: str
    input_tokens: int
    reserved_tokens: int
    requests: WindowView
    tokens: WindowView


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Nothing was taken. ``refused_by`` is "rpm" or "tpm".

    ``retry_after_ms`` is when the same request will fit; None when it never can.
    """

    root: str
    refused_by: str
    requested_tokens: int
    requests: WindowView
    tokens: WindowView
    retry_after_ms: int | None


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


Verdict = Admitted | Rejected | ServiceRefused
StoreVerdict = Verdict | LimitsMissing


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The end of a reservation. ``input_tokens`` and ``output_tokens`` are what to charge.

    ``writes_history`` is true only after a success whose usage the provider reported.
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


class SettleStatus(StrEnum):
    """What a settle or release call did."""

    APPLIED = "applied"  # first end of this reservation
    IMPROVED = "improved"  # a guess was corrected by better knowledge
    CLASSIFIED = "classified"  # tokens unchanged; a plain "cut" got its reason
    NOOP = "noop"  # ended before, with knowledge at least as good
    MISSING = "missing"  # no such reservation (never made, or its record is gone)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleResult:
    """What the store did, with the values before and after (B15)."""

    status: SettleStatus
    reserved_tokens: int = 0
    charged_before_tokens: int = 0
    charged_tokens: int = 0
    outcome: str = ""
