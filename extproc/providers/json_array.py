"""An answer that is one JSON array which grows: an element is an event, read when it is complete.

Google's ``streamGenerateContent`` answers so without ``alt=sse``; its SDKs of other clouds too.
"""

import re

from extproc.providers.json_answer import parse_object
from extproc.providers.sse import SseEvent
from extproc.providers.wire_formats import Framing

# Pictures come as base64 inside an element: about 3 MB each.
MAX_ELEMENT_BYTES = 16 * 1024 * 1024
# Possessive, so that nothing is kept for going back: a string of escapes costs no memory.
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_BETWEEN = re.compile(rb'["{\]]')
# Whole strings and all that opens or closes nothing. It stops at a string that the chunk cuts,
# which is then looked at twice.
_PLAIN = re.compile(rb'(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_QUOTE, _OPENING, _END = 0x22, b"{[", 0x5D


class JsonArrayFramer:
    """Finds the objects in the bytes, wherever they are cut, and keeps only the unfinished one.

    No byte is looked at more than twice. What stands between the objects is skipped, so white
    space, nested arrays and several arrays behind one another are read too. ``truncated`` becomes
    true when an object is larger than ``max_bytes`` or cannot be read. With ``keep_raw`` each chunk
    comes out first, as an event without a value, because here nothing is ever hidden.
    """

    def __init__(self, keep_raw: bool, *, max_bytes: int = MAX_ELEMENT_BYTES) -> None:  # noqa: FBT001 - the seam's shape
        self._keep_raw = keep_raw
        self._max_bytes = max_bytes
        self._element = bytearray()  # the unfinished object, unless it is too large
        self._is_too_large = False
        self._depth = 0  # of braces and brackets inside the unfinished object; 0 between objects
        self._in_string = False
        self._after_backslash = False
        self.truncated = False

    def feed(self, chunk: bytes, *, end: bool = False) -> list[SseEvent]:
        """The objects that ``chunk`` completes, and the array's end. Never raises."""
        events = [SseEvent(chunk)] if self._keep_raw and chunk else []
        at, begin = 0, 0  # ``begin`` is where this chunk's part of the unfinished object begins
        while at < len(chunk):
            if self._in_string:
                at = self._skip_string(chunk, at)
                continue
            if self._depth:
                plain = _PLAIN.match(chunk, at)
                assert plain is not None  # it matches the empty string
                start = plain.end()
            else:
                found = _BETWEEN.search(chunk, at)
                start = len(chunk) if found is None else found.start()
            if start == len(chunk):
                break
            at, byte = start + 1, chunk[start]
            if byte == _QUOTE:
                self._in_string = True
            elif self._depth:
                self._depth += 1 if byte in _OPENING else -1
                if not self._depth:
                    self._keep(chunk[begin:at])
                    self._finish(events)
            elif byte == _END:
                events.append(SseEvent(b"", done=True))
            else:
                self._depth, begin = 1, start
        if self._depth:
            self._keep(chunk[begin:])
            if end:
                self._depth = 0
                self._element.clear()
        return events

    def unfinished(self) -> bytes:
        """Nothing is held back."""
        return b""

    def _skip_string(self, chunk: bytes, at: int) -> int:
        """Where the string that we are in ends, or the chunk."""
        if self._after_backslash:
            self._after_backslash = False
            at += 1
        match = _STRING.match(chunk, at)
        assert match is not None  # it matches the empty string
        at = match.end()
        if at < len(chunk):
            self._after_backslash = chunk[at] != _QUOTE
            self._in_string = self._after_backslash
            at += 1
        return at

    def _keep(self, piece: bytes) -> None:
        if self._is_too_large:
            return
        self._element += piece
        if len(self._element) > self._max_bytes:
            self._is_too_large = self.truncated = True
            self._element = bytearray()

    def _finish(self, events: list[SseEvent]) -> None:
        if not self._is_too_large:
            value = parse_object(bytes(self._element))
            if value is None:
                self.truncated = True
            else:
                events.append(SseEvent(b"", value))
            self._element = bytearray()
        self._is_too_large = False


def _begins(first: bytes, _content_type: str) -> bool:
    return first[:1] == b"["


JSON_ARRAY = Framing(name="json_array", begins=_begins, make=JsonArrayFramer)
