"""What hostile requests and answers cost the processor: linear in their bytes, and bounded."""

import time
from collections.abc import Callable

import pytest

from extproc.core.errors import RequestError
from extproc.providers.answers import answer_reader
from extproc.providers.registry import read_request
from extproc.providers.requests import ReadLimits
from extproc.providers.tokens import warm_up
from tests.unit.event_streams import message

# Doubling takes twice as long when time is linear, four times when it is the square.
MOST_RATIO = 3.2
# Where the longer takes less than this, the ratio says nothing.
NOISE_SECONDS = 0.05
TRIES = 5


def best(run: Callable[[], object]) -> float:
    """Time of the processor, not of the clock."""
    started = time.process_time()
    run()
    return time.process_time() - started


def assert_linear(run: Callable[[int], object], size: int) -> None:
    """The least of several ratios: others on the machine make single ones larger, never smaller
    for long."""
    ratios = []
    for _ in range(TRIES):
        short, long = best(lambda: run(size)), best(lambda: run(2 * size))
        ratios.append(long / max(short, 1e-9))
        if ratios[-1] < MOST_RATIO or long < NOISE_SECONDS:
            return
    raise AssertionError(f"twice as much took {min(ratios):.1f} times as long, each time")


def feed(wire_format: str, body: bytes, step: int) -> None:
    types = {"bedrock_converse_stream": "application/vnd.amazon.eventstream"}
    reader = answer_reader(
        wire_format,
        content_type=types.get(wire_format),
        content_encoding=None,
        hides_usage=wire_format == "openai_chat",
        encoding="o200k_base",
    )
    for at in range(0, len(body), step):
        reader.feed(body[at : at + step], end=False)
    reader.feed(b"", end=True)
    reader.usage, reader.counted_output_tokens()


