"""Ollama: requests, caps, spelling, pictures; answers by lines, in one object, cut, with errors."""

import json
from typing import Any

import pytest

from extproc.core.usage import Usage
from extproc.providers.answers import AnswerReader
from extproc.providers.errors_shape import error_body
from extproc.providers.registry import provider_of, read_request
from extproc.providers.requests import ReadLimits, RequestFacts
from extproc.providers.tokens import count_tokens
from tests.unit.test_providers_openai_family import answer
from tests.unit.test_providers_requests import read, refused

CHAT, GENERATE, EMBED, EMBEDDINGS = "/api/chat", "/api/generate", "/api/embed", "/api/embeddings"
TEXT = "some words that are counted"
HELLO = {"role": "user", "content": "hello"}


def lines(*values: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def piece(text: str, **fields: object) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"model": "llama3.2", "message": message, "done": False, **fields}


def chat_tokens(**fields: object) -> int:
    return read(CHAT, {"model": "m", "messages": [], **fields}).input_tokens


def test_it_streams_unless_told_not_to() -> None:
    for path in (CHAT, GENERATE):
        body = {"model": "m", "messages": [HELLO], "prompt": "x"}
        assert read(path, body).stream
        assert read(path, body | {"stream": None}).stream
        assert not read(path, body | {"stream": False}).stream
        assert refused(path, body | {"stream": "no"}).param == "stream"


def test_everything_that_is_read_is_counted() -> None:
    tokens = count_tokens(TEXT)
    assert chat_tokens(messages=[{"role": "user", "content": TEXT}]) >= tokens
    assert chat_tokens(messages=[{"role": "assistant", "thinking": TEXT}]) >= tokens
    call = {"function": {"name": "look", "arguments": {"what": TEXT}}}
    assert chat_tokens(messages=[{"role": "assistant", "tool_calls": [call]}]) > tokens
    disguised = {"role": "user", "type": "image", "content": TEXT * 2000}
    assert chat_tokens(messages=[disguised]) >= count_tokens(TEXT * 2000)
    call = {"function": {"name": "look", "arguments": {"id": TEXT * 2000}}}
    assert chat_tokens(messages=[{"tool_calls": [call]}]) >= count_tokens(TEXT * 2000)
    assert chat_tokens(tools=[{"type": "function", "function": {"description": TEXT}}]) > tokens
    for name in ("prompt", "system", "suffix", "template"):
        assert read(GENERATE, {"model": "m", name: TEXT}).input_tokens == tokens
    assert read(GENERATE, {"model": "m", "context": [1, 2, 3]}).input_tokens == 3
    assert read(EMBED, {"model": "m", "input": TEXT}).input_tokens == tokens
    assert read(EMBED, {"model": "m", "input": [TEXT, TEXT]}).input_tokens == 2 * tokens
    assert read(EMBEDDINGS, {"model": "m", "prompt": TEXT}).input_tokens == tokens
    assert read(EMBED, {"model": "m", "input": TEXT}).output_cap_tokens == 0


def test_pictures_are_no_text() -> None:
    blob = "iVBORw0KGgo" * 9000
    one = chat_tokens(messages=[HELLO | {"images": [blob, blob]}]) - chat_tokens(messages=[HELLO])
    assert one == 2 * 1601
    body = {"model": "m", "prompt": "", "images": [blob]}
    assert read(GENERATE, body).input_tokens == 1601


@pytest.mark.parametrize(
    ("value", "cap"), [(7, 7), (1, 1), (0, None), (-1, None), (-2, None), (None, None)]
)
def test_num_predict_is_the_cap_if_it_is_one(value: int | None, cap: int | None) -> None:
    for path in (CHAT, GENERATE):
        body = {"model": "m", "messages": [], "options": {"num_predict": value}}
        assert read(path, body).output_cap_tokens == cap


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, {"num_predict": 20}),
        ({}, {"num_predict": 20}),
        ({"num_predict": -1, "seed": 3}, {"num_predict": 20, "seed": 3}),
        ({"num_predict": None}, {"num_predict": 20}),
        ({"num_predict": 0, "Num_Predict": 900}, {"num_predict": 20, "Num_Predict": 900}),
    ],
)
def test_strict_mode_writes_it_also_over_no_limit(
    options: dict[str, object] | None, expected: dict[str, object]
) -> None:
    body = {"model": "m", "messages": [HELLO]} | ({} if options is None else {"options": options})
    facts = read_request(
        CHAT,
        json.dumps(body).encode(),
        content_type=None,
        content_encoding=None,
        limits=ReadLimits(strict_cap_tokens=20),
    )
    assert isinstance(facts, RequestFacts)
    assert facts.output_cap_tokens == 20
    assert json.loads(facts.new_body or b"") == body | {"options": expected}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"model": None}, "model"),
        (CHAT, {"messages": "x"}, "messages"),
        (CHAT, {"messages": [5]}, "messages[0]"),
        (CHAT, {"messages": [{"images": "x"}]}, "images"),
        (CHAT, {"tools": {}}, "tools"),
        (CHAT, {"options": []}, "options"),
        (CHAT, {"options": {"num_predict": "5"}}, "options.num_predict"),
        (CHAT, {"options": {"num_predict": True}}, "options.num_predict"),
        (CHAT, {"options": {"num_predict": 1.5}}, "options.num_predict"),
        (CHAT, {"options": {"num_predict": 2**31}}, "options.num_predict"),
        (CHAT, {"Messages": []}, "Messages"),
        (CHAT, {"OPTIONS": {"num_predict": -1}}, "OPTIONS"),
        (CHAT, {"me\u017fsages": []}, "me\u017fsages"),
        (CHAT, {"\u212aeep_alive": 1}, "\u212aeep_alive"),
        (GENERATE, {"prompt": ["x"]}, "prompt"),
        (GENERATE, {"System": "x"}, "System"),
        (EMBED, {"input": 5}, "input"),
        (EMBED, {"input": ["x", 5]}, "input"),
        (EMBED, {"Input": "x"}, "Input"),
        (EMBEDDINGS, {"prompt": 5}, "prompt"),
    ],
)
def test_what_is_wrong_is_refused_by_name(path: str, fields: dict[str, Any], param: str) -> None:
    error = refused(path, {"model": "m", "messages": []} | fields)
    assert (error.status, error.param) == (400, param)


