"""Cohere: chat of both versions, embeddings, rerank; which of two usages is charged."""

import json
from typing import Any

import pytest

from extproc.core.usage import Usage
from extproc.providers.answers import AnswerReader
from extproc.providers.errors_shape import error_body
from extproc.providers.registry import provider_of, read_request
from extproc.providers.requests import ReadLimits, RequestFacts
from extproc.providers.tokens import count_tokens
from tests.unit.test_providers_openai_family import answer, events
from tests.unit.test_providers_requests import read, refused

CHAT, V1, EMBED, RERANK = "/v2/chat", "/v1/chat", "/v2/embed", "/v2/rerank"
TEXT = "some words that are counted"
HELLO = {"role": "user", "content": "hello"}
BILLED = {"billed_units": {"input_tokens": 5, "output_tokens": 418}}
TOKENS = {"tokens": {"input_tokens": 71, "output_tokens": 420}}
PICTURE = "data:image/png;base64," + "iVBORw0KGgo" * 9000


def delta(kind: str, index: int = 0, **message: object) -> dict[str, Any]:
    return {"type": kind, "index": index, "delta": {"message": message}}


START = {"id": "c-1", "type": "message-start", "delta": {"message": {"role": "assistant"}}}


def end(**fields: object) -> dict[str, Any]:
    return {"type": "message-end", "delta": {"finish_reason": "COMPLETE", **fields}}


def chat(**fields: object) -> int:
    return read(CHAT, {"model": "command-a-03-2025", "messages": [], **fields}).input_tokens


def test_everything_that_is_billed_is_counted() -> None:
    tokens = count_tokens(TEXT)
    assert chat(messages=[{"role": "user", "content": TEXT}]) >= tokens
    parts = [{"type": "text", "text": TEXT}, {"type": "thinking", "thinking": TEXT}]
    assert chat(messages=[{"role": "assistant", "content": parts}]) >= 2 * tokens
    call = {"id": "t", "type": "function", "function": {"name": "look", "arguments": TEXT}}
    planned = {"role": "assistant", "tool_plan": TEXT, "tool_calls": [call]}
    assert chat(messages=[planned]) > 2 * tokens
    assert chat(documents=[TEXT, {"data": {"text": TEXT}}]) >= 2 * tokens
    assert chat(tools=[{"function": {"description": TEXT}}]) > tokens
    schema = {"type": "json_object", "json_schema": {"description": TEXT}}
    assert chat(response_format=schema) > tokens
    old = {"message": TEXT, "preamble": TEXT, "chat_history": [{"role": "USER", "message": TEXT}]}
    facts = read(V1, old | {"documents": [{"text": TEXT}], "tool_results": [{"outputs": [TEXT]}]})
    assert facts.input_tokens >= 5 * tokens
    assert facts.model == "command"


def test_documents_of_tool_results_are_text() -> None:
    document = {"type": "document", "document": {"id": "1", "data": {"snippet": TEXT * 2000}}}
    result = {"role": "tool", "tool_call_id": "t", "content": [document]}
    assert chat(messages=[result]) >= count_tokens(TEXT * 2000)
    # What would be a mark or a file elsewhere is text here.
    assert chat(documents=[{"data": {"signature": TEXT * 2000}}]) >= count_tokens(TEXT * 2000)
    disguised = {"role": "user", "type": "document", "content": TEXT * 2000}
    assert chat(messages=[disguised]) >= count_tokens(TEXT * 2000)


def test_pictures_are_no_text() -> None:
    part: dict[str, Any] = {"type": "image_url", "image_url": {"url": PICTURE}}
    empty = chat(messages=[{"role": "user", "content": []}])
    assert chat(messages=[{"role": "user", "content": [part]}]) - empty == 3328
    body: dict[str, Any] = {
        "model": "embed-v4.0",
        "input_type": "image",
        "images": [PICTURE, PICTURE],
    }
    assert read(EMBED, body).input_tokens == 2 * 1610
    mixed: dict[str, Any] = {"content": [{"type": "text", "text": TEXT}, part]}
    body = {"model": "embed-v4.0", "inputs": [mixed]}
    assert read(EMBED, body).input_tokens == count_tokens(TEXT) + 1610


