"""Recognises providers' errors: by their own words first, then by the status.

Shapes: OpenAI's and its copies' ``{"error": {"type", "code", "message"}}`` (also as an event, and
in the response object of Responses), Anthropic's ``{"type": "error", "error": {"type",
"message"}}``, Google's ``{"error": {"code", "status", "details"}}`` (in a list for streams), AWS's
``__type`` or ``x-amzn-errortype``, Cohere's ``{"message"}``, Ollama's ``{"error": "text"}``.
Nothing here raises, whatever a provider sends.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from extproc.core.provider_errors import RETRYABLE, Dimension, ErrorCode, ProviderError
from extproc.providers.json_answer import child, children
from extproc.providers.provider_room import duration_seconds, retry_after, rooms_of
from extproc.providers.requests import JsonObject

_LIMITS = (ErrorCode.RATE_LIMITED, ErrorCode.QUOTA_EXHAUSTED)
# Words of types, codes and statuses, without "Exception" and in lower case. General ones, such as
# invalid_request_error, are taken only where no other word tells more.
_WORDS = {
    # OpenAI, Azure and copies
    "rate_limit_exceeded": ErrorCode.RATE_LIMITED,
    "rate_limit_error": ErrorCode.RATE_LIMITED,
    "too_many_requests": ErrorCode.RATE_LIMITED,
    "insufficient_quota": ErrorCode.QUOTA_EXHAUSTED,
    "billing_hard_limit_reached": ErrorCode.QUOTA_EXHAUSTED,
    "billing_not_active": ErrorCode.QUOTA_EXHAUSTED,
    "context_length_exceeded": ErrorCode.CONTEXT_TOO_LONG,
    "string_above_max_length": ErrorCode.CONTEXT_TOO_LONG,
    "content_filter": ErrorCode.BLOCKED,
    "content_policy_violation": ErrorCode.BLOCKED,
    "moderation_blocked": ErrorCode.BLOCKED,
    "invalid_api_key": ErrorCode.UNAUTHENTICATED,
    "model_not_found": ErrorCode.NOT_FOUND,
    "deploymentnotfound": ErrorCode.NOT_FOUND,
    "server_error": ErrorCode.SERVER_ERROR,
    "engine_overloaded": ErrorCode.OVERLOADED,
    "service_unavailable": ErrorCode.OVERLOADED,
    # Anthropic
    "authentication_error": ErrorCode.UNAUTHENTICATED,
    "billing_error": ErrorCode.QUOTA_EXHAUSTED,
    "permission_error": ErrorCode.PERMISSION_DENIED,
    "not_found_error": ErrorCode.NOT_FOUND,
    "request_too_large": ErrorCode.TOO_LARGE,
    "timeout_error": ErrorCode.TIMEOUT,
    "overloaded_error": ErrorCode.OVERLOADED,
    "api_error": ErrorCode.SERVER_ERROR,
    # Google (google.rpc.Code)
    "resource_exhausted": ErrorCode.RATE_LIMITED,
    "unavailable": ErrorCode.OVERLOADED,
    "deadline_exceeded": ErrorCode.TIMEOUT,
    "internal": ErrorCode.SERVER_ERROR,
    "unauthenticated": ErrorCode.UNAUTHENTICATED,
    "permission_denied": ErrorCode.PERMISSION_DENIED,
    "not_found": ErrorCode.NOT_FOUND,
    # AWS
    "throttling": ErrorCode.RATE_LIMITED,
    "servicequotaexceeded": ErrorCode.QUOTA_EXHAUSTED,
    "modelnotready": ErrorCode.OVERLOADED,
    "serviceunavailable": ErrorCode.OVERLOADED,
    "modeltimeout": ErrorCode.TIMEOUT,
    "modelerror": ErrorCode.SERVER_ERROR,
    "modelstreamerror": ErrorCode.SERVER_ERROR,
    "internalserver": ErrorCode.SERVER_ERROR,
    "accessdenied": ErrorCode.PERMISSION_DENIED,
    "resourcenotfound": ErrorCode.NOT_FOUND,
    "unrecognizedclient": ErrorCode.UNAUTHENTICATED,
    "expiredtoken": ErrorCode.UNAUTHENTICATED,
}
_GENERAL_WORDS = {
    "invalid_request_error": ErrorCode.INVALID_REQUEST,
    "invalid_argument": ErrorCode.INVALID_REQUEST,
    "failed_precondition": ErrorCode.INVALID_REQUEST,
    "validation": ErrorCode.INVALID_REQUEST,
}
_BY_STATUS = {
    401: ErrorCode.UNAUTHENTICATED,
    402: ErrorCode.QUOTA_EXHAUSTED,
    403: ErrorCode.PERMISSION_DENIED,
    404: ErrorCode.NOT_FOUND,
    408: ErrorCode.TIMEOUT,
    413: ErrorCode.TOO_LARGE,
    424: ErrorCode.SERVER_ERROR,
    429: ErrorCode.RATE_LIMITED,
    498: ErrorCode.OVERLOADED,  # Groq: flex capacity exceeded
    503: ErrorCode.OVERLOADED,
    504: ErrorCode.TIMEOUT,
    529: ErrorCode.OVERLOADED,
}
# What only the message tells. Anthropic and AWS have no word of their own for the first two.
_TOO_LONG = re.compile(
    r"prompt is too long|input is too long|context (length|window)|too many input tokens", re.I
)
_NO_CREDIT = re.compile(r"credit balance|exceeded your current quota|out of credits", re.I)
_PER_LONG_TIME = re.compile(r"per[ _]?(day|month)", re.I)
# "Request too large for gpt-4o ... Limit 30000, Requested 30601": no wait makes it fit.
_NEVER_FITS = re.compile(r"request too large|must be reduced", re.I)
_TRY_IN = re.compile(r"(?:try again|retry) in ([0-9][0-9.dhms]{0,30}s)\b", re.I)
_DIMENSION_WORDS = (
    (re.compile(r"input[ _-]?tokens?", re.I), Dimension.INPUT_TOKENS),
    (re.compile(r"output[ _-]?tokens?", re.I), Dimension.OUTPUT_TOKENS),
    (re.compile(r"tokens?|\btpm\b", re.I), Dimension.TOKENS),
    (re.compile(r"concurren|pending requests", re.I), Dimension.CONCURRENCY),
    (re.compile(r"requests?|\brpm\b|api calls", re.I), Dimension.REQUESTS),
)
_OWN_WORD = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_MAX_TEXT = 2000
_MAX_DETAILS = 16


def provider_error(
    provider: str,
    *,
    status: int,
    headers: Mapping[str, str],
    value: object = None,
    now: datetime | None = None,
) -> ProviderError:
    """The error of an answer with ``status``; ``value`` is its JSON, or the event of a stream."""
    error, words = _error_of(value)
    amazon = headers.get("x-amzn-errortype", "").partition(":")[0]
    words = [word for word in (amazon.rpartition("#")[2], *words) if _OWN_WORD.fullmatch(word)]
    message = _message_of(value, error)
    hints = f"{' '.join(_quota_words(error))} {message}"
    code = _code(words, _own_status(error) or status, hints)
    dimension = _dimension(code, words, headers, hints)
    wait = retry_after(headers, dimension=dimension, now=now or datetime.now(UTC))
    return ProviderError(
        provider=provider,
        status=status,
        code=code,
        dimension=dimension,
        retryable=_is_retryable(code, headers, message),
        retry_after_seconds=_told_wait(error, message) if wait is None else wait,
        provider_code=words[0] if words else "",
    )


def _error_of(value: object) -> tuple[JsonObject, list[str]]:
    """The object that describes the error, and its words, the most telling first."""
    if isinstance(value, list):
        value = next((item for item in value[:_MAX_DETAILS] if isinstance(item, dict)), None)
    if not isinstance(value, dict):
        return {}, []
    holder = child(value, "response") or value
    inner = child(holder, "error") or child(child(holder, "delta"), "error") or holder
    found = [inner.get(key) for key in ("code", "type", "status", "__type", "reason")]
    if inner is not value:
        found.append(value.get("__type"))
    texts = [text.rpartition("#")[2] for text in found if isinstance(text, str)]
    return inner, [text for text in texts if text not in ("error", "message-end")]


def _message_of(value: object, error: JsonObject) -> str:
    delta = child(value, "delta") or {}  # Cohere's last event
    for text in (error.get("message"), error.get("error"), delta.get("error")):
        if isinstance(text, str):
            return text[:_MAX_TEXT]
    return ""


def _own_status(error: JsonObject) -> int | None:
    """Google, OpenRouter and others give the HTTP status as the code, also inside a 200; so does an
    error message of AWS's event stream."""
    for told in (error.get("code"), error.get("__type")):
        is_text = isinstance(told, str) and len(told) == 3 and told.isascii() and told.isdigit()
        code = int(told) if is_text and isinstance(told, str) else told
        if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600:
            return code
    return None


