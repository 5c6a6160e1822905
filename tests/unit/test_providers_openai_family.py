"""Responses, moderations, rerank and others: what is read of requests and of answers."""

import base64
import json
from typing import Any

import pytest

from extproc.core.usage import Usage
from extproc.providers.answers import AnswerReader, answer_reader
from extproc.providers.registry import read_request
from extproc.providers.requests import ReadLimits, RequestFacts
from extproc.providers.tokens import count_tokens
from tests.unit.test_providers_requests import EMBEDDINGS, read, refused

RESPONSES, IMAGES, SPEECH = "/v1/responses", "/v1/images/generations", "/v1/audio/speech"
MODERATIONS, RERANK = "/v1/moderations", "/v1/rerank"


def events(*values: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)


def answer(
    wire_format: str,
    body: bytes | dict[str, Any],
    *,
    content_type: str | None = None,
    step: int = 7,
) -> AnswerReader:
    """The reader, after the whole answer in pieces of ``step`` bytes."""
    reader = answer_reader(
        wire_format,
        content_type=content_type,
        content_encoding=None,
        hides_usage=False,
        encoding="o200k_base",
    )
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    for at in range(0, len(raw), step):
        reader.feed(raw[at : at + step], end=False)
    reader.feed(b"", end=True)
    return reader


def responses(**fields: object) -> int:
    return read(RESPONSES, {"model": "gpt-4o", **fields}).input_tokens


def test_everything_that_a_responses_request_sends_is_counted() -> None:
    empty = responses(input=[])
    text = "some words that are counted"
    tokens = count_tokens(text)
    assert responses(input=text) >= empty + tokens
    assert responses(input=[], instructions=text) >= empty + tokens
    assert responses(input=[{"role": "user", "content": text}]) >= empty + tokens
    parts = [{"type": "input_text", "text": text}]
    assert responses(input=[{"type": "message", "content": parts}]) >= empty + tokens
    output = {"type": "function_call_output", "call_id": "call_" + "x" * 99, "output": text}
    assert empty + tokens <= responses(input=[output]) <= empty + tokens + 5
    thought = {"type": "reasoning", "encrypted_content": "gAAAA" * 1200}
    assert empty + 1000 <= responses(input=[thought]) < empty + 1010
    assert responses(input=[{"type": "item_reference", "id": "msg_1"}]) == empty
    schema = {"type": "object", "description": text}
    assert responses(input=[], tools=[{"type": "function", "parameters": schema}]) > empty + tokens
    formatted = {"format": {"type": "json_schema", "schema": schema}}
    assert responses(input=[], text=formatted) > empty + tokens


def test_pictures_of_responses_are_no_text() -> None:
    blob = base64.b64encode(bytes(range(256)) * 400).decode()
    url = f"data:image/png;base64,{blob}"
    empty = responses(input=[])
    part = {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
    made = {"type": "image_generation_call", "id": "ig_1", "result": blob}
    shot = {"type": "computer_call_output", "output": {"image_url": url}}
    for item in (part, made, shot):
        assert 765 <= responses(input=[item]) - empty <= 765 + 5


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": 5}, "input"),
        ({"input": [1]}, "input[0]"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "9"}, "max_output_tokens"),
        ({"instructions": 5}, "instructions"),
        ({"tools": {}}, "tools"),
        ({"stream": "yes"}, "stream"),
        ({"model": None}, "model"),
    ],
)
def test_wrong_fields_of_responses_are_named(fields: dict[str, Any], param: str) -> None:
    assert refused(RESPONSES, {"model": "gpt-4o", "input": "x", **fields}).param == param


def test_a_stored_prompt_may_bring_the_model() -> None:
    prompt = {"id": "pmpt_1", "variables": {"city": "Paris"}}
    facts = read(RESPONSES, {"prompt": prompt})
    assert (facts.model, facts.hidden_input) == ("pmpt_1", True)
    assert read(RESPONSES, {"prompt": prompt, "model": "gpt-4o"}).model == "gpt-4o"
    for wrong in ({"id": ""}, {"id": 1}, {"id": "x" * 300}, {}):
        assert refused(RESPONSES, {"prompt": wrong}).param == "model"


def test_pictures_and_speech_reserve_what_the_request_tells() -> None:
    assert read(IMAGES, {"prompt": "a river"}).reserves_cap
    assert read(SPEECH, {"model": "tts-1", "input": "Hi"}).reserves_cap
    assert not read(RESPONSES, {"model": "gpt-4o", "input": "Hi"}).reserves_cap