EMPTY_MESSAGE = message(b"{}", {":event-type": "x"})
DELTA = b'data: {"choices":[{"index":0,"delta":{"content":"a b"}}]}\n\n'
# Wire format, what stands before, what is repeated, how much of it, and the size of a chunk.
ANSWERS: dict[str, tuple[str, bytes, bytes, int, int]] = {
    "tiny events": ("openai_chat", b"", b"data:{}\n\n", 200_000, 65_536),
    "deltas": ("openai_chat", b"", DELTA, 500_000, 65_536),
    "one line, byte by byte": ("openai_chat", b"data: ", b"a", 150_000, 1),
    "one line above the cap": ("openai_chat", b"data: ", b"a", 6_000_000, 64),
    "bare CRs": ("openai_chat", b"data: x", b"\r", 100_000, 65_536),
    "bare CRs, byte by byte": ("openai_chat", b"data: x", b"\r", 100_000, 1),
    "comments": ("openai_chat", b"", b":\n", 300_000, 65_536),
    "data lines of one event": ("openai_chat", b"data: {\n", b"data: {x}\n", 1_000_000, 65_536),
    "one JSON document, two bytes each": ("openai_chat", b'{"a":"', b"ab", 400_000, 2),
    "deep lists": ("openai_chat", b'{"a":', b"[", 2_000_000, 65_536),
    "deep lists in an array": ("gemini", b"[{", b"[", 150_000, 65_536),
    "escaped strings": ("openai_chat", b'{"a":"', b'\\"', 2_000_000, 65_536),
    "escaped strings in an array": ("gemini", b'[{"a":"', b'\\"', 4_000_000, 1000),
    "many keys": ("openai_chat", b"{", b'"a":1,', 2_000_000, 65_536),
    "an array's element, byte by byte": ("gemini", b'[{"a":"', b"a", 150_000, 1),
    "elements": ("gemini", b"[", b"{},", 100_000, 65_536),
    "strings that a chunk cuts": ("gemini", b"[{", b'"' + b"a" * 999, 2_000_000, 777),
    "lines": ("ollama_chat", b"", b"{}\n", 100_000, 65_536),
    "lines that are none": ("ollama_chat", b"", b"{\n", 400_000, 65_536),
    "one line of NDJSON, byte by byte": ("ollama_chat", b'{"a":"', b"a", 150_000, 1),
    "messages": ("bedrock_converse_stream", b"", EMPTY_MESSAGE, 300_000, 65_536),
    "messages, byte by byte": ("bedrock_converse_stream", b"", EMPTY_MESSAGE, 100_000, 1),
    "text, byte by byte": ("openai_transcription", b"Hello", b"ab ", 150_000, 1),
    "a run of one letter": ("openai_transcription", b"Hello", b"a", 4_000_000, 65_536),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_time_of_an_answer_grows_with_its_length(name: str) -> None:
    wire_format, start, piece, size, step = ANSWERS[name]
    warm_up()
    assert_linear(
        lambda length: feed(wire_format, start + piece * (length // len(piece)), step), size
    )


def test_lines_of_one_event_are_not_all_tried() -> None:
    """Measured: 0.4 s; each line parsed by itself took 3 s, in one go at the event's end."""
    body = b"data: {\n" + b"data: {x}\n" * 400_000 + b"\n"
    assert best(lambda: feed("gemini", body, 65_536)) < 3.0


def read(path: str, body: bytes) -> str:
    try:
        read_request(path, body, content_type=None, content_encoding=None, limits=ReadLimits())
    except RequestError as error:
        return error.code
    return ""


CHAT = "/v1/chat/completions"
MESSAGE = b'{"model":"m","messages":[{"role":"user","content":'
# Path, what stands before, what is repeated, what stands behind, and how much of it.
REQUESTS: dict[str, tuple[str, bytes, bytes, bytes, int]] = {
    "a run of one letter": (CHAT, MESSAGE + b'"', b"a", b'"}]}', 4_000_000),
    "a run of spaces": (CHAT, MESSAGE + b'"', b" ", b'"}]}', 4_000_000),
    "escapes": (CHAT, MESSAGE + b'"', b"\\n", b'"}]}', 4_000_000),
    "escaped quotes": (CHAT, MESSAGE + b'"', b'[\\"', b'"}]}', 4_000_000),
    "lone surrogates": (CHAT, MESSAGE + b'"', b"\\ud83d", b'"}]}', 2_000_000),
    "parts": (CHAT, MESSAGE + b"[", b'{"text":"a"},', b"{}]}]}", 1_000_000),
    "deep lists": (CHAT, MESSAGE, b"[", b"", 4_000_000),
    "quotes": (CHAT, MESSAGE, b'""', b"", 4_000_000),
    "keys twice": (CHAT, b'{"model":"m",', b'"a":1,', b'"b":1}', 1_500_000),
    "tools": (CHAT, b'{"model":"m","messages":[],"tools":[', b'{"a":1},', b"{}]}", 900_000),
    "texts": ("/v1/embeddings", b'{"model":"m","input":[', b'"a",', b'"a"]}', 450_000),
    "ids": ("/v1/embeddings", b'{"model":"m","input":[', b"1,", b"1]}", 500_000),
    "Google's parts": (
        "/v1/models/m:generateContent",
        b'{"contents":{"parts":[',
        b"1,",
        b"1]}}",
        240_000,
    ),
    "dots in a path": ("/a/.." * 1000 + CHAT, b"{", b" ", b"}", 1_000_000),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_time_of_a_request_grows_with_its_length(name: str) -> None:
    path, start, piece, end, size = REQUESTS[name]
    warm_up()
    assert_linear(lambda length: read(path, start + piece * (length // len(piece)) + end), size)


LARGEST = 16_000_000
PARTS = b'{"contents":[{"parts":['
# Lists that formats count themselves, each with the smallest items that they take.
LISTS: tuple[tuple[str, bytes, bytes, bytes], ...] = (
    ("/v1/embeddings", b'{"model":"m","input":[', b'"a",', b'"a"]}'),
    ("/v1/embeddings", b'{"model":"m","input":[', b"1,", b"1]}"),
    ("/v1/completions", b'{"model":"m","prompt":[', b'"a",', b'"a"]}'),
    ("/v2/embed", b'{"model":"m","texts":[', b'"a",', b'"a"]}'),
    ("/v1beta/models/m:generateContent", PARTS, b'"a",', b"1]}]}"),
    ("/v1beta/models/m:generateContent", PARTS, b"1,", b"1]}]}"),
    ("/v1beta/models/m:generateContent", b'{"contents":[', b"{},", b"{}]}"),
    ("/v1/chat/completions", b'{"model":"m","messages":[],"tools":[', b"1,", b"1]}"),
    ("/api/generate", b'{"model":"m","images":[', b'"",', b'""]}'),
    ("/v1/rerank", b'{"model":"m","query":"q","documents":[', b'"a",', b'"a"]}'),
)


@pytest.mark.parametrize(("path", "start", "item", "end"), LISTS)
def test_a_list_of_millions_is_refused_soon(
    path: str, start: bytes, item: bytes, end: bytes
) -> None:
    body = start + item * ((LARGEST - 200) // len(item)) + end
    started = time.process_time()
    assert read(path, body) == "too_many_values"
    assert time.process_time() - started < 3.0  # measured: 0.1 to 1.3 s; before the bounds 4 to 22


@pytest.mark.parametrize(
    ("path", "start", "end"),
    [
        ("/v1beta/models/m:generateContent", b'{"contents":[{"parts":[{', b"}]}]}"),
        ("/model/m/converse", b'{"messages":[{"content":[{', b"}]}]}"),
        ("/v1/messages", b'{"model":"m","messages":[{', b"}]}"),
    ],
)
def test_an_object_of_many_keys_is_refused_soon(path: str, start: bytes, end: bytes) -> None:
    for count in (300_000, 1_200_000):  # by the walk over what was read; before it is read
        body = start + b",".join(b'"k%d":1' % number for number in range(count)) + end
        started = time.process_time()
        assert read(path, body) == "too_many_values"
        assert time.process_time() - started < 3.0
