"""Content codings: every cut, bombs, windows, members without end, labels that lie."""

import json
import random
import sys
import time
from typing import Any

import brotli
import pytest

from extproc.core.errors import RequestError
from extproc.core.usage import Usage
from extproc.providers.answers import AnswerReader, answer_reader
from extproc.providers.content_coding import decode_body, sniff_answer
from extproc.providers.inflaters import MAX_MEMBERS, Compression, Inflater
from extproc.providers.registry import read_request
from extproc.providers.requests import ReadLimits, RequestFacts
from tests.unit.provider_cases import pack, random_cuts

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

KINDS: dict[Compression, str] = {"gzip": "gzip", "zlib": "deflate", "br": "br", "zstd": "zstd"}
ANSWER = b'{"choices":[],"usage":{"prompt_tokens":650,"completion_tokens":12}}'
MEGABYTE = 1024 * 1024


def inflate(kind: Compression, chunks: list[bytes], *, max_bytes: int = MEGABYTE) -> Inflater:
    inflater = Inflater(kind, max_bytes=max_bytes)
    for chunk in chunks:
        inflater.feed(chunk)
    return inflater


def answer(body: bytes, label: str | None, *, step: int = 0) -> AnswerReader:
    reader = answer_reader(
        "openai_chat",
        content_type="application/json",
        content_encoding=label,
        hides_usage=False,
        encoding="o200k_base",
    )
    step = step or max(1, len(body))
    for at in range(0, len(body), step):
        assert reader.feed(body[at : at + step], end=False) is None
    reader.feed(b"", end=True)
    return reader


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_inflates_to_the_same_however_it_is_cut(kind: Compression) -> None:
    rng = random.Random(kind)
    plain = b"".join(b"data: %d\n\n" % rng.getrandbits(40) for _ in range(20_000))
    packed = pack(plain, KINDS[kind])
    for chunks in ([packed], [packed[i : i + 1] for i in range(len(packed))]):
        inflater = Inflater(kind, max_bytes=len(plain))
        assert b"".join(inflater.feed(chunk) for chunk in chunks) == plain
        assert inflater.finished
        assert not inflater.lost
    for _ in range(20):
        inflater = Inflater(kind, max_bytes=len(plain))
        assert b"".join(map(inflater.feed, random_cuts(packed, rng))) == plain


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_is_read_as_far_as_it_came(kind: Compression) -> None:
    plain = b"data: {}\n\n" * 100
    if kind == "br":
        encoder = brotli.Compressor()
        packed = encoder.process(plain) + encoder.flush()
    elif kind == "zstd":
        writer = zstd.ZstdCompressor()
        packed = writer.compress(plain) + writer.flush(writer.FLUSH_BLOCK)
    else:
        packed = pack(plain, KINDS[kind])[:-4]
    inflater = Inflater(kind, max_bytes=MEGABYTE)
    assert inflater.feed(packed) == plain
    assert not inflater.finished
    assert not inflater.lost


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_comes_in_small_pieces_and_stops_at_the_limit(kind: Compression) -> None:
    packed = pack(b"x" * (200 * MEGABYTE), KINDS[kind])
    inflater = Inflater(kind, max_bytes=16 * MEGABYTE)
    started = time.process_time()
    sizes = [len(piece) for piece in inflater.pieces(packed)]
    assert time.process_time() - started < 2
    assert max(sizes) <= MEGABYTE
    assert sum(sizes) <= 16 * MEGABYTE
    assert inflater.overflowed
    assert inflater.lost
    assert inflater.feed(packed) == b""


def test_a_frame_of_zstd_that_wants_a_large_window_is_refused_unread() -> None:
    for window_log, is_read in ((23, True), (24, False), (27, False)):
        writer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: window_log})
        inflater = inflate("zstd", [writer.compress(b"{}") + writer.flush()])
        assert inflater.finished is is_read
        assert inflater.broken is not is_read


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_members_follow_one_another_but_not_without_end(kind: Compression) -> None:
    empty, last = pack(b"", kind), pack(b"{}", kind)
    inflater = Inflater(kind, max_bytes=MEGABYTE)
    assert inflater.feed(empty * (MAX_MEMBERS - 1) + last) == b"{}"
    assert inflater.finished
    assert not inflater.broken
    started = time.process_time()
    with pytest.raises(RequestError) as caught:
        decode_body(empty * 400_000, kind, max_bytes=MEGABYTE)
    # It costs what the first members cost; all of them would take minutes.
    assert time.process_time() - started < 2
    assert caught.value.status == 400


