"""FRAME: faults that others reported about cutting a stream into events; see docs/known-faults.md.

Each instance is among the recorded answers of test_providers_answers.py; these are of their kind.
"""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.providers.answers import AnswerReader, answer_reader
from extproc.providers.tokens import count_tokens
from tests.unit.provider_cases import random_cuts
from tests.unit.spoken_answers import SPOKEN, Spoken, fed

FORMATS = pytest.mark.parametrize("name", SPOKEN)
TEXTS = ["Grüße ", "an 汉字 ", "und 👩‍👩‍👧 ", 'mit "}]{[" \\ ', "data: {}\n\n"]
REPORT = (92, 32)
COMMENTS = [b": ping", b":", b": OPENROUTER PROCESSING", b"id: 7", b"retry: 3000", b"event: x", b""]
LABELS = [
    None,
    "",
    "text/event-stream",
    "text/event-stream; charset=utf-8",
    "application/json",
    "text/plain",
    "application/octet-stream",
    "application/x-ndjson",
    "text/html",
]
MEGABYTE = 1024 * 1024


def numbers(reader: AnswerReader) -> tuple[int | None, int | None]:
    return reader.usage.input_tokens, reader.usage.output_tokens


def noisy(spoken: Spoken, rng: random.Random) -> bytes:
    """A stream with line ends of any kind, comments and blank lines between its events, and
    perhaps a byte order mark before it and no line end behind it."""
    newline = rng.choice([b"\n", b"\r\n", b"\r"]) if spoken.framing == "sse" else b"\n"
    events = spoken.events(TEXTS, [REPORT])
    if spoken.framing != "sse":
        body = spoken.body(TEXTS, [REPORT])
        return body if spoken.framing == "binary" else rng.choice([b"", b"\xef\xbb\xbf"]) + body
    out = [rng.choice([b"", b"\xef\xbb\xbf"]), newline * rng.randrange(3)]
    for one in events:
        out += [rng.choice(COMMENTS) + newline for _ in range(rng.randrange(3))]
        field = rng.choice([b"data: ", b"data:"])
        if one.startswith(b"{") and rng.random() < 0.3:
            # One object over several lines, which the standard joins.
            at = one.index(b":") + 1
            out.append(field + one[:at] + newline + field + one[at:] + newline * 2)
        else:
            out.append(field + one + newline * rng.choice([1, 2, 2, 3]))
    body = b"".join(out)
    return body.rstrip(b"\r\n") if rng.random() < 0.3 else body


@FORMATS
@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_the_same_bytes_give_the_same_numbers_however_they_are_cut(name: str, seed: int) -> None:
    """B072, B073, B076, B077, B078, B080, B081, B082: the numbers, the count, the end."""
    rng = random.Random(seed)
    spoken = SPOKEN[name]
    body = noisy(spoken, rng)
    for chunks in ([body], [body, b""], random_cuts(body, rng), random_cuts(body, rng)):
        reader = fed(spoken.reader(), chunks)
        assert numbers(reader) == REPORT, chunks
        assert reader.counted_output_tokens() == REPORT[1]
        assert not reader.unread


@FORMATS
def test_every_single_cut(name: str) -> None:
    """B073, B080, B083: inside each field's name, each character, each prelude, each line end."""
    spoken = SPOKEN[name]
    body = spoken.body(TEXTS[1:3], [REPORT], newline=b"\r\n")
    counted = fed(spoken.reader(), [spoken.body(TEXTS[1:3], [])]).counted_output_tokens()
    assert counted >= count_tokens("".join(TEXTS[1:3]))
    for at in range(len(body) + 1):
        assert numbers(fed(spoken.reader(), [body[:at], body[at:]])) == REPORT, at
    without = spoken.body(TEXTS[1:3], [], newline=b"\r\n")
    for at in range(len(without) + 1):
        reader = fed(spoken.reader(), [without[:at], without[at:]])
        assert reader.counted_output_tokens() == counted, at


