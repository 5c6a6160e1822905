"""ENCODE: faults that others reported about compressed bodies and odd bytes; see
docs/known-faults.md.

Each instance is among the recorded requests and answers; these are of their kind.
"""

import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import brotli
import pytest

from extproc.core.errors import RequestError
from extproc.providers.registry import read_request
from extproc.providers.requests import ReadLimits, RequestFacts
from tests.unit.provider_cases import pack
from tests.unit.spoken_answers import SPOKEN, fed

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FORMATS = pytest.mark.parametrize("name", SPOKEN)
REPORT = (210, 45)
TEXTS = ["Grüße ", "an ", "汉字"]
TEXT = "Say hi"
MEGABYTE = 1024 * 1024
HIGH, LOW = chr(0xD83D), chr(0xDC00)  # halves of a character

Body = dict[str, Any]
# A body for each format, with a text at each place where the provider would read one.
REQUESTS: dict[str, Callable[[str], Body]] = {
    "/v1/chat/completions": lambda text: {
        "model": "gpt-4o",
        "messages": [
            {"role": "system", "content": text},
            {"role": "user", "name": text, "content": [{"type": "text", "text": text}]},
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": text, "arguments": text}}],
            },
        ],
        "tools": [{"type": "function", "function": {"name": text, "parameters": {text: text}}}],
    },
    "/v1/completions": lambda text: {"model": "m", "prompt": [text, text], "suffix": text},
    "/v1/embeddings": lambda text: {"model": "m", "input": [text, text]},
    "/v1/responses": lambda text: {
        "model": "m",
        "instructions": text,
        "input": [{"role": "user", "content": [{"type": "input_text", "text": text}]}],
    },
    "/v1/messages": lambda text: {
        "model": "claude-sonnet-4-5",
        "max_tokens": 5,
        "system": [{"type": "text", "text": text}],
        "messages": [{"role": "user", "content": text}],
        "tools": [{"name": text, "input_schema": {text: text}}],
    },
    "/v1beta/models/gemini-2.5-pro:generateContent": lambda text: {
        "systemInstruction": {"parts": [{"text": text}]},
        "contents": [{"role": "user", "parts": [{"text": text}]}],
    },
    "/model/anthropic.claude-3-haiku/converse": lambda text: {
        "system": [{"text": text}],
        "messages": [{"role": "user", "content": [{"text": text}]}],
    },
    "/v2/chat": lambda text: {
        "model": "command-r",
        "messages": [{"role": "user", "content": text}],
        "documents": [{"data": {"text": text}}],
    },
    "/api/chat": lambda text: {
        "model": "llama3",
        "messages": [{"role": "user", "content": text}],
    },
    "/v1/rerank": lambda text: {"model": "m", "query": text, "documents": [text, text]},
}
PATHS = pytest.mark.parametrize("path", REQUESTS)


def read(path: str, body: bytes, coding: str | None = None) -> RequestFacts:
    facts = read_request(
        path,
        body,
        content_type="application/json",
        content_encoding=coding,
        limits=ReadLimits(),
    )
    assert isinstance(facts, RequestFacts)
    return facts


def status_of(path: str, body: bytes, coding: str | None = None) -> int:
    with pytest.raises(RequestError) as caught:
        read(path, body, coding)
    return caught.value.status


def flushed(pieces: Iterable[bytes], coding: str) -> bytes:
    """One compressed stream, flushed behind each piece, as servers do for each event."""
    out = b""
    if coding == "br":
        writer = brotli.Compressor()
        for piece in pieces:
            out += writer.process(piece) + writer.flush()
        return out + bytes(writer.finish())
    if coding == "zstd":
        packer = zstd.ZstdCompressor()
        for piece in pieces:
            out += packer.compress(piece) + packer.flush(packer.FLUSH_BLOCK)
        return out + packer.flush()
    window = {"gzip": 31, "deflate": 15, "raw": -15}[coding]
    deflater = zlib.compressobj(wbits=window)
    for piece in pieces:
        out += deflater.compress(piece) + deflater.flush(zlib.Z_SYNC_FLUSH)
    return out + deflater.flush()


@FORMATS
@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw", "br", "zstd"])
def test_a_stream_flushed_at_each_event_is_read_however_it_is_cut(name: str, coding: str) -> None:
    """B086: one decompressor for the whole answer, and no byte is changed."""
    spoken = SPOKEN[name]
    plain = spoken.body(TEXTS, [REPORT])
    pieces = [plain[at : at + 50] for at in range(0, len(plain), 50)]
    packed = flushed(pieces, coding)
    label = "deflate" if coding == "raw" else coding
    for step in (1, 3, len(packed)):
        chunks = [packed[at : at + step] for at in range(0, len(packed), step)]
        for content_encoding in (label, label.upper() + ", identity"):
            reader = fed(spoken.reader(content_encoding=content_encoding), chunks)
            assert (reader.usage.input_tokens, reader.usage.output_tokens) == REPORT


@FORMATS
@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_a_member_for_each_event_is_one_answer(name: str, coding: str) -> None:
    """A sibling of B086: a new writer for each chunk, with or without its label."""
    spoken = SPOKEN[name]
    plain = spoken.body(TEXTS, [REPORT])
    packed = b"".join(pack(plain[at : at + 50], coding) for at in range(0, len(plain), 50))
    for label in (coding, None):
        chunks = [packed[at : at + 11] for at in range(0, len(packed), 11)]
        reader = fed(spoken.reader(content_encoding=label), chunks)
        assert (reader.usage.input_tokens, reader.usage.output_tokens) == REPORT