def test_decisions_count_input_and_questions_and_report_as_responses_do() -> None:
    question = {"type": "predicate", "name": "wet", "instructions": "It is about water."}
    body = {"model": "gpt-6-luna", "input": "A river.", "questions": [question]}
    facts = read("/v1/decisions", body)
    assert (facts.wire_format, facts.output_cap_tokens) == ("openai_decisions", None)
    more = read("/v1/decisions", {**body, "questions": [question] * 2})
    assert more.input_tokens - facts.input_tokens >= count_tokens("It is about water.")
    assert refused("/v1/decisions", {**body, "questions": {}}).param == "questions"
    assert refused("/v1/decisions", {**body, "input": 1}).param == "input"
    report = {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13}
    value = {"model": "gpt-6-luna", "answers": [{"type": "predicate", "probability": 0.5}]}
    assert answer("openai_decisions", {**value, "usage": report}).usage == Usage(
        input_tokens=9, output_tokens=4
    )
    assert answer("openai_decisions", value).unread
    assert answer("openai_decisions", {"error": {"message": "x"}}).error


def test_strict_mode_writes_the_cap_of_responses_and_asks_for_no_usage() -> None:
    body = b'{"model": "gpt-4o", "stream": true, "input": "hi", "max_output_tokens": null}'
    facts = read_request(
        RESPONSES,
        body,
        content_type=None,
        content_encoding=None,
        limits=ReadLimits(strict_cap_tokens=100),
    )
    assert isinstance(facts, RequestFacts)
    assert facts.new_body == body.replace(b"null", b"100")
    assert facts.output_cap_tokens == 100
    assert not facts.hides_usage


def test_deltas_of_responses_are_counted_until_usage_comes() -> None:
    def delta(kind: str, text: str, at: int = 0) -> dict[str, Any]:
        return {"type": kind, "output_index": at, "content_index": 0, "delta": text}

    deltas = [
        {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}},
        delta("response.reasoning_summary_text.delta", "thinking about it"),
        {"type": "response.output_item.added", "output_index": 1, "item": {"name": "look_up"}},
        delta("response.function_call_arguments.delta", '{"city":"Oslo"}', 1),
        delta("response.output_text.delta", "hello there", 2),
        {"type": "response.output_text.done", "output_index": 2, "text": "hello there"},
    ]
    reader = answer("openai_responses", events(*deltas))
    texts = ("thinking about it", "look_up", '{"city":"Oslo"}', "hello there")
    assert reader.counted_output_tokens() == sum(count_tokens(text) for text in texts)
    assert reader.saw_output
    assert not reader.complete
    assert not reader.unread
    assert reader.usage == Usage()
    final = {
        "id": "resp_1",
        "model": "gpt-4o-2024-08-06",
        "status": "completed",
        "output": [{"type": "web_search_call"}, {"type": "message"}],
        "usage": {
            "input_tokens": 50,
            "input_tokens_details": {"cached_tokens": 10},
            "output_tokens": 20,
            "output_tokens_details": {"reasoning_tokens": 8},
        },
    }
    reader = answer(
        "openai_responses", events(*deltas, {"type": "response.completed", "response": final})
    )
    assert reader.complete
    assert reader.usage == Usage(
        input_tokens=50,
        output_tokens=20,
        cached_input_tokens=10,
        reasoning_tokens=8,
        server_tool_calls=1,
    )
    assert (reader.response_id, reader.response_model) == ("resp_1", "gpt-4o-2024-08-06")
    assert answer("openai_responses", final).usage == reader.usage


def test_responses_in_the_background_keep_their_reserve() -> None:
    queued: dict[str, Any] = {"id": "resp_1", "status": "queued", "output": [], "usage": None}
    reader = answer("openai_responses", queued)
    assert reader.unread
    assert reader.saw_output
    assert not reader.error
    created = {"type": "response.created", "response": queued | {"status": "in_progress"}}
    assert not answer("openai_responses", events(created)).unread


def test_errors_of_responses() -> None:
    error = {"type": "error", "code": "server_error", "message": "x"}
    for body in (
        events(error),
        events({"type": "response.failed", "response": {"status": "failed", "output": []}}),
        json.dumps({"error": {"message": "x"}}).encode(),
    ):
        reader = answer("openai_responses", body)
        assert reader.error
        assert not reader.saw_output


