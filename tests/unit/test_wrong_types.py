"""Any value of a recorded request or answer may be of any other type: never an exception."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from extproc.core.errors import RequestError
from extproc.providers.answers import answer_reader
from extproc.providers.json_input import read_json_object
from extproc.providers.registry import read_request
from extproc.providers.requests import ReadLimits
from tests.unit.provider_cases import AnswerCase, RequestCase, answer_cases, request_cases

OTHERS: tuple[Any, ...] = ([], {}, [[]], [{}], {"type": []}, 5, -1.5, True, None, "x", "")
# The same values again and again in a long answer or request say nothing new.
_MOST_PLACES = 200


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container and key in it, outermost first."""
    level = [value]
    while level:
        below = []
        for container in level:
            keys = list(container) if isinstance(container, dict) else range(len(container))
            for key in keys:
                yield container, key
                if isinstance(container[key], dict | list):
                    below.append(container[key])
        level = below


def twisted(value: Any) -> Iterator[bytes]:
    for container, key in list(places(value))[:_MOST_PLACES]:
        kept = container[key]
        for other in OTHERS:
            container[key] = other
            yield json.dumps(value).encode()
        container[key] = kept


def readable_requests() -> list[RequestCase]:
    found = []
    for case in request_cases():
        if len(case.body) < 4000 and case.expect["must"] == "count":
            found.append(case)
    return found


RICH = {
    "model": "gpt-4o",
    "n": 2,
    "messages": [
        {"role": "system", "name": "a", "content": [{"type": "text", "text": "x"}]},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}}],
        },
        {
            "role": "user",
            "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "document", "source": {"type": "text", "data": "x"}, "title": "t"}
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "name": "f", "input": {"a": 1}, "id": "i"}],
        },
        {
            "role": "user",
            "content": [{"type": "image", "source": {"type": "base64", "data": "AAAA"}}],
        },
    ],
    "tools": [{"type": "function"}],
    "max_tokens": 5,
    "stream": False,
    "stream_options": {"include_usage": True},
}
ITEMS = {
    "model": "gpt-4o",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning", "encrypted_content": "AAAA", "summary": []},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "image_generation_call", "id": "i", "status": "completed"},
    ],
    "instructions": "x",
    "text": {"format": {"type": "text"}},
    "prompt": {"id": "x", "variables": {"a": "b"}},
    "conversation": "c",
    "tools": [{"type": "web_search"}],
}


def accepts(path: str, body: bytes) -> bool:
    """False: refused as the client's mistake."""
    try:
        read_request(
            path,
            body,
            content_type="application/json",
            content_encoding=None,
            limits=ReadLimits(),
        )
    except RequestError as error:
        return error.status not in (400, 413, 415)
    return True


@pytest.mark.parametrize("case", readable_requests(), ids=lambda case: case.name)
def test_a_recorded_request_with_a_value_of_another_type(case: RequestCase) -> None:
    value, _ = read_json_object(
        case.body,
        case.headers.get("content-encoding"),
        content_type=case.headers.get("content-type"),
        limits=ReadLimits(),
    )
    assert {accepts(case.path, body) for body in twisted(value)} == {True, False}


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", RICH), ("/v1/messages", RICH), ("/v1/responses", ITEMS)],
)
def test_every_kind_of_part_with_a_value_of_another_type(path: str, body: dict[str, Any]) -> None:
    assert {accepts(path, raw) for raw in twisted(json.loads(json.dumps(body)))} == {True, False}


def read(case: AnswerCase, body: bytes) -> None:
    reader = answer_reader(
        case.wire_format,
        content_type=case.content_type,
        content_encoding=None,
        hides_usage=True,
        encoding="o200k_base",
    )
    reader.feed(body, end=True)
    usage = reader.usage
    for number in (usage.input_tokens, usage.output_tokens, usage.cached_input_tokens):
        assert number is None or number >= 0
    assert reader.counted_output_tokens() >= 0
    assert isinstance(reader.error, bool)
    assert isinstance(reader.complete, bool)
    assert isinstance(reader.saw_output, bool)


@pytest.mark.parametrize(
    "case",
    [case for case in answer_cases() if not case.content_encoding and len(case.body) < 4000],
    ids=lambda case: case.name,
)
def test_an_answer_with_a_value_of_another_type(case: AnswerCase) -> None:
    lines = case.body.decode("utf-8", "replace").splitlines(keepends=True)
    for at, line in enumerate(lines):
        start = line.find("{")
        try:
            value = json.loads(line[max(start, 0) :])
        except ValueError:
            continue
        if not isinstance(value, dict):
            continue
        for body in twisted(value):
            changed = line[: max(start, 0)] + body.decode() + "\n"
            read(case, "".join([*lines[:at], changed, *lines[at + 1 :]]).encode())