def test_frames_without_data_are_nothing() -> None:
    skippable = b"\x5a\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    body = skippable + pack(ANSWER, "zstd") + skippable
    assert decode_body(body, "zstd", max_bytes=MEGABYTE) == ANSWER
    assert answer(body, "zstd").usage.input_tokens == 650


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize(
    ("label", "coding"),
    [
        (None, "gzip"),
        (None, "zstd"),
        ("identity", "zstd"),
        ("br", "gzip"),
        ("br", "zstd"),
        ("gzip", "zstd"),
        ("zstd", "gzip"),
        ("BR ", "br"),
        ("identity, br", "br"),
        ("br", None),
        ("zstd", None),
        ("gzip, br", None),
    ],
)
def test_the_bytes_of_an_answer_decide(label: str | None, coding: str | None, step: int) -> None:
    body = ANSWER if coding is None else pack(ANSWER, coding)
    reader = answer(body, label, step=step)
    assert reader.usage == Usage(input_tokens=650, output_tokens=12)
    assert not reader.unread


@pytest.mark.parametrize("low", [b"{", b" ", b"\n"])
def test_brotli_that_begins_like_a_list_is_brotli(low: bytes) -> None:
    size = 0x13800 + low[0] + 1
    plain = ANSWER[:-1] + b',"x":"'
    plain += b"y" * (size - len(plain) - 2) + b'"}'
    packed = brotli.compress(plain)
    assert packed[:2] == b"[" + low
    assert answer(packed, "br").usage.input_tokens == 650


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize(
    ("label", "body"),
    [
        ("br", b"<html>Bad gateway</html>"),
        ("zstd", b"<html>Bad gateway</html>"),
        ("compress", b"\x1f\x9d\x90"),
        ("gzip, br", pack(pack(ANSWER, "gzip"), "br")),
        ("gzip, gzip", pack(pack(ANSWER, "gzip"), "gzip")),
        ("zstd", pack(ANSWER, "zstd")[:8] + b"\xff" * 60),
    ],
)
def test_an_answer_that_cannot_be_read_keeps_its_reserve(
    label: str, body: bytes, step: int
) -> None:
    reader = answer(body, label, step=step)
    assert reader.unread
    assert reader.saw_output
    assert not reader.error
    assert reader.usage == Usage()


@pytest.mark.parametrize("coding", ["br", "zstd"])
def test_an_answer_bomb_is_lost_and_nothing_more(coding: str) -> None:
    reader = answer(pack(b'{"a":"' + b"x" * (70 * MEGABYTE), coding), coding)
    assert reader.unread
    assert reader.usage == Usage()


def test_one_byte_is_no_reason_to_decide() -> None:
    assert sniff_answer(b"\x28", None) is None
    assert sniff_answer(b"P", "zstd") == "?"
    reader = answer(b"{", "br")
    assert reader.usage == Usage()


def facts(body: dict[str, Any], coding: str, *, cap: int | None = None) -> RequestFacts:
    read = read_request(
        "/v1/chat/completions",
        pack(json.dumps(body).encode(), coding),
        content_type="application/json",
        content_encoding=coding,
        limits=ReadLimits(strict_cap_tokens=cap),
    )
    assert isinstance(read, RequestFacts)
    return read


@pytest.mark.parametrize("coding", ["br", "zstd", "deflate"])
def test_only_gzip_is_written_again(coding: str) -> None:
    body = {"model": "gpt-4o", "stream": True, "messages": [{"role": "user", "content": "Say hi"}]}
    read = facts(body, coding)
    assert (read.input_tokens, read.new_body, read.hides_usage) == (9, None, False)
    with pytest.raises(RequestError) as caught:
        facts(body, coding, cap=20)
    assert (caught.value.status, caught.value.param) == (415, "max_completion_tokens")
    assert facts(body | {"max_tokens": 7}, coding, cap=20).output_cap_tokens == 7
    assert facts(body, "gzip", cap=20).new_body is not None


@pytest.mark.parametrize("behind", [b"\r", b"\0" * 40, b"\x1f\x8b\x07junk", b"\x28\xb5junk"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_behind_the_end_counts_alike_however_it_is_cut(
    kind: Compression, behind: bytes
) -> None:
    """Garbage spoils nothing, except behind brotli, whose library then gives nothing at all."""
    packed = pack(ANSWER, KINDS[kind]) + behind
    for chunks in ([packed], [packed[i : i + 1] for i in range(len(packed))]):
        assert inflate(kind, chunks).broken is (kind == "br")


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_another_member_that_breaks_is_lost_however_it_is_cut(kind: Compression) -> None:
    second = bytearray(pack(ANSWER, kind))
    second[3 if kind == "gzip" else 4] = 0xFF  # flags that do not exist
    packed = pack(ANSWER, kind) + bytes(second)
    for chunks in ([packed], [packed[i : i + 1] for i in range(len(packed))]):
        inflater = inflate(kind, chunks)
        assert inflater.broken
        assert not inflater.finished


def test_the_begin_of_a_member_alone_is_padding() -> None:
    packed = pack(ANSWER, "gzip")
    inflater = inflate("gzip", [packed, b"\x1f", b"\x8b"])
    assert inflater.finished
    assert inflater.feed(packed[2:]) == ANSWER
