"""One JSON object a line (NDJSON, JSON lines), incrementally over bytes: Ollama, Cohere v1.

Beyond one object a line, because answers are so: the last line counts without its newline, blank
lines are nothing, and what is one object over several lines (a proxy's error page) counts at the
end, if no line was one by itself. A byte order mark was taken off before.

The raw bytes of all events together are exactly the bytes fed, in order.
"""

from extproc.providers.json_answer import parse_object
from extproc.providers.large_json import LARGE_BYTES
from extproc.providers.sse import MAX_EVENT_BYTES, SseEvent
from extproc.providers.wire_formats import Framing

_LF = b"\n"


class NdjsonParser:
    """Cuts one stream into lines. Keeps the unfinished line, and lines before the first object,
    of both together at most ``max_line_bytes``.

    ``truncated`` becomes true when a line was larger than that: it is passed on unread. Time is
    linear in the bytes, however they are cut.
    """

    def __init__(self, *, keep_raw: bool = False, max_line_bytes: int = MAX_EVENT_BYTES) -> None:
        self._keep_raw = keep_raw
        self._max_line_bytes = max_line_bytes
        self._buffer = bytearray()
        self._scan_at = 0  # the bytes of the buffer in which no line end was looked for yet
        self._skipping = False  # the unfinished line's beginning was already passed on
        # Lines that are no objects, until one is; then None.
        self._strays: bytearray | None = bytearray()
        self.truncated = False

    def feed(self, chunk: bytes, *, end: bool = False) -> list[SseEvent]:
        """The lines that ``chunk`` completes. ``end`` says that nothing follows. Never raises."""
        buffer = self._buffer
        buffer += chunk
        events: list[SseEvent] = []
        line_at = 0
        while (line_end := buffer.find(_LF, self._scan_at)) >= 0:
            self._scan_at = line_end + 1
            self._take_line(bytes(buffer[line_at : self._scan_at]), events)
            line_at = self._scan_at
        rest = len(buffer) - line_at
        if rest and (end or self._skipping or rest > self._max_line_bytes):
            line = bytes(buffer[line_at:])
            line_at = len(buffer)
            if end:
                self._take_line(line, events)
            else:
                self.truncated = self._skipping = True
                self._strays = None
                events.append(self._event(line))
        if end:
            self._take_strays(events)
        del buffer[:line_at]
        self._scan_at = len(buffer)
        return events

    def unfinished(self) -> bytes:
        """The bytes of the line that is not complete yet."""
        return bytes(self._buffer)

    @property
    def cut_size(self) -> int:
        """Bytes of the cut document."""
        return 0 if self._strays is None else len(self._strays) + len(self._buffer)

    def cut_document(self) -> bytes:
        """All bytes, as long as no object was complete: of one that was cut, what there is."""
        return b"" if self._strays is None else bytes(self._strays + self._buffer)

    def _take_line(self, line: bytes, events: list[SseEvent]) -> None:
        """A line with its newline; at the end of the stream perhaps without."""
        if self._skipping or len(line) - line.endswith(_LF) > self._max_line_bytes:
            self.truncated = True
            self._skipping = False
            self._strays = None
            events.append(self._event(line))
            return
        bare = line.strip()
        # Looked at first: a try that fails costs ten times as much as one that does not.
        value = parse_object(bare) if bare[:1] == b"{" and bare[-1:] == b"}" else None
        if value is not None:
            self._strays = None
            events.append(self._event(line)._replace(value=value))
            return
        if len(bare) > LARGE_BYTES and value is None and bare[:1] == b"{":
            self.truncated = True
        if self._strays is not None:
            self._strays += line
            if len(self._strays) > self._max_line_bytes:
                self.truncated = True
                self._strays = None
        if self._keep_raw:
            events.append(self._event(line))

    def _take_strays(self, events: list[SseEvent]) -> None:
        if self._strays:
            value = parse_object(bytes(self._strays))
            if value is not None:
                events.append(SseEvent(b"", value))
                self._strays = None

    def _event(self, line: bytes) -> SseEvent:
        return SseEvent(line if self._keep_raw else b"")


def _begins(first_bytes: bytes, _content_type: str) -> bool | None:
    """Every answer that begins with an object, whatever its label: one alone is a line as well."""
    return first_bytes[:1] == b"{"


def _make(keep_raw: bool) -> NdjsonParser:  # noqa: FBT001 - the signature of Framing.make
    return NdjsonParser(keep_raw=keep_raw)


NDJSON = Framing(name="ndjson", begins=_begins, make=_make)
