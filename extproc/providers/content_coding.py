"""gzip and deflate: whole bodies of requests, and answers piece by piece. Everything is bounded."""

import zlib
from collections.abc import Iterator
from typing import Literal

from extproc.core.errors import RequestError

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW, _ZLIB_WINDOW, _RAW_WINDOW = 31, 15, -15
_GZIP_NAMES = frozenset({"gzip", "x-gzip"})
# How much is inflated at a time, so that a bomb never stands in memory.
_PIECE = 256 * 1024


def coding_name(content_encoding: str | None) -> str:
    """The header's value in lower case; "" when the body is not encoded."""
    name = (content_encoding or "").strip().lower()
    return "" if name == "identity" else name


def decode_body(body: bytes, content_encoding: str | None, *, max_bytes: int) -> bytes:
    """A request's body without its content encoding.

    Raises RequestError: 413 above ``max_bytes``, 415 for an encoding that is not gzip or deflate
    (or several at once), 400 when the bytes are not what the header says.
    """
    name = coding_name(content_encoding)
    if not name:
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        return body
    if name not in _GZIP_NAMES and name != "deflate":
        raise RequestError(
            415,
            "unsupported_content_encoding",
            "only gzip and deflate can be read",
            param="content-encoding",
        )
    inflater = Inflater(_sniff_compressed(body, name), max_bytes=max_bytes)
    plain = inflater.feed(body)
    if inflater.overflowed:
        raise _too_large(max_bytes)
    if inflater.broken or not inflater.finished:
        raise RequestError(
            400,
            "invalid_content_encoding",
            f"the request body is not complete {name} data",
            param="content-encoding",
        )
    return plain


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(413, "body_too_large", f"the request body exceeds {max_bytes} bytes")


Compression = Literal["gzip", "zlib", "raw"]
_WINDOWS: dict[Compression, int] = {
    "gzip": _GZIP_WINDOW,
    "zlib": _ZLIB_WINDOW,
    "raw": _RAW_WINDOW,
}


def _sniff_compressed(start: bytes, name: str) -> Compression:
    if name in _GZIP_NAMES:
        return "gzip"
    # "deflate" means zlib (RFC 9110, 8.4.1.2), but many servers send raw deflate.
    has_header = len(start) >= 2 and start[0] & 0x0F == 8 and (start[0] << 8 | start[1]) % 31 == 0
    return "zlib" if has_header else "raw"


def sniff_answer(start: bytes, content_encoding: str | None) -> Compression | Literal["?"] | None:
    """How an answer that begins with ``start`` (2 bytes or more) is really encoded.

    Labels lie in both directions, so the bytes decide where they can. None is plain text, "?" an
    encoding that we cannot read.
    """
    if start.startswith(_GZIP_MAGIC):
        return "gzip"
    name = coding_name(content_encoding)
    if not name or _looks_plain(start):
        return None
    if name == "deflate":
        return _sniff_compressed(start, name)
    return "?"


# How JSON, SSE and a byte order mark begin.
_PLAIN_STARTS = (b'{"', b"{ ", b"{\n", b"{\r", b"[{", b"[ ", b"[\n", b"\xef\xbb", b"\n", b"\r\n")
_SSE_STARTS = (b"da", b"ev", b"id", b"re", b": ", b":\n", b":\r")


def _looks_plain(start: bytes) -> bool:
    """Only the first two bytes decide, so that it does not matter how the answer was cut."""
    return start[:2].startswith(_PLAIN_STARTS + _SSE_STARTS)


class Inflater:
    """One decompressor for a whole body, however it is cut.

    ``finished``: at least one complete stream and nothing after it that is unfinished.
    ``broken``: the bytes are not what they should be; what came before is still valid.
    ``overflowed``: the total passed ``max_bytes``; nothing more is inflated.
    """

    def __init__(self, kind: Compression, *, max_bytes: int) -> None:
        self._kind: Compression = kind
        self._max_bytes = max_bytes
        self._stream = zlib.decompressobj(_WINDOWS[kind])
        self._inside_member = False
        self._members = 0
        self._total = 0
        self._ended = False  # whatever follows is not read
        self.broken = False
        self.overflowed = False

    @property
    def finished(self) -> bool:
        return self._members > 0 and not self._inside_member

    def feed(self, data: bytes) -> bytes:
        """All plain bytes that ``data`` adds, up to ``max_bytes``. Never raises."""
        return b"".join(self.pieces(data))

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """The plain bytes that ``data`` adds, a little at a time, so that no bomb is ever held."""
        more = False  # zlib may have taken all input and still hold output back
        while (data or more) and not self._ended:
            try:
                piece = self._stream.decompress(data, _PIECE)
            except zlib.error:
                # Padding or garbage behind a complete member does not spoil what was read.
                self.broken = self._members == 0 or self._inside_member
                self._ended = True
                return
            self._inside_member = True
            self._total += len(piece)
            if self._total > self._max_bytes:
                self.overflowed = self._ended = True
                return
            if self._stream.eof:
                # A gzip body may be several members one after another (RFC 1952, 2.2).
                data, more = self._stream.unused_data, False
                self._members += 1
                self._inside_member = False
                self._ended = self._kind != "gzip"
                self._stream = zlib.decompressobj(_WINDOWS[self._kind])
            else:
                data, more = self._stream.unconsumed_tail, len(piece) == _PIECE
            yield piece