@FORMATS
@pytest.mark.parametrize("label", ["gzip", "br", "zstd", "deflate", "identity"])
def test_a_label_on_plain_bytes_is_not_believed(name: str, label: str) -> None:
    """B088: the numbers, or at least the reserve; never an answer for nothing."""
    spoken = SPOKEN[name]
    reader = fed(spoken.reader(content_encoding=label), [spoken.body(TEXTS, [REPORT])])
    # With "[" a stream of brotli may begin (RFC 7932, 9.2), with other bytes of text none.
    is_guess = spoken.framing == "binary" and label != "identity"
    if is_guess or (spoken.framing == "array" and label == "br"):
        assert reader.unread
    else:
        assert (reader.usage.input_tokens, reader.usage.output_tokens) == REPORT


@pytest.mark.parametrize(
    ("name", "coding"),
    [("chat", "gzip"), ("gemini array", "zstd"), ("converse", "br"), ("ollama", "deflate")],
)
def test_an_answer_that_inflates_without_end_is_unread(name: str, coding: str) -> None:
    """B091: in every framing it keeps its reserve."""
    spoken = SPOKEN[name]
    start = spoken.body(["hello"], [])[:-40]
    packed = pack(start + b" " * (65 * MEGABYTE), coding)
    assert len(packed) < MEGABYTE
    reader = fed(spoken.reader(content_encoding=coding), [packed])
    assert reader.unread
    assert not reader.usage.is_known


@PATHS
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_a_packed_request_counts_like_a_plain_one(path: str, coding: str) -> None:
    """B089, B090: and one without its label is refused, never taken for text."""
    plain = json.dumps(REQUESTS[path](TEXT)).encode()
    expected = read(path, plain)
    packed = read(path, pack(plain, coding), coding)
    assert (packed.input_tokens, packed.model) == (expected.input_tokens, expected.model)
    assert packed.new_body is None
    assert status_of(path, pack(plain, coding)) == 400
    assert status_of(path, plain, coding) == 400
    assert status_of(path, pack(plain, coding)[:-3], coding) == 400
    assert status_of(path, pack(pack(plain, coding), coding), coding) == 400


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_a_request_that_inflates_without_end_is_refused(coding: str) -> None:
    """B091: 80 MiB of white space in less than 100 KiB."""
    packed = pack(b'{"model":"' + b" " * (80 * MEGABYTE), coding)
    assert len(packed) < 100_000
    for path in REQUESTS:
        assert status_of(path, packed, coding) == 413


@PATHS
@pytest.mark.parametrize(
    "text", [f"broken {HIGH} emoji", LOW, HIGH, f"a{HIGH}b{LOW}", LOW + HIGH], ids=ascii
)
def test_half_a_character_in_an_escape_is_counted(path: str, text: str) -> None:
    """B093: at every place where a text may stand; what is forwarded are the client's bytes."""
    body = json.dumps(REQUESTS[path](text)).encode()
    whole = read(
        path, json.dumps(REQUESTS[path](text.encode("utf-8", "replace").decode())).encode()
    )
    facts = read(path, body)
    assert 0 < whole.input_tokens <= facts.input_tokens <= 4 * whole.input_tokens
    assert facts.new_body is None


@PATHS
@pytest.mark.parametrize(
    "raw", [b"\xed\xa0\x80", b"\xff", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xe4\xbd", b"\x80"]
)
def test_bytes_that_are_no_utf8_are_refused(path: str, raw: bytes) -> None:
    """B094: surrogates as bytes, overlong forms, numbers beyond Unicode, half characters."""
    body = json.dumps(REQUESTS[path]("@@")).encode().replace(b"@@", b"Hello " + raw + b" World")
    assert status_of(path, body) == 400
    assert status_of(path, gzip.compress(body), "gzip") == 400


@PATHS
def test_a_byte_order_mark_before_a_request_is_nothing(path: str) -> None:
    """B095: also inside a packed body; those of other encodings are refused."""
    plain = json.dumps(REQUESTS[path](TEXT))
    expected = read(path, plain.encode()).input_tokens
    marked = b"\xef\xbb\xbf" + plain.encode()
    assert read(path, marked).input_tokens == expected
    assert read(path, gzip.compress(marked), "gzip").input_tokens == expected
    for encoding in ("utf-16", "utf-32", "utf-16-le"):
        assert status_of(path, plain.encode(encoding)) == 400


@FORMATS
def test_a_byte_order_mark_before_an_answer_is_nothing(name: str) -> None:
    """B095: also packed, and cut inside the mark."""
    spoken = SPOKEN[name]
    if spoken.framing == "binary":
        return  # no text
    marked = b"\xef\xbb\xbf" + spoken.body(TEXTS, [REPORT])
    for body, label in ((marked, None), (gzip.compress(marked), "gzip")):
        for at in range(5):
            reader = fed(spoken.reader(content_encoding=label), [body[:at], body[at:]])
            assert (reader.usage.input_tokens, reader.usage.output_tokens) == REPORT
