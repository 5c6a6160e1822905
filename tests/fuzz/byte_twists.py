"""Changes of bytes: flipped, cut, repeated, packed; and where to cut a stream."""

from itertools import pairwise

from tests.fuzz.choices import Choices
from tests.unit.provider_cases import pack

CODINGS: tuple[str | None, ...] = (None, "gzip", "deflate", "br", "zstd", "identity", "gzip, br")
_PACKED = ("gzip", "deflate", "br", "zstd")
_TOKENS = (
    *(b"\r", b"\n", b"\r\n", b"\n\n", b"\r\r", b"data:", b"data: ", b"data", b"event: error\n"),
    *(b":", b": c\n", b"id: 1\n", b"[DONE]", b"data: [DONE]\n\n", b"\xef\xbb\xbf", b"\0", b"\xff"),
    *(b"{", b"}", b"[", b"]", b'"', b"\\", b",", b'{"usage":{}}', b'"usage":{', b"\x1f\x8b\x08"),
    *(b"\x28\xb5\x2f\xfd", b"\xed\xa0\x80", b"\xf0\x9f", b"--XyZ", b"\r\n--XyZ--", b'name="n"'),
    b"\x00\x00\x00\x10\x00\x00\x00\x00",
)
_MOST_BYTES = 100_000
_MOST_CUTS = 12


def changed(body: bytes, choices: Choices) -> bytes:
    """``body`` with one change."""
    at = choices.below(len(body) + 1)
    end = min(len(body), at + choices.below(64))
    kind = choices.below(7)
    if kind == 0:
        body = body[:at] + choices.pick(_TOKENS) + body[at:]
    elif kind == 1:
        body = body[:at] + body[end:]
    elif kind == 2:
        body = body[:at] + choices.blob(1 + choices.below(8)) + body[at:]
    elif kind == 3:
        body = body[:at] + body[at:end] * (1 + choices.below(50)) + body[end:]
    elif kind == 4:
        body = body[:at]
    elif kind == 5 and at < len(body):
        body = body[:at] + bytes([body[at] ^ (1 << choices.below(8))]) + body[at + 1 :]
    else:
        body = body[:at] + choices.pick(_TOKENS) * choices.below(300) + body[at:]
    return body[:_MOST_BYTES]


def coded(body: bytes, label: str | None, choices: Choices) -> tuple[bytes, str | None]:
    """``body`` in a content coding and its label; sometimes spoilt, sometimes another label."""
    if choices.one_in(4):
        packed = pack(body, choices.pick(_PACKED))
        label = choices.pick(CODINGS)
    elif choices.one_in(3):
        label = choices.pick(_PACKED)
        packed = pack(body, label)
        if choices.one_in(4):
            packed += pack(body, label)
    else:
        return body, choices.pick(CODINGS) if choices.one_in(8) else label
    if choices.one_in(3):
        packed = changed(packed, choices)
    return packed, label


def pieces(body: bytes, choices: Choices) -> list[bytes]:
    """``body`` cut at random, some pieces empty."""
    marks = sorted(choices.below(len(body) + 1) for _ in range(choices.below(_MOST_CUTS)))
    edges = [0, *marks, len(body)]
    return [body[a:b] for a, b in pairwise(edges)]
