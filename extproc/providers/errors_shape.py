"""Error bodies in the shape of the API that the client speaks, so that its SDK understands them."""

import json

from extproc.providers.error_bodies import (
    ErrorShape,
    Refusal,
    anthropic_error,
    gemini_error,
    ollama_error,
    openai_error,
)
from extproc.providers.paths import segments_of
from extproc.providers.registry import route_at, route_named

_GOOGLE_VERSIONS = ("v1beta", "v1alpha")
_OLLAMA_VERBS = frozenset({"show", "pull", "push", "create", "copy", "blobs", "delete"})


def error_shape_of(shape_or_path: str) -> ErrorShape:
    """The shape for a shape's name, a wire format's name or a request path; OpenAI's by default."""
    route = route_named(shape_or_path) or route_at(shape_or_path)
    if route is not None:
        return route.error_shape
    # Paths of the same API that are not known here: lists of models, files.
    name = shape_or_path.lower()
    if name.startswith(("anthropic", "/anthropic")) or "/v1/messages" in name:
        return anthropic_error
    segments = segments_of(name)
    is_google = any(each.startswith(_GOOGLE_VERSIONS) for each in segments) or "upload" in segments
    if name == "gemini" or "generatecontent" in name or (is_google and "openai" not in segments):
        return gemini_error
    if len(segments) > 1 and segments[-2] == "api" and segments[-1] in _OLLAMA_VERBS:
        return ollama_error
    return openai_error


def error_headers(shape_or_path: str, *, status: int) -> dict[str, str]:
    """The headers that name an error in the API at a path; empty where its body says all."""
    route = route_named(shape_or_path) or route_at(shape_or_path)
    if route is None or route.error_headers is None:
        return {}
    return route.error_headers(status)


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

    ``code``, ``param`` and ``error_type`` appear where the shape has a place for them: the others
    have closed sets of words, which their SDKs match, and ``status`` alone chooses among them.
    """
    refusal = Refusal(status=status, code=code, message=message, param=param, error_type=error_type)
    return json.dumps(error_shape_of(shape_or_path)(refusal)).encode("ascii")
