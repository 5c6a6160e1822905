"""Content codings: whole bodies of requests, and which coding an answer really has.

gzip, deflate, br and zstd are read (RFC 9110, 8.4.1; RFC 7932; RFC 8878), one of them at a time.
"""

from typing import Literal

from extproc.core.errors import RequestError
from extproc.providers.inflaters import Compression, Inflater

_GZIP_MAGIC = b"\x1f\x8b"
# The begin of zstd's magic number. No UTF-8 text begins so, and none has its third byte.
_ZSTD_MAGIC = b"\x28\xb5"
_GZIP_NAMES = frozenset({"gzip", "x-gzip"})
_NAMES = _GZIP_NAMES | {"deflate", "br", "zstd"}
# What a packed request may always hold, and above that, how many times its size.
_ALWAYS_BYTES, _MOST_RATIO = 1024 * 1024, 100


def coding_name(content_encoding: str | None) -> str:
    """The header's value in lower case, without what changes nothing; "" for a plain body."""
    if not content_encoding:
        return ""
    names = (name.strip() for name in content_encoding.lower().split(","))
    return ", ".join(name for name in names if name not in ("", "identity"))


def decode_body(body: bytes, content_encoding: str | None, *, max_bytes: int) -> bytes:
    """A request's body without its content encoding.

    Raises RequestError: 413 above ``max_bytes``, or above 1 MiB and a hundred times its packed
    size; 415 for an encoding that is not known or several at once; 400 when the bytes are not what
    the header says.
    """
    name = coding_name(content_encoding)
    if name:
        # Nobody's chat packs better, and reading it costs by the plain byte.
        max_bytes = min(max_bytes, max(_ALWAYS_BYTES, _MOST_RATIO * len(body)))
    if not name:
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        return body
    if name not in _NAMES:
        raise RequestError(
            415,
            "unsupported_content_encoding",
            "only gzip, deflate, br and zstd can be read, one at a time",
            param="content-encoding",
        )
    inflater = Inflater(_compression(body, name), max_bytes=max_bytes)
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


def _compression(start: bytes, name: str) -> Compression:
    if name in _GZIP_NAMES:
        return "gzip"
    if name == "br":
        return "br"
    if name == "zstd":
        return "zstd"
    # "deflate" means zlib (RFC 9110, 8.4.1.2), but many servers send raw deflate.
    has_header = len(start) >= 2 and start[0] & 0x0F == 8 and (start[0] << 8 | start[1]) % 31 == 0
    return "zlib" if has_header else "raw"


def sniff_answer(start: bytes, content_encoding: str | None) -> Compression | Literal["?"] | None:
    """How an answer that begins with ``start`` (2 bytes or more) is really encoded.

    Labels lie in both directions, so the bytes decide where they can: gzip and zstd have magic
    numbers, brotli has none. None is plain text, "?" an encoding that we cannot read.
    """
    name = coding_name(content_encoding)
    if name and _looks_plain(start, name):
        return None
    if "," in name:
        return "?"  # what is inside the outermost is not text
    if start.startswith(_GZIP_MAGIC):
        return "gzip"
    if start.startswith(_ZSTD_MAGIC):
        return "zstd"
    if not name:
        return None
    if name in ("deflate", "br") or (name == "zstd" and _is_skippable(start)):
        return _compression(start, name)
    return "?"


def _is_skippable(start: bytes) -> bool:
    """Whether a frame of zstd begins that holds no data (RFC 8878, 3.1.2); others may follow."""
    return len(start) > 1 and start[0] & 0xF0 == 0x50 and start[1] == 0x2A


# How JSON, SSE and a byte order mark begin.
_PLAIN_STARTS = (b'{"', b"{ ", b"{\n", b"{\r", b"\xef\xbb", b"\n", b"\r\n")
_ARRAY_STARTS = (b"[{", b"[ ", b"[\n")
_SSE_STARTS = (b"da", b"ev", b"id", b"re", b": ", b":\n", b":\r")


def _looks_plain(start: bytes, name: str) -> bool:
    """Only the first two bytes decide, so that it does not matter how the answer was cut.

    With the usual window of brotli, "[" begins any answer of 64 KiB to 1 MiB in one piece (RFC
    7932, 9.2), and "{" none that is not empty.
    """
    arrays = () if name == "br" else _ARRAY_STARTS
    return start[:2].startswith(_PLAIN_STARTS + _SSE_STARTS + arrays)
