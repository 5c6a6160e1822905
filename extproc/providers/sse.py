"""Server-sent events, incrementally over bytes.

After the HTML standard, "Interpreting an event stream": LF, CRLF and CR end lines, an empty line
ends an event, lines that begin with a colon are comments, several data lines are joined by LF.
Beyond it, because providers are so: an event whose single data line is a whole JSON object (or
``[DONE]``) counts when its line ends, so servers that put one newline between events are read too;
a line that is a JSON object by itself counts without its ``data:``; and the last event counts at
the end of the stream without its empty line.

The raw bytes of all events together are exactly the bytes fed, in order, so a caller can leave
single events out of a stream without touching the rest.
"""

import re
from typing import NamedTuple

from extproc.providers.json_answer import parse_object
from extproc.providers.large_json import LARGE_BYTES
from extproc.providers.requests import JsonObject

MAX_EVENT_BYTES = 4 * 1024 * 1024
# Tries cost time, and lines may be millions.
_MOST_TRIES = 256
_LINE_END = re.compile(rb"\r\n?|\n")
# A whole event as nearly all of all providers are: at most a name, one line of data, an empty line.
_USUAL = re.compile(rb"(?:event:([^\r\n]*+)\r?\n)?data: ?(\{[^\r\n]*+)\r?\n(\r?\n)")
# And as most of these are. Found without the expression, at a third of its cost.
_DATA, _DATA_AT = b"data: {", len("data: ")
_DATA_END = b"}\n\n"
_CR = 0x0D
_MAX_NAME_BYTES = 58


class SseEvent(NamedTuple):
    """One event, comment, or empty line.

    ``value`` is the JSON object of its data, None when it has none that can be read. ``done`` is
    the ``[DONE]`` marker. ``raw`` is empty unless the parser was asked to keep it. ``is_open``
    says that the event's empty line is not part of it and may follow.
    """

    raw: bytes
    value: JsonObject | None = None
    done: bool = False
    name: str = ""
    is_open: bool = False


