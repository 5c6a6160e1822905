"""Requests: every recorded case; types and ranges name their field; counts; the asked usage."""

import base64
import gzip
import json
import time
import zlib
from typing import Any

import brotli
import pytest

from extproc.core.errors import RequestError
from extproc.providers.anthropic_requests import TOOLS_PROMPT
from extproc.providers.counting import DOCUMENT
from extproc.providers.input_factors import factor_percent
from extproc.providers.registry import read_request
from extproc.providers.requests import ReadLimits, RequestFacts, Unmetered
from extproc.providers.tokens import count_tokens, warm_up
from tests.unit.provider_cases import RequestCase, pack, request_cases

CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
)
LIMITS = ReadLimits()


def read(path: str, body: bytes | dict[str, Any], **labels: str | None) -> RequestFacts:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    facts = read_request(
        path,
        raw,
        content_type=labels.get("content_type", "application/json"),
        content_encoding=labels.get("content_encoding"),
        limits=LIMITS,
    )
    assert isinstance(facts, RequestFacts)
    return facts


def refused(path: str, body: bytes | dict[str, Any], **labels: str | None) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(path, body, **labels)
    assert caught.value.message
    return caught.value


def chat(**fields: object) -> dict[str, object]:
    return {"model": "gpt-4o", "messages": [{"role": "user", "content": "Say hi"}], **fields}


@pytest.mark.parametrize("case", request_cases(), ids=lambda case: case.name)
def test_recorded_request(case: RequestCase) -> None:
    def run() -> RequestFacts | Unmetered:
        return read_request(
            case.path,
            case.body,
            content_type=case.headers.get("content-type"),
            content_encoding=case.headers.get("content-encoding"),
            limits=LIMITS,
        )

    expect = case.expect
    if expect["must"] == "pass_through":
        assert isinstance(run(), Unmetered)
        return
    if expect["must"] == "reject_400":
        with pytest.raises(RequestError) as caught:
            run()
        assert caught.value.status in (400, 413)
        return
    warm_up()
    started = time.process_time()
    facts = run()
    assert time.process_time() - started < 0.2
    assert isinstance(facts, RequestFacts)
    assert facts.model == expect["model"]
    assert facts.stream is expect["stream"]
    extra = expect.get("extra", {})
    cap = expect["max_output_tokens"]
    if facts.wire_format != "openai_embeddings":
        assert facts.output_cap_tokens == extra.get("reserve_output_tokens", cap)
    content = extra[f"content_tokens_{facts.encoding.removesuffix('_base')}"]
    content += extra.get("tools_json_tokens_o200k", 0)
    at_most = (content + 60) * facts.factor_percent // 100
    assert content <= facts.input_tokens <= at_most


def test_chat_counts_by_the_published_rule() -> None:
    # 3 for the message, 1 for "user", 2 for the text, 3 that prime the answer.
    assert read(CHAT, chat()).input_tokens == 9
    named = [{"role": "user", "name": "Bo", "content": "Say hi"}]
    assert read(CHAT, chat(messages=named)).input_tokens == 9 + 1 + count_tokens("Bo")
    assert read(CHAT, chat(messages=[])).input_tokens == 3


def test_tools_and_schemas_count_as_compact_json() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    compact = json.dumps(schema, separators=(",", ":"))
    assert read(CHAT, chat(response_format=schema)).input_tokens == 9 + count_tokens(compact)
    tools = [{"type": "function", "function": {"name": "look"}}]
    compact = json.dumps(tools, separators=(",", ":"))
    assert read(CHAT, chat(tools=tools)).input_tokens == 9 + count_tokens(compact)


