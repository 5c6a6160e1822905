"""From a request's path to its wire format, and from its bytes to facts."""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from urllib.parse import unquote

from extproc.providers.anthropic_requests import read_messages
from extproc.providers.json_input import read_json_object
from extproc.providers.openai_requests import read_chat, read_completions, read_embeddings
from extproc.providers.request_rewrite import rewritten
from extproc.providers.requests import (
    JsonObject,
    ReadLimits,
    RequestFacts,
    Unmetered,
    WireFormat,
)

_QUERY_OR_FRAGMENT = re.compile(r"[?#]")
_MOST_DECODINGS = 3
_VERSION = re.compile(r"v\d+[a-z0-9]*")

Reader = Callable[[JsonObject, ReadLimits], RequestFacts]

_READERS: Mapping[WireFormat, Reader] = MappingProxyType(
    {
        "openai_chat": read_chat,
        "openai_completions": read_completions,
        "openai_embeddings": read_embeddings,
        "anthropic_messages": read_messages,
    }
)


def _segments(path: str) -> list[str]:
    """A path's segments as the most lenient upstream would see them.

    Query and fragment off, percent-encoding decoded (also where it was encoded twice), parameters
    behind a semicolon and white space dropped, empty and dot segments resolved (RFC 3986, 5.2.4):
    a spelling that some upstream accepts must not pass unmetered.
    """
    bare = path
    for _ in range(_MOST_DECODINGS):
        bare = unquote(_QUERY_OR_FRAGMENT.split(bare, maxsplit=1)[0])
    segments: list[str] = []
    for part in _QUERY_OR_FRAGMENT.split(bare, maxsplit=1)[0].split("/"):
        segment = part.partition(";")[0].strip()
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    return segments


def wire_format_of(path: str) -> WireFormat | None:
    """The format spoken at ``path``; None when we cannot meter it.

    Any prefix is allowed: ``/openai/v1/chat/completions``, Azure's ``/openai/deployments/NAME/``.
    """
    segments = [segment.lower() for segment in _segments(path)]
    if not segments:
        return None
    last, before = segments[-1], segments[-2] if len(segments) > 1 else ""
    if last == "completions" and before == "chat":
        return "openai_chat"
    if last == "messages" and before == "v1":
        # Assistants' /v1/threads/ID/messages is another API.
        return "anthropic_messages"
    is_deployment = len(segments) > 2 and segments[-3] == "deployments"
    if before in ("", "openai") or _VERSION.fullmatch(before) or is_deployment:
        if last == "completions":
            return "openai_completions"
        if last == "embeddings":
            return "openai_embeddings"
    return None


def _deployment(path: str) -> str | None:
    """The model's name in Azure's ``/openai/deployments/NAME/...``, whose body may have none."""
    segments = _segments(path)
    lowered = [segment.lower() for segment in segments]
    if "deployments" not in lowered[:-1]:
        return None
    return segments[lowered.index("deployments") + 1]


def read_request(
    path: str,
    body: bytes,
    *,
    content_type: str | None,
    content_encoding: str | None,
    limits: ReadLimits,
) -> RequestFacts | Unmetered:
    """Everything that admission needs to know of a request. Pure; may take milliseconds for a
    large body (see the setting that moves it off the event loop).

    Raises RequestError with status 400, 413 or 415 that names the field, and nothing else.
    """
    wire_format = wire_format_of(path)
    if wire_format is None:
        return Unmetered("unknown_path")
    value, plain = read_json_object(
        body, content_encoding, content_type=content_type, limits=limits
    )
    if "model" not in value and (deployment := _deployment(path)) is not None:
        value["model"] = deployment
    facts = _READERS[wire_format](value, limits)
    return rewritten(
        facts,
        value,
        plain,
        content_encoding=content_encoding,
        strict_cap_tokens=limits.strict_cap_tokens,
    )