def test_embeddings_take_texts() -> None:
    facts = read(EMBED, {"model": "embed-v4.0", "texts": [TEXT, TEXT]})
    assert (facts.input_tokens, facts.output_cap_tokens) == (2 * count_tokens(TEXT), 0)
    assert read("/v1/embed", {"texts": [TEXT]}).model == "embed"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"model": None}, "model"),
        (CHAT, {"messages": None}, "messages"),
        (CHAT, {"stream": "true"}, "stream"),
        (CHAT, {"max_tokens": 0}, "max_tokens"),
        (CHAT, {"documents": {}}, "documents"),
        (CHAT, {"response_format": "json"}, "response_format"),
        (V1, {"message": None}, "message"),
        (V1, {"message": "x", "preamble": 5}, "preamble"),
        (V1, {"message": "x", "chat_history": {}}, "chat_history"),
        (EMBED, {}, "texts"),
        (EMBED, {"texts": "x"}, "texts"),
        (EMBED, {"texts": ["x", 5]}, "texts[1]"),
        (EMBED, {"images": [{}]}, "images[0]"),
        (EMBED, {"inputs": "x"}, "inputs"),
        (EMBED, {"model": None, "texts": ["x"]}, "model"),
        (RERANK, {"query": "q"}, "documents"),
    ],
)
def test_what_is_wrong_is_refused_by_name(path: str, fields: dict[str, Any], param: str) -> None:
    error = refused(path, {"model": "m", "messages": []} | fields)
    assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize(
    ("path", "extra"), [(CHAT, {"messages": [HELLO]}), (V1, {"message": "hi"})]
)
def test_strict_mode_writes_max_tokens(path: str, extra: dict[str, Any]) -> None:
    assert read(path, {"model": "m", "max_tokens": 9, **extra}).output_cap_tokens == 9
    facts = read_request(
        path,
        json.dumps({"model": "m", **extra}).encode(),
        content_type=None,
        content_encoding=None,
        limits=ReadLimits(strict_cap_tokens=20),
    )
    assert isinstance(facts, RequestFacts)
    assert json.loads(facts.new_body or b"")["max_tokens"] == 20


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({**BILLED, **TOKENS}, Usage(input_tokens=5, output_tokens=418)),
        (TOKENS, Usage(input_tokens=71, output_tokens=420)),
        (
            {"billed_units": {"input_tokens": 5}, **TOKENS},
            Usage(input_tokens=5, output_tokens=420),
        ),
        (
            {"billed_units": {"input_tokens": 0, "output_tokens": 0}, **TOKENS},
            Usage(input_tokens=71, output_tokens=420),
        ),
        (
            {**BILLED, "cached_tokens": 64},
            Usage(input_tokens=5, output_tokens=418, cached_input_tokens=5),
        ),
        (
            {"billed_units": {"input_tokens": 5, "output_tokens": 3, "search_units": 2}},
            Usage(input_tokens=5, output_tokens=3, server_tool_calls=2),
        ),
        ({"billed_units": {"input_tokens": 4.2}}, Usage(input_tokens=5)),
        ({"billed_units": {"input_tokens": 4, "output_tokens": -1}}, Usage()),
        ({"billed_units": "5", "tokens": None}, Usage()),
        (None, Usage()),
    ],
)
def test_billed_units_are_charged_and_tokens_only_where_there_are_none(
    report: dict[str, Any] | None, expected: Usage
) -> None:
    message = {"role": "assistant", "content": [{"type": "text", "text": "x"}]}
    whole = {"id": "c-1", "finish_reason": "COMPLETE", "message": message, "usage": report}
    assert answer("cohere_v2", whole).usage == expected
    streamed = events(START, delta("content-delta", content={"text": "x"}), end(usage=report))
    assert answer("cohere_v2", streamed).usage == expected
    old = {"response_id": "r", "text": "x", "finish_reason": "COMPLETE", "meta": report}
    assert answer("cohere_v1", old).usage == expected


STREAM = [
    START,
    delta("content-start", content={"type": "thinking", "thinking": ""}),
    delta("content-delta", content={"thinking": "let me"}),
    delta("content-delta", content={"thinking": " think"}),
    delta("content-end"),
    delta("tool-plan-delta", tool_plan=TEXT),
    delta("tool-call-start", 1, tool_calls={"function": {"name": "look", "arguments": ""}}),
    delta("tool-call-delta", 1, tool_calls={"function": {"arguments": '{"a"'}}),
    delta("tool-call-delta", 1, tool_calls={"function": {"arguments": ":1}"}}),
    delta("content-delta", 2, content={"text": "Hel"}),
    delta("content-delta", 2, content={"text": "lo"}),
    delta("citation-start", 0, citations={"start": 0, "end": 5, "text": "Hello"}),
]
PRODUCED = ("let me think", TEXT, "look", '{"a":1}', "Hello")


def test_what_was_streamed_before_a_cut_is_counted() -> None:
    reader = answer("cohere_v2", events(*STREAM))
    assert reader.usage == Usage()
    assert (reader.complete, reader.saw_output, reader.response_id) == (False, True, "c-1")
    assert reader.counted_output_tokens() == sum(count_tokens(text) for text in PRODUCED)


def test_a_stream_ends_with_its_usage() -> None:
    reader = answer("cohere_v2", events(*STREAM, end(usage=BILLED | TOKENS)))
    assert reader.usage == Usage(input_tokens=5, output_tokens=418)
    assert reader.counted_output_tokens() == 418
    assert (reader.complete, reader.error) == (True, False)


def test_a_whole_answer_without_usage_is_counted() -> None:
    content = [{"type": "thinking", "thinking": "let me think"}, {"type": "text", "text": "Hello"}]
    call = {"function": {"name": "look", "arguments": '{"a":1}'}}
    message = {"content": content, "tool_plan": TEXT, "tool_calls": [call]}
    reader = answer("cohere_v2", {"id": "x", "message": message, "finish_reason": "TOOL_CALL"})
    assert reader.counted_output_tokens() == sum(count_tokens(text) for text in PRODUCED)
    assert reader.complete


