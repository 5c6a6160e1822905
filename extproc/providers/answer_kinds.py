"""What an answer's body is, by its first bytes more than by its labels."""

from collections.abc import Callable
from typing import Literal

from extproc.providers.wire_formats import Framer, WireFormat

Kind = Literal["json", "events", "text", "binary"]
_SSE_FIELDS = (b"data", b"event", b"id", b"retry", b":")
_BINARY_TYPES = ("audio/", "application/octet-stream")


def kind_of(
    spoken: WireFormat, start: bytes, content_type: str, *, end: bool
) -> tuple[Kind | None, Callable[[bool], Framer] | None]:
    """The kind of an answer that begins with ``start`` (after a BOM and white space), None when
    more bytes must tell; and what makes the framer of events that are no server-sent ones."""
    if not start:
        return None, None
    is_binary = spoken.plain_answer == "binary"
    if is_binary and content_type.startswith(_BINARY_TYPES):
        return "binary", None
    for framing in spoken.framings:
        begins = framing.begins(start, content_type)
        if begins is None and not end:
            return None, None
        if begins:
            return "events", framing.make
    if start[:1] in (b"{", b"["):
        return "json", None
    if "event-stream" in content_type or start.startswith(_SSE_FIELDS):
        return "events", None
    if not end and any(field.startswith(start) for field in _SSE_FIELDS):
        return None, None
    return ("binary" if is_binary else "text"), None