def test_moderations_count_their_input() -> None:
    assert read(MODERATIONS, {"input": "one two three"}).input_tokens == 3
    assert read(MODERATIONS, {"input": ["one", "two three"]}).input_tokens == 3
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert read(MODERATIONS, {"input": [picture]}).input_tokens == 765
    assert refused(MODERATIONS, {"input": 5}).param == "input"
    reader = answer("openai_moderations", {"id": "modr-1", "results": [{"flagged": False}]})
    assert reader.usage == Usage()
    assert reader.saw_output
    assert reader.counted_output_tokens() == 0


def test_rerank_reads_the_query_with_every_document() -> None:
    body = {"model": "m", "query": "one two", "documents": ["three", {"text": "four five"}]}
    assert read(RERANK, body).input_tokens == 2 * 2 + 3
    texts = {"query": "one two", "texts": ["three"]}
    assert read("/rerank", texts).input_tokens == 3
    assert refused(RERANK, body | {"documents": "x"}).param == "documents"
    assert refused(RERANK, body | {"query": None}).param == "query"


@pytest.mark.parametrize(
    "report",
    [
        {"usage": {"total_tokens": 56}},
        {"usage": {"prompt_tokens": 56, "total_tokens": 56}},
        {"meta": {"tokens": {"input_tokens": 56, "output_tokens": 0}}},
        {"meta": {"billed_units": {"input_tokens": 56, "search_units": 1}}},
    ],
)
def test_rerank_answers_report_in_several_ways(report: dict[str, Any]) -> None:
    reader = answer("rerank", {"id": "x", "results": [{"index": 0}], **report})
    assert (reader.usage.input_tokens, reader.usage.output_tokens) == (56, 0)
    assert reader.usage.server_tool_calls == (1 if "search_units" in str(report) else None)


def test_embeddings_of_conversations_and_the_model_of_azures_path() -> None:
    messages = {"model": "m", "messages": [{"role": "user", "content": "one two three"}]}
    assert read(EMBEDDINGS, messages).input_tokens >= 3
    body = {"model": "cheap", "input": "x"}
    assert read("/openai/deployments/Large/embeddings", body).model == "Large"


def test_parts_of_usage_that_only_some_report() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "prompt_tokens_details": {"audio_tokens": 9, "image_tokens": 8, "cached_tokens": 0},
        "completion_tokens_details": {"audio_tokens": 7, "image_tokens": 6},
        "server_tool_use": {"web_search_requests": 2},
    }
    reader = answer("openai_chat", {"id": "x", "model": "y", "choices": [], "usage": usage})
    assert reader.usage == Usage(
        input_tokens=100,
        output_tokens=50,
        cached_input_tokens=0,
        audio_input_tokens=9,
        image_input_tokens=8,
        audio_output_tokens=7,
        image_output_tokens=6,
        server_tool_calls=2,
    )
    assert (reader.response_id, reader.response_model) == ("x", "y")
    claude = {
        "input_tokens": 5,
        "output_tokens": 1,
        "cache_creation_input_tokens": 30,
        "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
        "server_tool_use": {"web_search_requests": 3},
    }
    body = {"id": "msg_1", "model": "claude-x", "type": "message", "usage": claude}
    reader = answer("anthropic_messages", body)
    assert reader.usage == Usage(
        input_tokens=35,
        output_tokens=1,
        cache_write_tokens=30,
        cache_write_5m_tokens=10,
        cache_write_1h_tokens=20,
        server_tool_calls=3,
    )
    assert reader.response_model == "claude-x"
    start = {"type": "message_start", "message": body}
    assert answer("anthropic_messages", events(start)).response_id == "msg_1"


@pytest.mark.parametrize("missing", ["prompt_tokens", "completion_tokens"])
def test_a_total_completes_what_is_missing(missing: str) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8, missing: None}
    assert answer("openai_chat", {"usage": usage}).usage == Usage(input_tokens=5, output_tokens=3)


def test_a_whole_response_in_one_large_event_is_read() -> None:
    usage = {"input_tokens": 5, "output_tokens": 3}
    response = {"status": "completed", "instructions": "x" * 5_000_000, "usage": usage}
    body = events({"type": "response.completed", "response": response})
    reader = answer("openai_responses", body, step=65_536)
    assert reader.usage == Usage(input_tokens=5, output_tokens=3)


def test_mistrals_thoughts_are_output() -> None:
    content = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "one two"}]},
        {"type": "text", "text": "three"},
    ]
    chunk = {"choices": [{"index": 0, "delta": {"content": content}}]}
    assert answer("openai_chat", events(chunk)).counted_output_tokens() == 3
