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
                return
            yield from self._slice(data[start : start + _SLICE])

    def _slice(self, data: bytes) -> Iterator[bytes]:
        more = True
        while more and not self._ended:
            if self._members == MAX_MEMBERS:
                self.broken = self._ended = True
                return
            try:
                piece = self._member.take(data)
            except _ERRORS:
                # Padding or garbage behind a complete member does not spoil what was read.
                self.broken = self._members == 0 or self._inside_member
                self._ended = True
                return
            self._inside_member = True
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

    def _next_member(self) -> None:
        self._members += 1
        self._inside_member = False
        if self._kind in ("gzip", "zstd"):
            self._member = _member(self._kind)
        else:
            self._ended = True
