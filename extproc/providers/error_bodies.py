"""Error bodies as each API words them: one function per shape."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What an error body is made of. ``error_type`` overrides OpenAI's own word."""

    status: int
    code: str
    message: str
    param: str | None = None
    error_type: str | None = None


ErrorShape = Callable[[Refusal], dict[str, object]]

# Anthropic's "Errors" page.
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
# OpenAI's API reference; the SDKs choose their exception by the HTTP status.
_OPENAI_TYPES = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
# google.rpc.Code by HTTP status.
_GEMINI_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "FAILED_PRECONDITION",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    413: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def openai_error(refusal: Refusal) -> dict[str, object]:
    """The shape that most providers copy; the only one with ``code`` and ``param``."""
    status = refusal.status
    kind = (
        refusal.error_type or _OPENAI_TYPES.get(status) or _by_class(status, server="server_error")
    )
    return {
        "error": {
            "message": refusal.message,
            "type": kind,
            "param": refusal.param,
            "code": refusal.code,
        }
    }


def anthropic_error(refusal: Refusal) -> dict[str, object]:
    """A closed set of words, which the SDKs match: ``status`` alone chooses among them."""
    status = refusal.status
    kind = _ANTHROPIC_TYPES.get(status) or _by_class(status, server="api_error")
    return {"type": "error", "error": {"type": kind, "message": refusal.message}}


def gemini_error(refusal: Refusal) -> dict[str, object]:
    """Google's ``google.rpc.Status`` as JSON."""
    status = refusal.status
    word = _GEMINI_STATUSES.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
    return {"error": {"code": status, "message": refusal.message, "status": word}}


def cohere_error(refusal: Refusal) -> dict[str, object]:
    """A message and nothing else; the SDK chooses its exception by the status."""
    return {"message": refusal.message}


def ollama_error(refusal: Refusal) -> dict[str, object]:
    """The same under another name."""
    return {"error": refusal.message}


def _by_class(status: int, *, server: str) -> str:
    return server if status >= 500 else "invalid_request_error"
