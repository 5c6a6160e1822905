"""CRASH: faults that others reported about bodies that end a server's handler; see
docs/known-faults.md.

Each instance is among the recorded requests of test_providers_requests.py; these are of their kind.
"""

import contextlib
import json
from typing import Any

import pytest

from extproc.core.errors import RequestError
from extproc.providers.registry import read_request
from extproc.providers.requests import ReadLimits, RequestFacts
from tests.unit.spoken_answers import SPOKEN, fed
from tests.unit.test_known_faults_encode import REQUESTS

PATHS = pytest.mark.parametrize("path", REQUESTS)
MAX_DEPTH = ReadLimits().max_depth


def read(path: str, body: bytes) -> RequestFacts:
    facts = read_request(
        path, body, content_type="application/json", content_encoding=None, limits=ReadLimits()
    )
    assert isinstance(facts, RequestFacts)
    return facts


def status_of(path: str, body: bytes) -> int:
    with pytest.raises(RequestError) as caught:
        read(path, body)
    assert caught.value.message
    return caught.value.status


def nested(levels: int, kind: str) -> str:
    opening, closing = {"lists": ("[", "]"), "objects": ('{"a":', "}"), "both": ('[{"a":', "}]")}[
        kind
    ]
    levels = levels // 2 if kind == "both" else levels
    return opening * levels + "1" + closing * levels


@PATHS
@pytest.mark.parametrize("kind", ["lists", "objects", "both"])
def test_nesting_has_one_limit_in_every_field(path: str, kind: str) -> None:
    """B117: the same on every version of Python, whose own limits differ."""
    body = REQUESTS[path]("Say hi")
    for field in [*body, "unknown"]:
        rest = json.dumps({key: value for key, value in body.items() if key != field})
        for levels in (MAX_DEPTH + 1, 2000, 20_000):
            deep = rest[:-1] + f',"{field}":{nested(levels, kind)}}}'
            assert status_of(path, deep.encode()) == 400
    # The body itself is a level.
    fits = json.dumps(body)[:-1] + f',"unknown":{nested(MAX_DEPTH - 2, kind)}}}'
    assert read(path, fits.encode()).input_tokens > 0


@PATHS
def test_nesting_without_an_end_is_refused_soon(path: str) -> None:
    for start in (b"[", b'{"a":', b'[{"a":'):
        assert status_of(path, start * 1_000_000) == 400


@pytest.mark.parametrize("name", SPOKEN)
@pytest.mark.parametrize("kind", ["lists", "objects", "both"])
def test_nesting_in_an_answer_costs_that_event_only(name: str, kind: str) -> None:
    """A sibling of B117: an answer is never refused, and its numbers still come."""
    spoken = SPOKEN[name]
    if spoken.framing == "binary":
        return  # payloads are read by the same function
    deep = nested(50_000, kind)
    events = [f'{{"deep":{deep}}}'.encode(), *spoken.events(["hello"], [(9, 4)])]
    body = spoken.body([], [])
    if spoken.framing == "array":
        body = b"[" + b",".join(events) + b"]"
    elif spoken.framing == "lines":
        body = b"\n".join(events)
    else:
        body = b"".join(b"data: " + one + b"\n\n" for one in events)
    usage = fed(spoken.reader(), [body]).usage
    assert (usage.input_tokens, usage.output_tokens) == (9, 4)


@PATHS
@pytest.mark.parametrize(
    "body",
    [b"", b" ", b"\n\xef\xbb\xbf", b"\xef\xbb\xbf", b"[]", b"[{}]", b'"hi"', b"5", b"null", b"true",
     b"NaN", b"{", b"}", b"{]", b"\x00", b"hello", b"a=b", b"<x/>", b"--x\r\n", b"{}{}"],
)  # fmt: skip
def test_what_is_no_object_is_400(path: str, body: bytes) -> None:
    """B118: also by a path whose body could be empty."""
    assert status_of(path, body) == 400


LISTS = {
    "/v1/chat/completions": "messages",
    "/v1/messages": "messages",
    "/v1beta/models/gemini-2.5-pro:generateContent": "contents",
    "/model/anthropic.claude-3-haiku/converse": "messages",
    "/v2/chat": "messages",
    "/api/chat": "messages",
    "/v1/responses": "input",
}


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("value", ["x", 123, 1.5, True, {"role": "user"}, ["x"], [5], [None], [[]]])
def test_a_conversation_that_is_no_list_of_objects_is_400_or_counted(path: str, value: Any) -> None:
    """B119: nothing gets through but what the API takes as well: a text, or one object alone."""
    body = {**REQUESTS[path]("Say hi"), LISTS[path]: value}
    is_taken = path == "/v1/responses" and value == "x"
    if is_taken or ("gemini" in path and value == {"role": "user"}):
        assert read(path, json.dumps(body).encode()).input_tokens > 0
    else:
        assert status_of(path, json.dumps(body).encode()) == 400


@pytest.mark.parametrize(
    "content",
    [None, "x", 5, True, [], ["x"], [None], [[]], [{}], {}, [{"type": "text"}],
     [{"type": "text", "text": None}], [{"type": []}], [{"type": "image_url"}],
     [{"type": "image_url", "image_url": 5}], [{"type": "input_audio", "input_audio": []}]],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
def test_content_of_any_shape_is_counted_or_refused(path: str, content: Any) -> None:
    """B119: parts, a text, or neither."""
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": content}]}
    with contextlib.suppress(RequestError):
        assert read(path, json.dumps(body).encode()).input_tokens >= 0
        return
    assert status_of(path, json.dumps(body).encode()) == 400