def _code(words: list[str], status: int, hints: str) -> ErrorCode:
    known = [word.lower().removesuffix("exception") for word in words]
    code = next((_WORDS[word] for word in known if word in _WORDS), None)
    if code is None:
        code = _BY_STATUS.get(status)
    if code is None:
        general = next((_GENERAL_WORDS[word] for word in known if word in _GENERAL_WORDS), None)
        code = general or (ErrorCode.SERVER_ERROR if status >= 500 else ErrorCode.UNKNOWN)
        if code is ErrorCode.UNKNOWN and status >= 400:
            code = ErrorCode.INVALID_REQUEST
    if code in (ErrorCode.INVALID_REQUEST, ErrorCode.TOO_LARGE) and _TOO_LONG.search(hints):
        return ErrorCode.CONTEXT_TOO_LONG
    if code in (ErrorCode.INVALID_REQUEST, ErrorCode.RATE_LIMITED):
        if _NO_CREDIT.search(hints) and not _has_short_limit(hints):
            return ErrorCode.QUOTA_EXHAUSTED
        if code is ErrorCode.RATE_LIMITED and _PER_LONG_TIME.search(hints):
            return ErrorCode.QUOTA_EXHAUSTED
    return code


def _has_short_limit(hints: str) -> bool:
    """Google says "exceeded your current quota" of a minute's limit too."""
    return re.search(r"per[ _]?minute", hints, re.I) is not None


