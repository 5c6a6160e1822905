"""gzip, deflate, brotli and zstd undone piece by piece, so that no bomb ever stands in memory."""

import sys
import zlib
from collections.abc import Iterator
from typing import Literal, Protocol

import brotli

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Compression = Literal["gzip", "zlib", "raw", "br", "zstd"]

# How much is inflated at a time (brotli may give up to twice that, because its buffer doubles).
_PIECE = 256 * 1024
# How much is taken in at a time, because what stands behind a member is copied.
_SLICE = 16 * 1024
# A body may be several members one after another (RFC 1952, 2.2; RFC 8878, 3.1). Each costs some
# 50 us whatever is in it, and an empty one has 9 bytes.
MAX_MEMBERS = 4096
# RFC 9659: as a content coding, zstd uses windows of 8 MB at most. Larger ones are memory that the
# sender makes us hold.
_ZSTD_WINDOW_LOG = 23
_ZLIB_WINDOWS: dict[Compression, int] = {"gzip": 31, "zlib": 15, "raw": -15}
_ERRORS = (zlib.error, brotli.error, zstd.ZstdError)
# How another member begins behind a complete one, and frames of zstd that hold no data. Whatever
# begins otherwise is padding or garbage, which spoils nothing of what was read.
_MAGIC: dict[Compression, tuple[bytes, ...]] = {
    "gzip": (b"\x1f\x8b\x08",),
    "zstd": (b"\x28\xb5\x2f\xfd", *(bytes([0x50 + n]) + b"\x2a\x4d\x18" for n in range(16))),
}


class _Member(Protocol):
    """One compressed stream. ``take`` raises one of _ERRORS when it is not what it should be."""

    def take(self, data: bytes) -> bytes:
        """The plain bytes that ``data`` adds, a piece at most."""

    @property
    def is_starved(self) -> bool:
        """Whether all that was taken in has come out; until then, take no more data."""

    @property
    def is_over(self) -> bool: ...

    @property
    def behind(self) -> bytes:
        """What was taken in and stands behind the end."""


class _Zlib:
    def __init__(self, window: int) -> None:
        self._stream = zlib.decompressobj(window)
        self._tail = b""
        self.is_starved = True

    def take(self, data: bytes) -> bytes:
        piece = self._stream.decompress(self._tail + data, _PIECE)
        self._tail = self._stream.unconsumed_tail
        # It may have taken all input and still hold output back.
        self.is_starved = not self._tail and len(piece) < _PIECE
        return piece

    @property
    def is_over(self) -> bool:
        return self._stream.eof

    @property
    def behind(self) -> bytes:
        return self._stream.unused_data


class _Zstd:
    def __init__(self) -> None:
        self._stream = zstd.ZstdDecompressor(
            options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
        )

    def take(self, data: bytes) -> bytes:
        return self._stream.decompress(data, _PIECE)

    @property
    def is_starved(self) -> bool:
        return self._stream.needs_input

    @property
    def is_over(self) -> bool:
        return self._stream.eof

    @property
    def behind(self) -> bytes:
        return self._stream.unused_data


class _Brotli:
    behind = b""  # anything there is an error to the library

    def __init__(self) -> None:
        self._stream = brotli.Decompressor()

    def take(self, data: bytes) -> bytes:
        piece: bytes = self._stream.process(data, output_buffer_limit=_PIECE)
        return piece

    @property
    def is_starved(self) -> bool:
        return bool(self._stream.can_accept_more_data())

    @property
    def is_over(self) -> bool:
        return bool(self._stream.is_finished())


def _member(kind: Compression) -> _Member:
    if kind == "br":
        return _Brotli()
    return _Zstd() if kind == "zstd" else _Zlib(_ZLIB_WINDOWS[kind])


class Inflater:
    """One decompressor for a whole body, however it is cut.

    ``finished``: at least one complete stream and nothing after it that is unfinished.
    ``broken``: the bytes are not what they should be; what came before is still valid.
    ``overflowed``: the total passed ``max_bytes``; nothing more is inflated.
    """

    def __init__(self, kind: Compression, *, max_bytes: int) -> None:
        self._kind: Compression = kind
        self._max_bytes = max_bytes
        self._member = _member(kind)
        self._inside_member = False
        self._between = b""  # behind a member: bytes that may begin another
        self._members = 0
        self._total = 0
        self._ended = False  # whatever follows is not read
        self.broken = False
        self.overflowed = False

    @property
    def finished(self) -> bool:
        return self._members > 0 and not self._inside_member

    @property
    def lost(self) -> bool:
        """Whether something was sent that cannot be known."""
        return self.broken or self.overflowed

    def feed(self, data: bytes) -> bytes:
        """All plain bytes that ``data`` adds, up to ``max_bytes``. Never raises."""
        return b"".join(self.pieces(data))

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """The plain bytes that ``data`` adds, a little at a time, so that no bomb is ever held."""
        for start in range(0, len(data), _SLICE):
            if self._ended:
                # The library takes no byte behind brotli's end, however the bytes are cut.
                self.broken = self.broken or self._kind == "br"
                return
            yield from self._slice(data[start : start + _SLICE])

    def _slice(self, data: bytes) -> Iterator[bytes]:
        more = True
        while more and not self._ended:
            if self._members and not self._inside_member:
                data = self._begin_of_member(data)
                if not data:
                    return
            if self._members == MAX_MEMBERS:
                self.broken = self._ended = True
                return
            self._inside_member = True
            try:
                piece = self._member.take(data)
            except _ERRORS:
                self.broken = self._ended = True
                return
            self._total += len(piece)
            if self._total > self._max_bytes:
                self.overflowed = self._ended = True
                return
            if self._member.is_over:
                data = self._member.behind
                more = bool(data)
                self._next_member()
            else:
                data, more = b"", not self._member.is_starved
            yield piece

    def _begin_of_member(self, data: bytes) -> bytes:
        """What stands behind a complete member, once it is sure to be another; until then b""."""
        start = self._between + data
        self._between = b""
        magics = _MAGIC[self._kind]
        if start.startswith(magics):
            return start
        if any(magic.startswith(start) for magic in magics):
            self._between = start
        else:
            self._ended = True
        return b""

    def _next_member(self) -> None:
        self._members += 1
        self._inside_member = False
        if self._kind in ("gzip", "zstd"):
            self._member = _member(self._kind)
        else:
            self._ended = True