def test_media_count_flat_and_their_base64_never_as_text() -> None:
    blob = base64.b64encode(bytes(range(256)) * 4000).decode()

    def cost(part: dict[str, Any]) -> int:
        base = read(CHAT, chat(messages=[{"role": "user", "content": []}])).input_tokens
        return read(CHAT, chat(messages=[{"role": "user", "content": [part]}])).input_tokens - base

    url = f"data:image/png;base64,{blob}"
    assert cost({"type": "image_url", "image_url": {"url": url}}) == 765
    low: dict[str, Any] = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    assert cost(low) == 85
    assert cost({"type": "file", "file": {"file_data": blob}}) == DOCUMENT
    audio: dict[str, Any] = {"type": "input_audio", "input_audio": {"data": blob, "format": "wav"}}
    # A megabyte of 16-bit PCM is at most 64 seconds at 8 kHz, 10 tokens each.
    assert 600 <= cost(audio) <= 700


def test_anthropic_counts_system_tools_results_and_pictures() -> None:
    def cost(**fields: object) -> int:
        body = {"model": "claude-sonnet-4-5", "max_tokens": 5, "messages": [], **fields}
        return read(MESSAGES, body).input_tokens

    def scaled(tokens: int) -> int:
        return -(-tokens * 115 // 100)

    text = "result " * 100
    assert cost(system=text) == scaled(count_tokens(text))
    assert cost(system=[{"type": "text", "text": text}]) == scaled(count_tokens(text))
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    compact = json.dumps(tools, separators=(",", ":"))
    assert cost(tools=tools) == scaled(count_tokens(compact)) + TOOLS_PROMPT
    nested = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [{"type": "text", "text": text}],
    }
    result = [{"role": "user", "content": [nested]}]
    assert cost(messages=result) == scaled(count_tokens(text) + 4)
    source = {"type": "base64", "data": "A" * 1_000_000, "media_type": "image/png"}
    picture = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    # The factor is one between tokenizers; a picture is not text.
    assert cost(messages=picture) == scaled(4) + 1568


def test_anthropic_factor_follows_the_model() -> None:
    old = ("claude-sonnet-4-5", "claude-opus-4-20250514", "claude-3-5-haiku-latest", "x")
    assert [factor_percent("anthropic", model) for model in old] == [115] * 4
    assert factor_percent("anthropic", "anthropic/claude-opus-4.7") == 150
    assert factor_percent("anthropic", "claude-sonnet-5") == 150
    assert factor_percent("bedrock", "us.anthropic.claude-opus-4-8-v1:0") == 150
    assert factor_percent("bedrock", "arn:aws:bedrock:x:1:application-inference-profile/a") == 115
    assert factor_percent("bedrock", "openai.gpt-oss-120b-1:0") == 100


