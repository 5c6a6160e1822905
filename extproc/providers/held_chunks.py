"""Chunks of a stream that were passed on and are still to be read, several at once.

What a chunk costs is in the main not the reading but getting there: between two chunks of a stream
thousands of others ran, and the processor has forgotten the code and the data. Read together they
cost less than half. And most need not be read at all: when the end of a stream tells what was used,
nobody asks for the text. Bounded, so that reading them takes a millisecond at most.
"""

from extproc.providers.hidden_usage import hides_nothing
from extproc.providers.sse import SseParser
from extproc.providers.wire_formats import Answer

_MOST_BYTES = 8 * 1024
# Events are lines; this many of the smallest take as long as the bytes above of usual ones.
_MOST_LINES = 96
# Kept where the text may turn out not to be needed.
_MOST_TEXT_BYTES = 48 * 1024
# The end of a stream: the last event, the usage and the end marker, and no more.
_MOST_END_BYTES = 4 * 1024


class HeldChunks:
    """Of one stream of events, in order.

    ``markers``: bytes of which every event of the format has at least one that tells more than what
    was produced, usage apart; None where that is not known.
    """

    __slots__ = ("_chunks", "_lines", "_markers", "_texts", "ended", "size")

    def __init__(self, markers: tuple[bytes, ...] | None) -> None:
        self._markers = markers
        self._chunks: list[bytes] = []
        self._texts = 0  # how many of the first chunks hold nothing but what was produced
        self._lines = 0
        self.size = 0
        self.ended = False

    def __bool__(self) -> bool:
        return bool(self._chunks)

    @property
    def may_end(self) -> bool:
        """Whether the last chunk may be held too."""
        return self._markers is not None

    def add(self, chunk: bytes, *, end: bool = False) -> bool:
        """Hold a chunk; True when it is time to read some of them (``take``)."""
        markers = self._markers
        if markers is not None and self._texts == len(self._chunks) and self._is_text(chunk):
            self._texts += 1
        self._chunks.append(chunk)
        self.size += len(chunk)
        self.ended = end
        if self._texts == len(self._chunks):
            return self.size > _MOST_TEXT_BYTES
        self._lines += chunk.count(b"\n")
        return self.size > _MOST_BYTES or self._lines > _MOST_LINES

    def _is_text(self, chunk: bytes) -> bool:
        markers = self._markers or ()
        return hides_nothing(chunk) and not any(marker in chunk for marker in markers)

    def take(self) -> bytes:
        """The bytes to read next, which are held no longer: all, or the oldest."""
        count = size = lines = 0
        for chunk in self._chunks:
            if size > _MOST_BYTES or lines > _MOST_LINES:
                break
            count += 1
            size += len(chunk)
            lines += chunk.count(b"\n")
        data = b"".join(self._chunks[:count])
        del self._chunks[:count]
        self._texts = max(0, self._texts - count)
        self.size -= size
        self._lines = 0
        return data

    def drop_text(self, fresh: Answer) -> bool:
        """After the end: forget the chunks in which nothing stands but what was produced, when what
        follows them tells all that was used. ``fresh`` is an answer of which nothing was read; what
        was read before must have told no error, and ended with an event."""
        rest = b"".join(self._chunks[self._texts :])
        if not self.ended or not self._texts or len(rest) > _MOST_END_BYTES:
            return False
        events = SseParser().feed(rest, end=True)
        for event in events:
            if event.value is not None or event.done:
                fresh.take_event(event)
        if fresh.error or not fresh.usage.is_known or not any(event.done for event in events):
            return False
        self._chunks, self._texts, self.size = [rest], 0, len(rest)
        return True