class SseParser:
    """Parses one stream. Keeps the unfinished event only, and of that at most ``max_event_bytes``.

    ``truncated`` becomes true when an event was larger than that: it is passed on unread, in
    pieces, up to the next empty line. Also when a large one could not be read. Time is linear in
    the bytes, however they are cut.
    """

    def __init__(self, *, keep_raw: bool = False, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._keep_raw = keep_raw
        self._max_event_bytes = max_event_bytes
        self._buffer = bytearray()
        self._event_at = 0  # where in the buffer the unfinished event begins,
        self._line_at = 0  # its unfinished line,
        self._scan_at = 0  # and the bytes in which no line end was looked for yet
        self._data: list[bytes] = []
        self._name = ""
        self._skipping = False
        self._line_was_cut = False  # the unfinished line's beginning was already passed on
        self.truncated = False

    def feed(self, chunk: bytes, *, end: bool = False) -> list[SseEvent]:
        """The events that ``chunk`` completes. ``end`` says that nothing follows. Never raises."""
        buffer = self._buffer
        events: list[SseEvent] = []
        if not buffer and not self._skipping and len(chunk) <= self._max_event_bytes:
            taken = self._take_usual(chunk, events)
            if taken == len(chunk) and not end:
                return events
            chunk = chunk[taken:]
        buffer += chunk
        while (line_end := _LINE_END.search(buffer, self._scan_at)) is not None:
            start, after = line_end.span()
            if after == len(buffer) and buffer[start] == _CR and after - start == 1 and not end:
                self._scan_at = start  # a LF that belongs to this CR may follow
                break
            line = bytes(buffer[self._line_at : start])
            self._line_at = self._scan_at = after
            self._take_line(line, events)
        else:
            self._scan_at = len(buffer)
        if end:
            self._finish(events)
        elif self._skipping or len(buffer) - self._event_at > self._max_event_bytes:
            self._pass_on(events)
        del buffer[: self._event_at]
        self._line_at -= self._event_at
        self._scan_at -= self._event_at
        self._event_at = 0
        return events

    @property
    def is_between_events(self) -> bool:
        """Nothing of an event has come that is not complete."""
        return not self._buffer and not self._skipping

    def unfinished(self) -> bytes:
        """The bytes of the event that is not complete yet."""
        return bytes(self._buffer)

    def _take_usual(self, chunk: bytes, events: list[SseEvent]) -> int:
        """The usual events that ``chunk`` begins with, as the long way reads them; their length."""
        at = 0
        while (usual := _usual_event(chunk, at)) is not None:
            name, data, empty_line, after = usual
            if (value := parse_object(data)) is None:
                break
            raw = empty = b""
            if self._keep_raw:
                raw, empty = chunk[at : after - len(empty_line)], empty_line
            text = "" if name is None else _name(name)
            events.append(SseEvent(raw, value, False, text, True))  # noqa: FBT003
            if empty:
                events.append(SseEvent(empty))
            at = after
        return at

    def _take_line(self, line: bytes, events: list[SseEvent]) -> None:
        is_empty = not line and not self._line_was_cut
        self._line_was_cut = False
        if self._skipping:
            self._skipping = not is_empty
            events.append(SseEvent(self._raw()))
        elif self._line_at - self._event_at > self._max_event_bytes:
            self._skip(events)
            self._skipping = not is_empty
        elif is_empty:
            self._dispatch(events)
        elif line.startswith(b"data"):
            self._take_data(line, events)
        elif line.startswith(b"event:"):
            self._name = _name(line[6:])
        elif line[:1] == b"{":
            self._take_bare(line, events)

    def _take_data(self, line: bytes, events: list[SseEvent]) -> None:
        if line[4:5] == b":":
            data = line[6:] if line[5:6] == b" " else line[5:]
        elif len(line) == 4:
            data = b""
        else:
            return  # another field, whose name begins with "data"
        if not self._data:
            if data[:1] == b"{" and data.rstrip()[-1:] == b"}":
                value = parse_object(data)
                if value is not None:
                    events.append(SseEvent(self._raw(), value, name=self._name, is_open=True))
                    self._name = ""
                    return
            elif data.strip() == b"[DONE]":
                events.append(SseEvent(self._raw(), done=True, is_open=True))
                self._name = ""
                return
        self._data.append(data)

    def _take_bare(self, line: bytes, events: list[SseEvent]) -> None:
        """To the standard a field of an odd name; from a gateway its error, or the whole answer
        behind comments that kept the connection open."""
        if self._data or line.rstrip()[-1:] != b"}":
            return
        value = parse_object(line)
        if value is not None:
            events.append(SseEvent(self._raw(), value, name=self._name, is_open=True))
            self._name = ""

    def _dispatch(self, events: list[SseEvent]) -> None:
        """At an empty line: whatever was collected is an event."""
        if not self._data and not self._keep_raw:
            self._name = ""
            self._event_at = self._line_at
            return
        data, name = self._data, self._name
        self._data, self._name = [], ""
        value = parse_object(b"\n".join(data)) if data else None
        if value is None and len(data) > 1:
            value = _last_object(data)
        if value is None and sum(map(len, data)) > LARGE_BYTES:
            self.truncated = True
        events.append(SseEvent(self._raw(), value, name=name))

    def _finish(self, events: list[SseEvent]) -> None:
        rest = bytes(self._buffer[self._line_at :])
        self._line_at = self._scan_at = len(self._buffer)
        if rest:
            self._take_line(rest, events)
        if self._data or self._event_at < self._line_at:
            self._dispatch(events)

    def _pass_on(self, events: list[SseEvent]) -> None:
        """The unfinished event is too large to hold: what there is of it goes through unread."""
        end = len(self._buffer)
        if end and self._buffer[-1] == _CR:
            end -= 1  # its LF may follow
        if not self._skipping:
            self.truncated = True
            self._skipping = True
        self._data, self._name = [], ""
        self._line_was_cut = self._line_was_cut or end > self._line_at
        self._line_at = end
        self._scan_at = max(self._scan_at, end)
        if end > self._event_at:
            events.append(SseEvent(self._raw()))

    def _skip(self, events: list[SseEvent]) -> None:
        self.truncated = True
        self._data, self._name = [], ""
        events.append(SseEvent(self._raw()))

    def _raw(self) -> bytes:
        """The bytes from the unfinished event's begin to the unfinished line's begin."""
        raw = bytes(self._buffer[self._event_at : self._line_at]) if self._keep_raw else b""
        self._event_at = self._line_at
        return raw


def _usual_event(chunk: bytes, at: int) -> tuple[bytes | None, bytes, bytes, int] | None:
    """Name, data and empty line of the usual event that begins there, and where it ends."""
    if chunk.startswith(_DATA, at):
        line_end = chunk.find(b"\n", at)
        data = chunk[at + _DATA_AT : line_end]
        if chunk.startswith(_DATA_END, line_end - 1) and b"\r" not in data:
            return None, data, b"\n", line_end + 2
    usual = _USUAL.match(chunk, at)
    if usual is None or usual[2][-1:] != b"}":
        return None
    name, data, empty_line = usual.groups()
    return name, data, empty_line, usual.end()


def _last_object(lines: list[bytes]) -> JsonObject | None:
    """Of lines that are no event together, the last that is one by itself, if there is any."""
    tries = 0
    for line in reversed(lines):
        if line[:1] == b"{" and line.rstrip()[-1:] == b"}":
            value = parse_object(line)
            tries += 1
            if value is not None or tries == _MOST_TRIES:
                return value
    return None


def _name(value: bytes) -> str:
    return value[:_MAX_NAME_BYTES].strip().decode("ascii", "replace")
