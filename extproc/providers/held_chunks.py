"""Chunks of a stream that were passed on and are still to be read, several at once.

What a chunk costs is in the main not the reading but getting there: between two chunks of a stream
thousands of others ran, and the processor has forgotten the code and the data. Read together they
cost less than half. Bounded, so that reading them takes a millisecond at most.
"""

_MOST_BYTES = 8 * 1024
# Events are lines; this many of the smallest take as long as the bytes above of usual ones.
_MOST_LINES = 96


class HeldChunks:
    """Of one stream, in order."""

    __slots__ = ("_chunks", "_lines", "size")

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._lines = 0
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, chunk: bytes) -> bool:
        """Hold a chunk; True when it is time to read them."""
        self._chunks.append(chunk)
        self._lines += chunk.count(b"\n")
        self.size += len(chunk)
        return self.size > _MOST_BYTES or self._lines > _MOST_LINES

    def take(self) -> bytes:
        """All bytes, which are held no longer."""
        data = b"".join(self._chunks)
        self._chunks.clear()
        self.size = self._lines = 0
        return data
