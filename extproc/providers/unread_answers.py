"""Answers in a shape that a client can ask for and that is not read here."""

from extproc.providers.sse import SseEvent
from extproc.providers.wire_formats import Framing

_UNREAD_TYPES = ("protobuf", "javascript")


class UnreadFramer:
    """Passes everything on and says that it was not read, so that what was reserved stands."""

    def __init__(self, keep_raw: bool) -> None:  # noqa: FBT001 - the seam's shape
        self._keep_raw = keep_raw
        self.truncated = True

    def feed(self, chunk: bytes, *, end: bool = False) -> list[SseEvent]:
        del end
        return [SseEvent(chunk)] if self._keep_raw and chunk else []

    def unfinished(self) -> bytes:
        return b""


def _begins(first: bytes, content_type: str) -> bool:
    is_json = first[:1] in (b"{", b"[")
    return not is_json and any(name in content_type for name in _UNREAD_TYPES)


# Google's system parameters ``alt=proto`` and ``callback``: a client that asks for them must not
# get its answer for nothing, as a body that is no JSON would (it passes for an error page).
PROTOBUF_OR_SCRIPT = Framing(name="protobuf_or_script", begins=_begins, make=UnreadFramer)