@FORMATS
@pytest.mark.parametrize("size", [64 * 1024 - 20, 64 * 1024, MEGABYTE, 2 * MEGABYTE])
def test_a_long_event_ends_nothing(name: str, size: int) -> None:
    """B074: 64 KiB and 1 MiB are the sizes at which readers of lines give up."""
    spoken = SPOKEN[name]
    body = spoken.body(["x " * (size // 2)], [REPORT])
    assert len(body) > size
    chunks = [body[at : at + 16_384] for at in range(0, len(body), 16_384)]
    reader = fed(spoken.reader(), chunks)
    assert numbers(reader) == REPORT
    assert not reader.unread


@FORMATS
def test_a_stream_without_an_end_of_line_is_bounded_and_keeps_its_reserve(name: str) -> None:
    """B075: linear time, and no more held than one event may have."""
    spoken = SPOKEN[name]
    whole = spoken.body(["x" * (20 * MEGABYTE)], [])
    reader = spoken.reader()
    started = time.process_time()
    held = 0
    for at in range(0, len(whole) - 100, 65_536):
        reader.feed(whole[at : min(at + 65_536, len(whole) - 100)], end=False)
        held = max(held, len(reader._framer.unfinished()))
    reader.feed(b"", end=True)
    assert time.process_time() - started < 5
    assert held <= 17 * MEGABYTE
    assert reader.unread
    assert not reader.usage.is_known


@FORMATS
@pytest.mark.parametrize("ending", ["whole", "no line end", "no end marker", "marker, then usage"])
def test_the_last_event_counts_whatever_ends_the_stream(name: str, ending: str) -> None:
    """B079: also for whoever cuts one byte before the end."""
    spoken = SPOKEN[name]
    body = spoken.body(["hello"], [REPORT])
    if ending == "no line end":
        body = body.rstrip(b"\n")
    elif ending == "no end marker":
        body = body.removesuffix(b"data: [DONE]\n\n")
    elif ending == "marker, then usage" and spoken.framing == "sse":
        events = spoken.events(["hello"], [REPORT])
        body = b"".join(b"data: " + one + b"\n\n" for one in (events[0], b"[DONE]", *events[1:]))
    for chunks in ([body], [body[:-1], body[-1:]], [body, b""]):
        assert numbers(fed(spoken.reader(), chunks)) == REPORT


@FORMATS
@pytest.mark.parametrize("label", LABELS)
def test_the_bytes_decide_and_not_their_label(name: str, label: str | None) -> None:
    """B084, B085: every framing under every content type."""
    spoken = SPOKEN[name]
    body = spoken.body(["hello"], [REPORT])
    for chunks in ([body], [body[at : at + 1] for at in range(len(body))]):
        assert numbers(fed(spoken.reader(content_type=label), chunks)) == REPORT


DOCUMENT = b'{"choices":[{"index":0,"message":{"content":"hi"}}],"usage":'
DOCUMENT += b'{"prompt_tokens":92,"completion_tokens":32}}'


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize(
    "body",
    [
        DOCUMENT,
        b"\xef\xbb\xbf\r\n " + DOCUMENT + b"\n\n",
        DOCUMENT + b"\n\ndata: [DONE]\n\n",
        b": keep-alive\n\n: keep-alive\n\n" + DOCUMENT,
        b"[" + DOCUMENT + b"]",
        b"\n\n   \n" + DOCUMENT.replace(b",", b",\n  "),
    ],
)
def test_a_document_is_read_whatever_stands_around_it(body: bytes, label: str | None) -> None:
    """B077, B081, B085: under a stream's label, behind comments, before a stream's end marker."""
    for at in (*range(8), *range(8, len(body), 9), len(body)):
        reader = answer_reader(
            "openai_chat",
            content_type=label,
            content_encoding=None,
            hides_usage=False,
            encoding="o200k_base",
        )
        assert numbers(fed(reader, [body[:at], body[at:], b""])) == REPORT, at


LINES_OF = [name for name, spoken in SPOKEN.items() if spoken.framing in ("sse", "lines")]


@pytest.mark.parametrize("name", LINES_OF)
@pytest.mark.parametrize("shape", ["lines", "list", "run"])
def test_events_without_their_framing_are_read(name: str, shape: str) -> None:
    """B084: lines, a growing list, or nothing at all between the objects, at any path."""
    spoken = SPOKEN[name]
    events = spoken.events(["hello ", "world"], [REPORT])
    marks = {"lines": b"\n", "list": b",\n", "run": b""}
    body = marks[shape].join(one for one in events if one != b"[DONE]")
    if shape == "list":
        body = b"[" + body + b"]"
    if name == "ollama" and shape == "run":
        return  # a line of two objects is none
    for chunks in ([body], [body[at : at + 7] for at in range(0, len(body), 7)]):
        assert numbers(fed(spoken.reader(), chunks)) == REPORT


def test_a_run_of_objects_that_was_cut_counts_what_is_there() -> None:
    spoken = SPOKEN["chat"]
    texts = ["hello ", "world ", "again"]
    events = spoken.events(texts, [])[:-1]
    body = b"\n".join(events)
    for at in range(2, len(body) + 1):
        reader = spoken.reader()
        reader.feed(body[:at], end=False)
        counted = reader.counted_output_tokens()
        whole = sum(body[:at].startswith(b"\n".join(events[:n])) for n in (1, 2, 3))
        assert counted == count_tokens("".join(texts[:whole])) if whole else counted > 0
        assert reader.counted_output_tokens() == counted  # asked again


def test_an_error_without_a_field_name_in_a_stream_is_an_error() -> None:
    """A sibling of B032: what a gateway writes between events when the provider has gone."""
    spoken = SPOKEN["chat"]
    started = spoken.body(["hello"], []).removesuffix(b"data: [DONE]\n\n")
    error = b'{"error":{"message":"upstream failed","code":502}}'
    for body in (started + error, started + error + b"\n\n", error + b"\n"):
        reader = fed(spoken.reader(), [body])
        assert reader.error
        assert reader.saw_output == body.startswith(started)
        assert reader.counted_output_tokens() == body.startswith(started)