def test_a_stream_ends_with_its_counts() -> None:
    end = piece("", done=True, prompt_eval_count=26, eval_count=298)
    reader = answer("ollama_chat", lines(piece("Hi"), piece(" there"), end))
    assert reader.usage == Usage(input_tokens=26, output_tokens=298)
    assert (reader.complete, reader.error, reader.saw_output) == (True, False, True)
    assert reader.response_model == "llama3.2"
    assert reader.counted_output_tokens() == 298


@pytest.mark.parametrize("content_type", ["application/json", "application/x-ndjson", None])
def test_one_object_is_a_whole_answer_under_any_label(content_type: str | None) -> None:
    body = piece("Hi", done=True, prompt_eval_count=3, eval_count=2)
    for raw in (json.dumps(body), json.dumps(body, indent=2), "\ufeff" + json.dumps(body) + "\n"):
        reader = answer("ollama_chat", raw.encode(), content_type=content_type)
        assert reader.usage == Usage(input_tokens=3, output_tokens=2)
        assert reader.complete


def test_what_was_streamed_before_a_cut_is_counted() -> None:
    thought = piece("", message={"role": "assistant", "content": "", "thinking": TEXT})
    call = {"function": {"name": "look", "arguments": {"a": 1}}}
    tool = piece("", message={"role": "assistant", "content": "", "tool_calls": [call]})
    reader = answer("ollama_chat", lines(thought, tool, piece("Hel"), piece("lo")) + b'{"mess')
    assert reader.usage == Usage()
    assert not reader.complete
    expected = sum(count_tokens(text) for text in (TEXT, "look", '{"a":1}', "Hello"))
    assert reader.counted_output_tokens() == expected
    generated = lines({"response": "Hel", "done": False}, {"response": "lo", "thinking": TEXT})
    expected = count_tokens("Hello") + count_tokens(TEXT)
    assert answer("ollama_generate", generated).counted_output_tokens() == expected


def test_a_whole_answer_that_was_cut_counts_as_the_text_it_is() -> None:
    body = json.dumps(piece(TEXT * 20, done=True, eval_count=100)).encode()
    reader = answer("ollama_chat", body[:-1])
    assert reader.usage == Usage()
    assert reader.counted_output_tokens() >= count_tokens(TEXT * 20)
    assert answer("ollama_chat", body).counted_output_tokens() == 100


@pytest.mark.parametrize(
    ("fields", "usage"),
    [
        # A cached prompt: left out, so not known.
        ({"eval_count": 5}, Usage(output_tokens=5)),
        ({"prompt_eval_count": 0, "eval_count": 5}, Usage(output_tokens=5)),
        ({"prompt_eval_count": 5, "eval_count": 0}, Usage(input_tokens=5)),
        ({"prompt_eval_count": -1, "eval_count": 1e400}, Usage()),
    ],
)
def test_a_count_that_is_missing_is_not_zero(fields: dict[str, Any], usage: Usage) -> None:
    assert answer("ollama_chat", lines(piece("Hi", done=True, **fields))).usage == usage


def test_nothing_produced_is_zero() -> None:
    end = piece("", done=True, prompt_eval_count=26)
    assert answer("ollama_chat", lines(end)).usage == Usage(input_tokens=26, output_tokens=0)
    for reason in ("load", "unload"):
        reader = answer(
            "ollama_generate", lines({"response": "", "done": True, "done_reason": reason})
        )
        assert reader.usage == Usage(input_tokens=0, output_tokens=0)
        assert not reader.saw_output


def test_counts_of_a_line_that_is_not_the_last_are_no_report() -> None:
    reader = answer("ollama_chat", lines(piece("Hi", prompt_eval_count=9, eval_count=9)))
    assert reader.usage == Usage()


@pytest.mark.parametrize("indent", [None, 2])
def test_errors_in_a_good_answer(indent: int | None) -> None:
    error = json.dumps({"error": "model runner has stopped"}, indent=indent).encode()
    reader = answer("ollama_chat", error)
    assert (reader.error, reader.saw_output, reader.counted_output_tokens()) == (True, False, 0)
    later = answer("ollama_chat", lines(piece("Hi")) + b'{"error":"an error was encountered"}\n')
    assert (later.error, later.saw_output, later.complete) == (True, True, False)
    page = answer("ollama_chat", b"<html>Bad gateway</html>")
    assert page.error


def embedded(**fields: object) -> AnswerReader:
    return answer("ollama_embed", {"model": "m", **fields})


def test_embeddings_have_input_only() -> None:
    reader = embedded(embeddings=[[0.1]], prompt_eval_count=8)
    assert reader.usage == Usage(input_tokens=8, output_tokens=0)
    assert reader.complete
    old = embedded(embedding=[0.1])
    assert old.usage == Usage()
    assert old.saw_output
    assert old.counted_output_tokens() == 0
    assert embedded(error="no such model").error


def test_refusals_are_worded_as_ollamas() -> None:
    assert provider_of("ollama_generate") == "ollama"
    body = error_body(CHAT, status=429, code="x", message="slow down")
    assert json.loads(body) == {"error": "slow down"}