def _dimension(
    code: ErrorCode, words: list[str], headers: Mapping[str, str], hints: str
) -> Dimension:
    if code not in _LIMITS:
        return Dimension.NONE
    if "tokens" in words:
        return Dimension.TOKENS
    if "requests" in words:
        return Dimension.REQUESTS
    spent = [room.dimension for room in rooms_of(headers) if room.remaining == 0]
    if spent:
        return spent[-1]  # the most exact one stands last
    if code is ErrorCode.QUOTA_EXHAUSTED and not _PER_LONG_TIME.search(hints):
        return Dimension.MONEY
    return next((found for word, found in _DIMENSION_WORDS if word.search(hints)), Dimension.NONE)


def _is_retryable(code: ErrorCode, headers: Mapping[str, str], message: str) -> bool:
    told = headers.get("x-should-retry")
    if told in ("true", "false"):
        return told == "true"
    return code in RETRYABLE and not _NEVER_FITS.search(message)


def _details(error: JsonObject) -> Iterator[JsonObject]:
    yield from children(error, "details")[:_MAX_DETAILS]


def _quota_words(error: JsonObject) -> Iterator[str]:
    """Names of Google's limits, such as GenerateRequestsPerDayPerProjectPerModel-FreeTier."""
    for detail in _details(error):
        holders = [*children(detail, "violations")[:_MAX_DETAILS], child(detail, "metadata") or {}]
        for holder in holders:
            for key in ("quotaId", "quotaMetric", "quota_limit", "quota_metric"):
                name = holder.get(key)
                if isinstance(name, str):
                    yield name[:_MAX_TEXT]


def _told_wait(error: JsonObject, message: str) -> float | None:
    """Google's RetryInfo, or what the message says."""
    for detail in _details(error):
        delay = detail.get("retryDelay")
        if isinstance(delay, str) and (seconds := duration_seconds(delay)) is not None:
            return seconds
    found = _TRY_IN.search(message)
    return None if found is None else duration_seconds(found.group(1))
