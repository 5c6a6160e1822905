"""One JSON array that grows: its objects are found wherever it is cut, in bounded memory."""

import json
import random
import time
import tracemalloc

import pytest

from extproc.providers.answers import answer_reader
from extproc.providers.json_array import JSON_ARRAY, JsonArrayFramer
from extproc.providers.sse import SseEvent
from tests.unit.provider_cases import random_cuts

NASTY = [
    {"text": 'a " ] } [ { , \\'},
    {"text": "\\\\", "deep": [[{"x": [{}]}], "]"]},
    {},
    {"ü": "汉字\u2028"},
]


def feed(chunks: list[bytes], **settings: int) -> tuple[list[SseEvent], JsonArrayFramer]:
    framer = JsonArrayFramer(False, **settings)
    events: list[SseEvent] = []
    for index, chunk in enumerate(chunks):
        events += framer.feed(chunk, end=index == len(chunks) - 1)
    return events, framer


def values(events: list[SseEvent]) -> list[object]:
    return [event.value for event in events if event.value is not None]


@pytest.mark.parametrize("indent", [None, 2])
def test_objects_come_out_the_same_for_every_cut(indent: int | None) -> None:
    body = json.dumps(NASTY, indent=indent, ensure_ascii=False).encode()
    rng = random.Random(4)
    ways = [[body], [body[i : i + 1] for i in range(len(body))]]
    ways += [random_cuts(body, rng) for _ in range(50)]
    for chunks in ways:
        events, framer = feed(chunks)
        assert values(events) == NASTY
        assert [event.done for event in events] == [False] * len(NASTY) + [True]
        assert not framer.truncated


def test_an_object_comes_with_its_last_byte() -> None:
    framer = JsonArrayFramer(False)
    assert values(framer.feed(b'[{"a": 1')) == []
    assert values(framer.feed(b"}")) == [{"a": 1}]
    assert framer.feed(b"\n,\r\n") == []
    assert framer.feed(b"]")[0].done


def test_what_is_no_object_is_skipped() -> None:
    events, framer = feed([b'[1, "{]", null, {"a": 1}, [{"b": 2}], -2.5]'])
    assert values(events) == [{"a": 1}, {"b": 2}]
    assert not framer.truncated


@pytest.mark.parametrize("body", [b'[{"a" 1}, {"b": 2}]', b'[{"a": ]}, {"b": 2}]'])
def test_a_broken_object_is_told_and_the_next_one_read(body: bytes) -> None:
    events, framer = feed([body])
    assert framer.truncated
    assert values(events) == [{"b": 2}]


def test_a_cut_stream_has_its_whole_objects() -> None:
    events, framer = feed([b'[{"a": 1}, {"b": "'])
    assert values(events) == [{"a": 1}]
    assert not any(event.done for event in events)
    assert not framer.truncated


def test_an_object_that_is_too_large_is_dropped_and_the_next_one_read() -> None:
    large = json.dumps({"text": "x" * 500, "in": [{"y": "}"}]}).encode()
    body = b"[" + large + b', {"b": 2}]'
    for chunks in ([body], [body[i : i + 7] for i in range(0, len(body), 7)]):
        events, framer = feed(chunks, max_bytes=100)
        assert framer.truncated
        assert values(events) == [{"b": 2}]


def test_nesting_never_raises() -> None:
    body = b'[{"a": ' + b"[" * 50_000 + b"]" * 50_000 + b'}, {"b": 2}]'
    events, framer = feed([body])
    assert values(events) == [{"b": 2}]
    assert framer.truncated


def test_raw_bytes_pass_unchanged_and_at_once() -> None:
    body = json.dumps(NASTY).encode()
    framer = JSON_ARRAY.make(True)
    for start in range(0, len(body), 5):
        chunk = body[start : start + 5]
        assert b"".join(event.raw for event in framer.feed(chunk)) == chunk
    assert framer.unfinished() == b""


def seconds(body: bytes, step: int) -> float:
    best = 9.0
    for _ in range(3):
        framer = JsonArrayFramer(False)
        started = time.process_time()
        for start in range(0, len(body), step):
            framer.feed(body[start : start + step])
        best = min(best, time.process_time() - started)
    return best


@pytest.mark.parametrize("piece", [b"x", b"\\n", b'\\"'])
def test_time_is_linear_however_it_is_cut(piece: bytes) -> None:
    def body(size: int) -> bytes:
        return b'[{"text": "' + piece * (size // len(piece)) + b'"}]'

    assert seconds(body(2_000_000), 100) < 5 * seconds(body(1_000_000), 100) + 0.05


def test_memory_is_bounded() -> None:
    tracemalloc.start()
    try:
        framer = JsonArrayFramer(False, max_bytes=1_000_000)
        framer.feed(b'[{"text": "')
        for _ in range(200):
            framer.feed(b"\\n" * 50_000)
        assert framer.truncated
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("content_type", ["application/protobuf", "text/javascript; charset=UTF-8"])
@pytest.mark.parametrize("wire_format", ["gemini", "vertex_gemini", "gemini_embeddings"])
def test_an_answer_that_cannot_be_read_is_not_for_nothing(
    content_type: str, wire_format: str
) -> None:
    def read(body: bytes) -> tuple[bool, bool, bool]:
        reader = answer_reader(
            wire_format,
            content_type=content_type,
            content_encoding=None,
            hides_usage=False,
            encoding="o200k_base",
        )
        reader.feed(body, end=True)
        return reader.unread, reader.saw_output, reader.error

    assert read(b"\n\x10\x0a\x0b") == (True, True, False)
    assert read(b"// API callback\nf({});") == (True, True, False)
    # The label alone is not believed.
    assert read(b'{"error": {"code": 503}}') == (False, False, True)