def test_claude_behind_openais_api_is_scaled_as_claude() -> None:
    messages = [{"role": "user", "content": "word " * 100}]
    plain, old, new = (
        read(CHAT, {"model": model, "messages": messages})
        for model in ("gpt-4o", "anthropic/claude-sonnet-4.5", "anthropic/claude-opus-4.8")
    )
    assert (plain.factor_percent, old.factor_percent, new.factor_percent) == (100, 115, 150)
    assert old.input_tokens == -(-plain.input_tokens * 115 // 100)
    assert new.input_tokens == -(-plain.input_tokens * 150 // 100)


def test_embeddings_and_completions_take_all_four_kinds_of_input() -> None:
    for path, name in ((EMBEDDINGS, "input"), (COMPLETIONS, "prompt")):

        def cost(value: object, path: str = path, name: str = name) -> int:
            return read(path, {"model": "text-embedding-3-small", name: value}).input_tokens

        assert cost("hello world") == 2
        assert cost(["hello world", "good morning"]) == 4
        assert cost([1, 2, 3]) == 3
        assert cost([[1, 2, 3], [4, 5]]) == 5
        for wrong in (5, {"a": 1}, [1, "a"], [[1], "a"], [[1, "a"]], [-1], [True], [1.5], [None]):
            error = refused(path, {"model": "m", name: wrong})
            assert (error.status, error.param or "") >= (400, name)
            assert str(error.param).startswith(name)
    assert refused(EMBEDDINGS, {"model": "m"}).param == "input"
    assert read(EMBEDDINGS, {"model": "m", "input": "x"}).output_cap_tokens == 0


def test_completions_reserve_for_every_prompt_and_the_larger_of_n_and_best_of() -> None:
    body = {"model": "m", "prompt": ["a", "b"], "n": 2, "best_of": 3, "max_tokens": 10}
    facts = read(COMPLETIONS, body)
    assert (facts.choices, facts.output_cap_tokens) == (6, 60)


@pytest.mark.parametrize("value", [0, -1, 1.0, 1.5, "100", True, False, [], {}, 2**31, 10**29])
@pytest.mark.parametrize(
    ("path", "name"),
    [
        (CHAT, "max_tokens"),
        (CHAT, "max_completion_tokens"),
        (CHAT, "n"),
        (COMPLETIONS, "max_tokens"),
        (COMPLETIONS, "best_of"),
        (MESSAGES, "max_tokens"),
    ],
)
def test_a_cap_that_is_no_positive_integer_is_refused_by_name(
    path: str, name: str, value: object
) -> None:
    error = refused(path, chat(prompt="x", **{name: value}))
    assert (error.status, error.param) == (400, name)
    assert f"'{name}'" in error.message


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"model": None}, "model"),
        (CHAT, {"model": 5}, "model"),
        (CHAT, {"model": " "}, "model"),
        (CHAT, {"model": "\ud83d"}, "model"),
        (CHAT, {"model": "x" * 257}, "model"),
        (CHAT, {"messages": None}, "messages"),
        (CHAT, {"messages": {"role": "user"}}, "messages"),
        (CHAT, {"messages": [{}, "x"]}, "messages[1]"),
        (CHAT, {"stream": "true"}, "stream"),
        (CHAT, {"stream": 1}, "stream"),
        (CHAT, {"stream_options": True}, "stream_options"),
        (CHAT, {"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        (CHAT, {"tools": {}}, "tools"),
        (CHAT, {"response_format": "json"}, "response_format"),
        (CHAT, {"n": 129}, "n"),
        (COMPLETIONS, {"prompt": 7}, "prompt"),
        (COMPLETIONS, {"suffix": 7}, "suffix"),
        (MESSAGES, {"system": 5}, "system"),
        (MESSAGES, {"messages": [None]}, "messages[0]"),
        (MESSAGES, {"tools": "x"}, "tools"),
    ],
)
def test_a_wrong_type_is_refused_by_name(path: str, fields: dict[str, Any], param: str) -> None:
    error = refused(path, chat() | fields)
    assert (error.status, error.param) == (400, param)


def test_null_means_absent() -> None:
    nulls = dict.fromkeys(("max_tokens", "n", "stream", "tools", "stream_options", "functions"))
    facts = read(CHAT, chat(**nulls))
    assert (facts.output_cap_tokens, facts.choices, facts.stream) == (None, 1, False)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b'{"model":"a","model":"a"}', "duplicate_key", "model"),
        (b'{"model":"a","m\\u006fdel":"a"}', "duplicate_key", "model"),
        (b'{"x":[{"y":{"z":1,"z":2}}]}', "duplicate_key", "z"),
        (b'{"\\ud83d":1,"\\ud83d":2}', "duplicate_key", "?"),
        (b'{"temperature":NaN}', "invalid_number", "temperature"),
        (b'{"x":[-Infinity]}', "invalid_number", "x"),
        (b'{"x":1e999}', "invalid_number", "x"),
        (b'{"max_tokens":%s}' % (b"9" * 31), "invalid_number", "max_tokens"),
        (b'{"max_tokens":-%s}' % (b"9" * 5000), "invalid_number", "max_tokens"),
        (b'{"x":' + b"[" * 100 + b"]" * 100 + b"}", "nested_too_deeply", None),
        (b'{"x":' + b"[" * 200_000, "nested_too_deeply", None),
        (b"\xff{}", "invalid_json", None),
        ('{"model":"x"}'.encode("utf-16"), "invalid_json", None),
        (b"", "empty_body", None),
        (b"\xef\xbb\xbf \n", "empty_body", None),
        (b"[]", "invalid_json", None),
        (b"null", "invalid_json", None),
        (b'{"a":1} {"b":2}', "invalid_json", None),
        (b"{'a':1}", "invalid_json", None),
        (gzip.compress(b"{}", mtime=0), "invalid_json", None),
    ],
)
def test_a_body_that_two_readers_could_read_differently_is_refused(
    body: bytes, code: str, param: str | None
) -> None:
    error = refused(CHAT, body)
    assert error.status == 400
    assert error.code == code
    if param != "x":
        assert error.param == param
    error.message.encode()
    (error.param or "").encode()