@pytest.mark.parametrize(
    "body",
    [
        {"id": "x", "message": "trial key rate limit"},
        {"message": "invalid request"},
    ],
)
@pytest.mark.parametrize("wire_format", ["cohere_v2", "cohere_v1", "cohere_embed"])
def test_a_message_that_is_text_is_an_error(wire_format: str, body: dict[str, Any]) -> None:
    reader = answer(wire_format, body)
    assert (reader.error, reader.saw_output) == (True, False)
    if wire_format == "cohere_v2":
        assert answer(wire_format, events(body)).error


@pytest.mark.parametrize("reason", ["ERROR", "ERROR_LIMIT", "TIMEOUT", "error"])
def test_a_stream_that_failed(reason: str) -> None:
    body = events(*STREAM, end(finish_reason=reason, usage=BILLED))
    reader = answer("cohere_v2", body)
    assert reader.error
    assert reader.usage.output_tokens == 418
    message = {"content": [{"type": "text", "text": "x"}]}
    assert answer("cohere_v2", {"message": message, "finish_reason": reason}).error
    assert answer("cohere_v2", events(START, end(error="out of memory"))).error


def v1_lines(*values: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def test_the_older_stream_repeats_its_text_at_the_end() -> None:
    pieces = [{"event_type": "text-generation", "text": text} for text in ("Hel", "lo")]
    begin = {"event_type": "stream-start", "generation_id": "g"}
    response = {"response_id": "r", "text": "Hello", "finish_reason": "COMPLETE"}
    last = {"event_type": "stream-end", "finish_reason": "COMPLETE", "response": response}
    without = answer("cohere_v1", v1_lines(begin, *pieces, last))
    assert without.counted_output_tokens() == count_tokens("Hello")
    assert (without.complete, without.error, without.response_id) == (True, False, "r")
    last["response"] = response | {"meta": BILLED | TOKENS}
    for body in (v1_lines(begin, *pieces, last), events(begin, *pieces, last)):
        assert answer("cohere_v1", body).usage == Usage(input_tokens=5, output_tokens=418)
    failed = {"event_type": "stream-end", "finish_reason": "ERROR", "response": {}}
    assert answer("cohere_v1", v1_lines(*pieces, failed)).error
    chunk = {"event_type": "tool-calls-chunk", "tool_call_delta": {"index": 0, "name": "look"}}
    call = {"event_type": "tool-calls-generation", "tool_calls": [{"name": "look"}]}
    assert answer("cohere_v1", v1_lines(chunk, call)).counted_output_tokens() == 1


def embedded(**meta: object) -> AnswerReader:
    body = {"id": "x", "embeddings": {"float": [[0.1]]}, "meta": {"billed_units": meta}}
    return answer("cohere_embed", body)


def test_pictures_and_texts_of_embeddings_are_input() -> None:
    assert embedded(input_tokens=7).usage == Usage(input_tokens=7, output_tokens=0)
    both = embedded(input_tokens=7, image_tokens=258).usage
    assert both == Usage(input_tokens=265, output_tokens=0, image_input_tokens=258)
    assert embedded(image_tokens=258).usage.input_tokens == 258
    # By the picture, as the models before embed-v4.0: no tokens are told.
    old = embedded(images=1)
    assert old.usage == Usage()
    assert old.saw_output
    assert old.counted_output_tokens() == 0


def test_rerank_is_charged_by_the_estimate_and_reports_search_units() -> None:
    body = {"model": "rerank-v4.0", "query": "one two", "documents": ["three", "four"]}
    facts = read(RERANK, body)
    assert (facts.wire_format, facts.input_tokens) == ("cohere_rerank", 2 * 2 + 2)
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    reader = answer("cohere_rerank", {"id": "x", "results": [{"index": 0}], "meta": meta})
    assert reader.usage == Usage(server_tool_calls=1)
    assert reader.saw_output
    assert reader.counted_output_tokens() == 0
    vllm = {"id": "x", "results": [{"index": 0}], "usage": {"total_tokens": 56}}
    assert answer("cohere_rerank", vllm).usage == Usage(input_tokens=56, output_tokens=0)


@pytest.mark.parametrize(
    ("host", "wire_format"),
    [("api.cohere.com:443", "cohere_rerank"), ("api.jina.ai", "rerank"), ("", "rerank")],
)
def test_the_older_rerank_is_known_by_its_host(host: str, wire_format: str) -> None:
    facts = read_request(
        "/v1/rerank",
        b'{"model":"m","query":"q","documents":[]}',
        content_type=None,
        content_encoding=None,
        limits=ReadLimits(),
        host=host,
    )
    assert isinstance(facts, RequestFacts)
    assert facts.wire_format == wire_format


def test_refusals_are_worded_as_coheres() -> None:
    for path in (CHAT, V1, EMBED, RERANK):
        body = error_body(path, status=429, code="x", message="slow down")
        assert json.loads(body) == {"message": "slow down"}
    assert provider_of("cohere_v1") == "cohere"
