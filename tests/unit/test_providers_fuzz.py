"""Whatever comes in: requests raise RequestError or nothing, answers raise nothing at all."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extproc.core.errors import RequestError
from extproc.providers.answers import answer_reader
from extproc.providers.errors_shape import error_body
from extproc.providers.formats import BUILT_IN
from extproc.providers.registry import read_request, wire_format_of
from extproc.providers.requests import ReadLimits, RequestFacts, Unmetered
from extproc.providers.wire_formats import WireFormat
from tests.fuzz.words import KEYS as WORDS
from tests.unit.event_streams import chunk as model_event
from tests.unit.event_streams import event
from tests.unit.provider_cases import pack

RELAXED = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
PATHS = st.sampled_from(
    [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1beta/models/m:generateContent",
        "/v1/publishers/anthropic/models/m:rawPredict",
        "/v1beta/models/m:embedContent",
        "/v1beta/models/m:batchEmbedContents",
        "/v1/responses",
        "/v1/images/generations",
        "/v1/audio/transcriptions",
        "/v1/audio/speech",
        "/v1/moderations",
        "/v1/rerank",
        "/model/anthropic.claude-3/converse-stream",
        "/model/anthropic.claude-3/invoke",
        "/model/amazon.titan-embed-text-v2/invoke",
        "/model/us.amazon.nova-pro/invoke-with-response-stream",
        "/v2/rerank",
        "/v2/chat",
        "/v1/chat",
        "/v2/embed",
        "/api/chat",
        "/api/generate",
        "/api/embed",
    ]
)
CODINGS = st.sampled_from([None, "gzip", "deflate", "identity", "br", "zstd", "gzip, br"])
PACKED = ("gzip", "deflate", "br", "zstd")
FORMATS = st.sampled_from([route.name for route in BUILT_IN if isinstance(route, WireFormat)])
KEYS = st.sampled_from(WORDS)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**40), max_value=10**40)
    | st.floats()
    | st.text(st.characters(exclude_categories=[]), max_size=20)
    | KEYS
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=6)
    ),
    max_leaves=25,
)
REQUESTS = st.dictionaries(KEYS, VALUES, max_size=8).map(
    lambda body: (
        {"model": "gpt-4o", "messages": [], "input": "x", "contents": [], "content": {}} | body
    )
)


def check_request(path: str, body: bytes, coding: str | None) -> None:
    try:
        facts = read_request(
            path, body, content_type=None, content_encoding=coding, limits=ReadLimits()
        )
    except RequestError as error:
        if error.status not in (400, 413, 415):
            raise
        json.loads(
            error_body(
                path,
                status=error.status,
                code=error.code,
                message=error.message,
                param=error.param,
            )
        )
        return
    assert isinstance(facts, RequestFacts)
    assert 0 <= facts.input_tokens < 2**51
    assert facts.output_cap_tokens is None or 0 <= facts.output_cap_tokens < 2**51
    assert facts.hides_usage == (facts.new_body is not None)
    if facts.new_body is not None and coding != "gzip":
        before, after = json.loads(body), json.loads(facts.new_body)
        assert after.pop("stream_options")["include_usage"] is True
        before.pop("stream_options", None)
        assert repr(before) == repr(after)


@RELAXED
@given(PATHS, st.binary(max_size=200), CODINGS)
def test_bytes_as_request(path: str, body: bytes, coding: str | None) -> None:
    check_request(path, body, coding)


@RELAXED
@given(path=PATHS, body=REQUESTS, coding=CODINGS, streams=st.booleans())
def test_json_as_request(path: str, body: Any, coding: str | None, *, streams: bool) -> None:
    raw = json.dumps(body | {"stream": True} if streams else body).encode()
    if coding in PACKED:
        raw = pack(raw, coding)
    check_request(path, raw, coding)


@RELAXED
@given(st.text(max_size=60) | st.lists(KEYS).map("/".join))
def test_any_path_has_a_format_or_none(path: str) -> None:
    wire_format_of(path)
    unread = (
        read_request(
            "/x" + path, b"", content_type=None, content_encoding=None, limits=ReadLimits()
        )
        if wire_format_of("/x" + path) is None
        else Unmetered("")
    )
    assert isinstance(unread, Unmetered)


def cut(body: bytes, marks: list[int]) -> list[bytes]:
    edges = sorted({0, len(body), *(mark % (len(body) + 1) for mark in marks)})
    return [body[a:b] for a, b in pairwise(edges)] or [b""]


def read_answer(
    wire_format: str, chunks: list[bytes], coding: str | None, *, hides: bool
) -> tuple[bytes, object]:
    reader = answer_reader(
        wire_format,
        content_type=None,
        content_encoding=coding,
        hides_usage=hides,
        encoding="o200k_base",
    )
    out = []
    for index, chunk in enumerate(chunks):
        replaced = reader.feed(chunk, end=index == len(chunks) - 1)
        out.append(chunk if replaced is None else replaced)
    for number in (reader.usage.input_tokens, reader.usage.output_tokens):
        assert number is None or 0 <= number < 2**60
    facts = (reader.usage, reader.counted_output_tokens(), reader.error, reader.complete)
    return b"".join(out), (*facts, reader.saw_output)


def sse_line(value: Any, newline: str) -> str:
    return f"data: {json.dumps(value)}{newline}{newline}"


EVENTS = st.lists(
    VALUES
    | st.fixed_dictionaries(
        {"choices": st.just([]), "usage": st.dictionaries(KEYS, LEAVES, max_size=4)}
    )
    | st.fixed_dictionaries({"choices": st.lists(st.dictionaries(KEYS, VALUES), max_size=2)}),
    max_size=6,
)
STREAMS = st.tuples(EVENTS, st.sampled_from(["\n", "\r\n", "\r"])).map(
    lambda pair: "".join(sse_line(value, pair[1]) for value in pair[0]).encode()
)
BINARY = st.lists(st.tuples(st.sampled_from([0, 1, 2]), KEYS, VALUES), max_size=5).map(
    lambda rows: b"".join(
        (event(name, value), model_event(value), event(name, value, kind="exception"))[kind]
        for kind, name, value in rows
    )
)
PLAIN = (
    STREAMS
    | BINARY
    | st.binary(max_size=200)
    | VALUES.map(lambda value: json.dumps(value).encode())
    | EVENTS.map(lambda values: json.dumps(values).encode())
    | st.lists(
        st.sampled_from(
            [
                b"data:",
                b" ",
                b"{",
                b"}",
                b'"usage"',
                b"\r",
                b"\n",
                b":",
                b"[DONE]",
                b"[",
                b"]",
                b'"',
                b"\\",
            ]
        ),
        max_size=40,
    ).map(b"".join)
    | st.lists(VALUES, max_size=6).map(
        lambda values: "\n".join(json.dumps(value) for value in values).encode()
    )
)
MARKS = st.lists(st.integers(min_value=0), max_size=30)


@RELAXED
@given(
    wire_format=FORMATS,
    body=PLAIN,
    marks=MARKS,
    coding=CODINGS,
    packs=st.booleans(),
    hides=st.booleans(),
)
def test_any_answer_gives_the_same_for_every_cut(
    wire_format: str,
    body: bytes,
    marks: list[int],
    coding: str | None,
    *,
    packs: bool,
    hides: bool,
) -> None:
    if packs and coding in PACKED:
        body = pack(body, coding)
    whole, facts = read_answer(wire_format, [body], coding, hides=hides)
    pieces, facts_of_pieces = read_answer(wire_format, cut(body, marks), coding, hides=hides)
    single = [body[i : i + 1] for i in range(len(body))] or [b""]
    bytewise, facts_of_bytes = read_answer(wire_format, single, coding, hides=hides)
    assert whole == pieces == bytewise
    if coding in PACKED and not packs:
        return  # how much of spoilt data can be unpacked does depend on the cuts
    assert facts == facts_of_pieces == facts_of_bytes
    if not hides:
        assert whole == body


@RELAXED
@given(EVENTS, MARKS, st.sampled_from(["\n", "\r\n", "\r"]))
def test_hiding_equals_filtering_the_whole(
    events: list[Any], marks: list[int], newline: str
) -> None:
    def is_hidden(value: Any) -> bool:
        # As the reader will see it: through JSON, where NaN and long numbers survive.
        return (
            isinstance(value, dict)
            and value.get("choices") == []
            and isinstance(value.get("usage"), dict)
        )

    lines = [sse_line(value, newline) for value in events]
    body = "".join(lines).encode()
    kept = [line for line, value in zip(lines, events, strict=True) if not is_hidden(value)]
    out, _ = read_answer("openai_chat", cut(body, marks), None, hides=True)
    assert out == "".join(kept).encode()