def test_bodies_at_the_depth_limit_and_with_long_digit_strings_are_read() -> None:
    nested: object = "x"
    for _ in range(95):
        nested = [nested]
    messages = [{"role": "user", "content": nested}, {"role": "user", "content": "1" * 5000}]
    assert read(CHAT, chat(messages=messages)).input_tokens > 1000
    assert read(CHAT, chat(seed=10**29, top_p=0.1000000000000000055511151231257827)).model


@pytest.mark.parametrize(
    ("name", "encode"),
    [
        ("gzip", gzip.compress),
        ("X-GZIP", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda body: zlib.compress(body)[2:-4]),
        ("identity", bytes),
        ("identity, GZIP ,", gzip.compress),
        ("br", brotli.compress),
        ("zstd", lambda body: pack(body, "zstd")),
    ],
)
def test_compressed_requests_are_counted(name: str, encode: Any) -> None:
    body = json.dumps(chat()).encode()
    assert read(CHAT, encode(body), content_encoding=name).input_tokens == 9


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("br", b"{}", 400),
        ("br", brotli.compress(b'{"a":1}')[:-1], 400),
        ("br", brotli.compress(b'{"a":1}') + b"x", 400),
        ("br", brotli.compress(b"[" * 40_000_000, quality=1), 413),
        ("zstd", b"\x28\xb5\x2f\xfd", 400),
        ("zstd", b"{}", 400),
        ("zstd", pack(b'{"a":1}', "zstd")[:-1], 400),
        ("zstd", pack(b"[" * 40_000_000, "zstd"), 413),
        ("compress", b"", 415),
        ("gzip, gzip", b"", 415),
        ("zstd, br", b"", 415),
        ("gzip", b"{}", 400),
        ("gzip", gzip.compress(b'{"a":1}', mtime=0)[:-9], 400),
        ("deflate", b"\xff\xff", 400),
        ("gzip", gzip.compress(b"[" * 40_000_000, mtime=0), 413),
        (None, b" " * (LIMITS.max_decoded_bytes + 1), 413),
    ],
)
def test_a_coding_that_cannot_be_undone_is_refused(
    name: str | None, body: bytes, status: int
) -> None:
    assert refused(CHAT, body, content_encoding=name).status == status


@pytest.mark.parametrize(
    ("content_type", "accepted"),
    [
        (None, True),
        ("text/plain", True),
        ("Application/JSON; Charset=UTF-8", True),
        ('application/json; charset="utf-8"', True),
        ("application/json;charset=ISO-8859-1", True),
        ("application/json; charset=utf-7", False),
        ("application/json; charset=utf-16", False),
    ],
)
def test_labels_do_not_decide_but_another_charset_is_refused(
    content_type: str | None, *, accepted: bool
) -> None:
    if accepted:
        assert read(CHAT, chat(), content_type=content_type).input_tokens == 9
    else:
        assert refused(CHAT, chat(), content_type=content_type).status == 415
