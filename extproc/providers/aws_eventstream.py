"""AWS's binary event stream (``application/vnd.amazon.eventstream``), incrementally over bytes.

After AWS's "Event stream encoding": total length and headers' length (4 bytes each, big-endian), a
CRC-32 of these eight bytes, headers, payload, a CRC-32 of all before it. A header is its name's
length (1 byte), name, type (1 byte) and value. Numbers are trusted only once their CRC is right.
"""

import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache

from extproc.providers.json_answer import parse_object
from extproc.providers.requests import JsonObject
from extproc.providers.sse import MAX_EVENT_BYTES, SseEvent
from extproc.providers.wire_formats import Framing

CONTENT_TYPE = "application/vnd.amazon.eventstream"
_PRELUDE_BYTES, _CRC_BYTES = 12, 4
_LEAST_BYTES = _PRELUDE_BYTES + _CRC_BYTES
# Types of header values: true, false, byte, short, int, long, bytes, string, timestamp, UUID.
_FIXED_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
_BYTES, _STRING = 6, 7
_CACHED_HEADERS_BYTES = 256
# What a failure is called in this format; an event that is named so is one for every reader.
_FAILURES = frozenset({"exception", "error"})
ERROR_NAME = "error"


class EventStreamFramer:
    """Cuts one stream into messages. Holds the unfinished message only, at most
    ``max_event_bytes``; a larger one is passed over by its length.

    ``truncated`` becomes true when a message was too large, broken, or no JSON. A message whose
    own CRC is wrong is left out. When a prelude is wrong, nobody knows where the next message
    begins: then nothing more is read. Time is linear in the bytes, however they are cut.
    """

    def __init__(self, *, keep_raw: bool = False, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._keep_raw = keep_raw
        self._max_event_bytes = max_event_bytes
        self._buffer = bytearray()
        self._size = 0  # of the unfinished message; 0 while its prelude is not complete
        self._to_skip = 0  # bytes of a message that is too large
        self._is_lost = False
        self.truncated = False

    def feed(self, chunk: bytes, *, end: bool = False) -> list[SseEvent]:
        """The events that ``chunk`` completes. Never raises."""
        buffer = self._buffer
        buffer += chunk
        events: list[SseEvent] = []
        at = 0
        while at < len(buffer):
            if self._is_lost or self._to_skip:
                rest = len(buffer) - at
                passed = rest if self._is_lost else min(rest, self._to_skip)
                self._to_skip = max(0, self._to_skip - passed)
                self._pass_on(events, at, at + passed)
                at += passed
            elif len(buffer) - at < (self._size or _PRELUDE_BYTES):
                break
            elif not self._size:
                self._read_prelude(at)
            else:
                message = bytes(buffer[at : at + self._size])
                at += self._size
                self._size = 0
                events.append(self._event(message))
        if end and at < len(buffer):
            # The end came inside a message: as with a cut line of text, its part is not read.
            self._pass_on(events, at, len(buffer))
            at = len(buffer)
        del buffer[:at]
        return events

    def unfinished(self) -> bytes:
        """The bytes held back."""
        return bytes(self._buffer)

    def _read_prelude(self, at: int) -> None:
        sizes = _sizes(bytes(self._buffer[at : at + _PRELUDE_BYTES]))
        if sizes is None:
            self.truncated = self._is_lost = True
        elif sizes[0] > self._max_event_bytes:
            self.truncated = True
            self._to_skip = sizes[0]
        else:
            self._size = sizes[0]

    def _pass_on(self, events: list[SseEvent], start: int, end: int) -> None:
        if self._keep_raw:
            events.append(SseEvent(bytes(self._buffer[start:end])))

    def _event(self, message: bytes) -> SseEvent:
        raw = message if self._keep_raw else b""
        body, crc = message[:-_CRC_BYTES], message[-_CRC_BYTES:]
        if zlib.crc32(body) != int.from_bytes(crc):
            self.truncated = True
            return SseEvent(raw)
        start = _PRELUDE_BYTES + int.from_bytes(message[4:8])
        headers = _headers(body[_PRELUDE_BYTES:start])
        value: JsonObject | None = {}
        if payload := body[start:]:
            value = parse_object(payload)
        if headers.get(":message-type") in _FAILURES:
            return SseEvent(raw, _failure(headers, value or {}), name=ERROR_NAME)
        if value is None:
            self.truncated = True
        return SseEvent(raw, value, name=headers.get(":event-type", ""))


def _failure(headers: Mapping[str, str], value: JsonObject) -> JsonObject:
    """The exception with its name, which stands in a header, as ``__type`` of its payload."""
    name = headers.get(":exception-type") or headers.get(":error-code")
    return value if name is None else {"__type": name, **value}


def _sizes(prelude: bytes) -> tuple[int, int] | None:
    """Total length and headers' length; None when they cannot be true."""
    if zlib.crc32(prelude[:8]) != int.from_bytes(prelude[8:12]):
        return None
    total, headers = int.from_bytes(prelude[:4]), int.from_bytes(prelude[4:8])
    return (total, headers) if headers + _LEAST_BYTES <= total else None


def _headers(data: bytes) -> Mapping[str, str]:
    """The headers that are strings, up to the first that is malformed."""
    if len(data) > _CACHED_HEADERS_BYTES:
        return dict(_header_values(data))
    return _known_headers(data)


@lru_cache(maxsize=64)
def _known_headers(data: bytes) -> Mapping[str, str]:
    """A stream has a few kinds of messages, whose headers are the same each time."""
    return dict(_header_values(data))


def _header_values(data: bytes) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(data):
        name_end = at + 1 + data[at]
        if name_end >= len(data):
            return
        name, kind = data[at + 1 : name_end], data[name_end]
        start = name_end + 1
        if kind in (_BYTES, _STRING):
            size = int.from_bytes(data[start : start + 2])
            start += 2
        elif kind in _FIXED_SIZES:
            size = _FIXED_SIZES[kind]
        else:
            return
        at = start + size
        if at > len(data):
            return
        if kind == _STRING:
            yield name.decode("utf-8", "replace"), data[start:at].decode("utf-8", "replace")


def begins_event_stream(start: bytes, content_type: str) -> bool | None:
    """Whether an answer is such a stream. A message below 16 MiB begins with a zero byte, which no
    text does; then the content type is believed, or the CRC of the first prelude."""
    is_named = CONTENT_TYPE in content_type
    if start[0] != 0:
        # Text under this content type is an error page; other bytes are a broken stream.
        return is_named and not (0x20 <= start[0] < 0x7F)
    if is_named:
        return True
    if len(start) < _PRELUDE_BYTES:
        return None
    return _sizes(start[:_PRELUDE_BYTES]) is not None


AWS_EVENTSTREAM = Framing(
    name="aws_eventstream",
    begins=begins_event_stream,
    make=lambda keep_raw: EventStreamFramer(keep_raw=keep_raw),
)
