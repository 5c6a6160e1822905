"""However much a stream sends, and of what: what a reader holds stays below a bound.

The streams are made as they are read, so that the test itself holds nothing of them.
"""

import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from itertools import repeat

import brotli
import pytest

from extproc.providers.answers import AnswerReader, answer_reader
from extproc.providers.tokens import warm_up

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Chunks = Iterator[bytes]
MB = 1024 * 1024
TOTAL = 64 * MB
PIECE = MB
FILLING = b"a" * PIECE


def filled(start: bytes, piece: bytes = FILLING, *, total: int = TOTAL) -> Chunks:
    """64 MB that begin with ``start`` and never come to an end."""
    yield start
    yield from repeat(piece, total // len(piece))


def binary_message(size: int) -> bytes:
    """The begin of a message that says it is so long, with a right sum."""
    lengths = size.to_bytes(4) + (0).to_bytes(4)
    return lengths + zlib.crc32(lengths).to_bytes(4)


def small_pieces(start: bytes, count: int) -> Chunks:
    """Pieces of two bytes: each an object of its own, if it is kept as it came."""
    yield start
    yield from repeat(b"ab", count)


def gzip_bomb() -> Chunks:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    yield packer.compress(b"data: ")
    for _ in range(TOTAL // PIECE):
        yield packer.compress(FILLING)
    yield packer.flush()


def brotli_bomb() -> Chunks:
    packer = brotli.Compressor(quality=1)
    yield packer.process(b"data: ")
    for _ in range(TOTAL // PIECE):
        yield packer.process(FILLING)
    yield packer.finish()


def zstd_bomb() -> Chunks:
    packer = zstd.ZstdCompressor()
    yield packer.compress(b"data: ")
    for _ in range(TOTAL // PIECE):
        yield packer.compress(FILLING)
    yield packer.flush()


def small_ends() -> Chunks:
    yield b"data: x"
    yield from repeat(b"\r\n" * 1000, 50)


def choices() -> Chunks:
    for start in range(0, 20_000, 1000):
        yield b"".join(
            b'data: {"choices":[{"index":%d,"delta":{"content":"a","reasoning":"b"}}]}\n\n' % at
            for at in range(start, start + 1000)
        )


# Unread fields, because counting 64 MB of text takes longer than the test may.
LINE = b'{"message":{"content":"a"},"padding":"' + b"a" * MB + b'"}\n'
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}],"padding":"' + b"a" * MB + b'"}\n\n'
ELEMENT = b'{"candidates":[],"padding":"' + b"a" * MB + b'"},'
# Wire format, content encoding, the stream, and the bound in MB (measured: in the comment).
STREAMS: dict[str, tuple[str, str | None, Callable[[], Chunks], float]] = {
    "an SSE line without end": ("openai_chat", None, lambda: filled(b"data: "), 20),
    "an SSE line without end, of 16 MB events": ("gemini", None, lambda: filled(b"data: "), 40),
    "an SSE event of lines without end": (
        "openai_chat",
        None,
        lambda: filled(b"data: x\n", b"data: " + b"a" * 100 + b"\n", total=5 * MB),
        24,
    ),
    "events without end": ("openai_chat", None, lambda: filled(b"", EVENT), 12),
    "comments without end": (
        "openai_chat",
        None,
        lambda: filled(b": ", b":" + FILLING + b"\n"),
        24,
    ),
    "line ends without end": ("openai_chat", None, small_ends, 8),
    "a choice of its own for each event": ("openai_chat", None, choices, 8),
    "one JSON document": ("openai_chat", None, lambda: filled(b'{"a":"'), 40),
    "one JSON document in pieces of 2 bytes": (
        "openai_chat",
        None,
        lambda: small_pieces(b'{"a":"', 300_000),
        8,
    ),
    "text in pieces of 2 bytes": (
        "openai_transcription",
        None,
        lambda: small_pieces(b"Hello", 300_000),
        12,
    ),
    "an NDJSON line without end": ("ollama_chat", None, lambda: filled(b'{"a":"'), 20),
    "NDJSON lines that are none": (
        "ollama_chat",
        None,
        lambda: filled(b"{\n", (b"{" * 999 + b"\n") * 1000),
        24,
    ),
    "NDJSON lines": ("ollama_chat", None, lambda: filled(b"", LINE), 12),
    "an array's element without end": ("gemini", None, lambda: filled(b'[{"a":"'), 40),
    "an array's elements": ("gemini", None, lambda: filled(b"[", ELEMENT), 12),
    "a message of 4 GB": (
        "bedrock_converse_stream",
        None,
        lambda: filled(binary_message(2**32 - 1)),
        8,
    ),
    "a message of 4 MB, again and again": (
        "bedrock_converse_stream",
        None,
        lambda: filled(b"", binary_message(4 * MB) + bytes(4 * MB - 12)),
        24,
    ),
    "a gzip bomb": ("openai_chat", "gzip", gzip_bomb, 24),
    "a brotli bomb": ("openai_chat", "br", brotli_bomb, 24),
    "a zstd bomb": ("openai_chat", "zstd", zstd_bomb, 24),
    "sound": ("openai_speech", None, lambda: filled(b"ID3\x04"), 4),
}


def reader(wire_format: str, coding: str | None) -> AnswerReader:
    types = {"bedrock_converse_stream": "application/vnd.amazon.eventstream"}
    return answer_reader(
        wire_format,
        content_type="audio/mpeg" if wire_format == "openai_speech" else types.get(wire_format),
        content_encoding=coding,
        hides_usage=wire_format == "openai_chat" and coding is None,
        encoding="o200k_base",
    )


@pytest.mark.parametrize("name", STREAMS)
def test_what_is_held_of_a_stream_is_bounded(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    wire_format, coding, chunks, bound = STREAMS[name]
    warm_up()
    read = reader(wire_format, coding)
    total = 0
    tracemalloc.start()
    try:
        for chunk in chunks():
            total += len(chunk)
            read.feed(chunk, end=False)
        read.feed(b"", end=True)
        read.usage, read.counted_output_tokens()
        peak = tracemalloc.get_traced_memory()[1] / MB
    finally:
        tracemalloc.stop()
    record_property("peak_mb", round(peak, 1))
    print(f"{name}: {total / MB:.1f} MB read, at most {peak:.1f} MB held (bound {bound:.0f})")
    assert peak < bound
