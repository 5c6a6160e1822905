"""Error bodies in the shape of the API that the client speaks, so that its SDK understands them."""

import json
from typing import Literal

from extproc.providers.registry import wire_format_of

ErrorShape = Literal["openai", "anthropic", "gemini"]

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


def error_shape_of(shape_or_path: str) -> ErrorShape:
    """The shape for a shape's name, a wire format's name or a request path; OpenAI's by default."""
    name = shape_or_path.lower()
    if name.startswith(("anthropic", "/anthropic")) or "/v1/messages" in name:
        return "anthropic"
    if wire_format_of(shape_or_path) == "anthropic_messages":
        return "anthropic"
    if name == "gemini" or "generatecontent" in name or "/v1beta/models" in name:
        return "gemini"
    return "openai"


def error_body(
    shape_or_path: str,
    *,
    status: int,
    code: str,
    message: str,
    param: str | None = None,
    error_type: str | None = None,
) -> bytes:
    """An error answer's JSON body, always valid whatever the message holds.

    ``code``, ``param`` and ``error_type`` appear in OpenAI's shape only: the other two have closed
    sets of words, which their SDKs match, and ``status`` alone chooses among them.
    """
    shape = error_shape_of(shape_or_path)
    body: dict[str, object]
    if shape == "anthropic":
        kind = _ANTHROPIC_TYPES.get(status, _by_class(status, "api_error"))
        body = {"type": "error", "error": {"type": kind, "message": message}}
    elif shape == "gemini":
        word = _GEMINI_STATUSES.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
        body = {"error": {"code": status, "message": message, "status": word}}
    else:
        kind = error_type or _OPENAI_TYPES.get(status, _by_class(status, "server_error"))
        body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return json.dumps(body).encode("ascii")


def _by_class(status: int, server_word: str) -> str:
    return server_word if status >= 500 else "invalid_request_error"
