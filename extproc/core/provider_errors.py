"""One shape for the errors of all providers, and for what they say they have left.

A provider's 429 is its own limit, not one of ours: it never passes for a refusal by tokenweir.
"""

from dataclasses import dataclass
from enum import StrEnum


class ErrorCode(StrEnum):
    """What went wrong at the provider; also the label of the metric, so no other words."""

    RATE_LIMITED = "rate_limited"  # too much in a short time: later it will do
    QUOTA_EXHAUSTED = "quota_exhausted"  # of a day or longer, or money: waiting a little is no use
    OVERLOADED = "overloaded"  # the provider has no room for anybody (503, 529)
    SERVER_ERROR = "server_error"
    TIMEOUT = "timeout"
    INVALID_REQUEST = "invalid_request"
    CONTEXT_TOO_LONG = "context_too_long"
    TOO_LARGE = "too_large"  # in bytes
    UNAUTHENTICATED = "unauthenticated"
    PERMISSION_DENIED = "permission_denied"
    NOT_FOUND = "not_found"
    BLOCKED = "blocked"  # by the provider's content policy
    UNREACHABLE = "unreachable"  # Envoy got no connection, or no answer
    BROKEN = "broken"  # it hung up in the middle of its answer
    UNKNOWN = "unknown"


class Dimension(StrEnum):
    """Of what there was too much; NONE where the error is not about a limit, or does not tell."""

    REQUESTS = "requests"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"
    MONEY = "money"
    NONE = ""


RETRYABLE = frozenset(
    {
        ErrorCode.RATE_LIMITED,
        ErrorCode.OVERLOADED,
        ErrorCode.SERVER_ERROR,
        ErrorCode.TIMEOUT,
        ErrorCode.UNREACHABLE,
        ErrorCode.BROKEN,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderError:
    """One error. ``status`` is that of the answer, 200 for an error inside a stream, 0 without one.

    ``provider_code`` is the provider's own word, empty when it has none. ``retry_after_seconds`` is
    the provider's own advice, None without.
    """

    provider: str
    status: int
    code: ErrorCode
    dimension: Dimension = Dimension.NONE
    retryable: bool = False
    retry_after_seconds: float | None = None
    provider_code: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """What a provider says is left of one of its limits; None where it does not say."""

    dimension: Dimension
    remaining: int
    limit: int | None = None
