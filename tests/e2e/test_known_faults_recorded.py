"""ENCODE, FRAME, USAGE, ABORT: recorded answers through a real Envoy; see docs/known-faults.md."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from extproc.demo.stack import Stack
from tests.support.client import CHAT, Answer, StackClient, eventually
from tests.support.recorded_provider import CASE_HEADER, RecordedProvider, recorded_provider
from tests.unit.provider_cases import AnswerCase, answer_cases, pack

STREAM = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
_CONTENTS = {"contents": [{"role": "user", "parts": [{"text": "Say hi"}]}]}
_CONVERSE = {"messages": [{"role": "user", "content": [{"text": "Say hi"}]}]}
# How each format is asked for, so that the answer passes as it is.
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai_chat": ("/v1/chat/completions", STREAM),
    "openai_responses": ("/v1/responses", {"model": "gpt-4o", "input": "Say hi", "stream": True}),
    "openai_embeddings": ("/v1/embeddings", {"model": "m", "input": "Say hi"}),
    "anthropic_messages": ("/v1/messages", {**CHAT, "max_tokens": 100, "stream": True}),
    "gemini": ("/v1beta/models/gemini-2.5-pro:streamGenerateContent", _CONTENTS),
    "bedrock_converse": ("/model/anthropic.claude-3/converse", _CONVERSE),
    "bedrock_converse_stream": ("/model/anthropic.claude-3/converse-stream", _CONVERSE),
    "bedrock_invoke_stream": (
        "/model/anthropic.claude-3/invoke-with-response-stream",
        {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 100, "messages": []},
    ),
    "cohere_v2": ("/v2/chat", {"model": "command-r", "messages": CHAT["messages"]}),
    "ollama_chat": ("/api/chat", {"model": "llama3", "messages": CHAT["messages"]}),
}
# Transcriptions are asked for with a form, and have tests of their own.
CASES = [case for case in answer_cases() if case.wire_format in REQUESTS]
# 20 MB of zeros before a usage of 5 and 5: reading it or giving up are both right.
BOMB = "openai_json_gzip_bomb_20MB"
SERVICE = "recorded"


@pytest.fixture(scope="module")
def provider() -> Iterator[RecordedProvider]:
    with recorded_provider() as running:
        yield running


@pytest.fixture(scope="module")
def stack(provider: RecordedProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    run_dir: Path = tmp_path_factory.mktemp("recorded")
    with Stack(run_dir=run_dir, services=(SERVICE,), upstream_url=provider.url) as running:
        running.set_limits(SERVICE, rpm=1000, tpm=10_000_000)
        yield running


@pytest.fixture
def client(stack: Stack) -> Iterator[StackClient]:
    """One service for all tests, because a change of limits is a process; its books are emptied."""
    with redis.Redis.from_url(stack.redis_url, decode_responses=True) as connection:
        for key in connection.scan_iter(f"*{{{SERVICE}}}*", count=1000):
            if not key.startswith("config:"):
                connection.delete(key)
        made = StackClient(stack, SERVICE, connection)
        yield made
        made.close()


def ask(client: StackClient, name: str, body: object, path: str, **headers: str) -> Answer:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return client.post(body, path=path, headers={CASE_HEADER: name, **named})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_answer_passes_as_it_is_and_is_charged_for_what_it_says(
    client: StackClient, case: AnswerCase
) -> None:
    """B086, B088, B092: no byte and no header of its encoding is changed by a filter that reads."""
    path, body = REQUESTS[case.wire_format]
    answer = ask(client, case.name, body, path)
    assert answer.status == case.status
    assert answer.body == case.body
    assert answer.headers.get("content-encoding") == case.content_encoding
    if case.content_type is not None:
        assert answer.headers["content-type"] == case.content_type
    assert answer.headers["x-provider"] == "recorded"
    (record,) = client.settled(1)
    charged, reserved = int(record["charged"]), int(record["reserved"])
    assert client.counted("tpm") == charged
    if case.expect["usage_known"] and case.name != BOMB:
        assert charged == case.expect["input_tokens"] + case.expect["output_tokens"]
        assert record["rank"] == "3"
    elif record["outcome"] == "upstream_refused":
        assert charged == 0
    else:
        # What was read of it, or the reserve: never nothing.
        assert int(record["input"]) <= charged
        assert charged <= max(reserved, int(record["input"]) + len(case.body))


ANY = "openai_sse_usage_empty_choices_7byte_chunks"


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "deflate"])
def test_a_packed_request_is_counted_and_forwarded_as_it_is(
    client: StackClient, provider: RecordedProvider, coding: str
) -> None:
    """B089, B090: small calls worked, large ones failed."""
    for words in (1, 50_000):
        messages = [{"role": "user", "content": "word " * words}]
        packed = pack(json.dumps({**STREAM, "messages": messages}).encode(), coding)
        answer = ask(client, ANY, packed, "/v1/chat/completions", content_encoding=coding)
        assert answer.status == 200
        assert provider.received[ANY] == (packed, coding)
    inputs = sorted(int(record["input"]) for record in client.settled(2))
    assert inputs[0] < 20
    assert inputs[1] >= 50_000


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (gzip.compress(json.dumps(STREAM).encode()), {}, 400),
        (pack(json.dumps(STREAM).encode(), "zstd"), {}, 400),
        (json.dumps(STREAM).encode(), {"content_encoding": "gzip"}, 400),
        (json.dumps(STREAM).encode(), {"content_encoding": "compress"}, 415),
        (gzip.compress(b" " * 80 * 1024 * 1024), {"content_encoding": "gzip"}, 413),
        (b'{"model":"m","messages":[{"content":"\xed\xa0\x80"}]}', {}, 400),
        (b'{"model":"m","Model":"n","messages":[]}', {}, 400),
        (b"[" * 20_000 + b"]" * 20_000, {}, 400),
        (b'{"messages":"x","model":"m"}', {}, 400),
        (b'"hi"', {}, 400),
        (b" ", {}, 400),
    ],
    ids=range(11),
)
def test_what_cannot_be_read_is_refused_in_our_words_and_reaches_nobody(
    client: StackClient,
    provider: RecordedProvider,
    body: bytes,
    headers: dict[str, str],
    status: int,
) -> None:
    """B090, B091, B094, B103, B117, B118, B119: never a 500, never a hang, nothing taken."""
    provider.received.clear()
    answer = ask(client, ANY, body, "/v1/chat/completions", **headers)
    assert answer.status == status
    assert answer.json["error"]["code"]
    assert provider.received == {}
    assert client.records() == []


@pytest.mark.parametrize("name", ["lone surrogate", "byte order mark"])
def test_odd_but_valid_bytes_are_forwarded_unchanged(
    client: StackClient, provider: RecordedProvider, name: str
) -> None:
    """B093, B095."""
    body = json.dumps(STREAM).encode()
    if name == "lone surrogate":
        body = body.replace(b"Say hi", b"broken \\ud83d emoji")
    else:
        body = b"\xef\xbb\xbf" + body
    assert ask(client, ANY, body, "/v1/chat/completions").status == 200
    assert provider.received[ANY] == (body, "")
    client.settled(1)


@pytest.mark.parametrize("name", ["chat", "chat packed", "anthropic"])
def test_a_client_that_leaves_in_the_middle_of_any_stream_is_charged(
    client: StackClient, provider: RecordedProvider, name: str
) -> None:
    """B045: also where what it got was packed."""
    word = b'data: {"choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'
    if name == "anthropic":
        delta = b'{"type":"content_block_delta","index":0,"delta":{"text":" word"}}'
        word = b"event: content_block_delta\ndata: " + delta + b"\n\n"
    # A member for each piece, so that each can be read when it comes.
    pieces = [word * 511] if name != "chat packed" else [gzip.compress(word * 511)]
    wire = "anthropic_messages" if name == "anthropic" else "openai_chat"
    case = AnswerCase(
        name=name,
        wire_format=wire,
        status=200,
        content_type="text/event-stream",
        content_encoding="gzip" if name == "chat packed" else None,
        chunks=[*pieces, b": wait\n\n" if name != "chat packed" else gzip.compress(b": wait\n\n")],
        expect={},
    )
    provider.cases[name] = case
    provider.hangs.add(name)
    path, body = REQUESTS[wire]
    connection = client.connection()
    connection.request("POST", path, json.dumps(body), client.headers() | {CASE_HEADER: name})
    response = connection.getresponse()
    assert response.read(len(b"".join(case.chunks)))
    connection.close()
    (record,) = client.settled(1)
    # Anthropic's tokens are estimated 15 % above those of the text.
    assert int(record["input"]) + 511 <= int(record["charged"]) <= int(record["input"]) + 590
    eventually(lambda: client.records()[0]["outcome"] == "client_gone")
