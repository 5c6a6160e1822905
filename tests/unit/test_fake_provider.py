"""The fake provider, seen by the official SDKs and byte by byte."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from extproc.demo.fake_provider import FakeProvider, start_fake_provider
from extproc.demo.fake_tokens import WORDS, chat_input_tokens, vocabulary, words
from extproc.demo.provider_script import Script, ScriptError, parse_script

MESSAGES: Any = [{"role": "user", "content": "Tell me about the river."}]
CHAT: dict[str, Any] = {"model": "gpt-4o", "messages": MESSAGES}


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    started = await start_fake_provider()
    yield started
    await started.stop()


@pytest.fixture
async def client(provider: FakeProvider) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{provider.url}/v1", api_key="k", max_retries=0
    ) as openai_client:
        yield openai_client


@pytest.fixture
async def claude(provider: FakeProvider) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=provider.url, api_key="k", max_retries=0
    ) as anthropic_client:
        yield anthropic_client


def fake(script: str) -> dict[str, str]:
    return {"x-fake": script}


async def post(
    provider: FakeProvider, body: dict[str, Any], script: str, path: str = "/v1/chat/completions"
) -> bytes:
    async with (
        aiohttp.ClientSession() as session,
        session.post(provider.url + path, json=body, headers=fake(script)) as response,
    ):
        return await response.read()


async def journal_when(provider: FakeProvider, ending: str) -> Any:
    """The last journal entry, once it has ended as said."""
    deadline = asyncio.get_running_loop().time() + 5
    while not provider.journal or provider.journal[-1].ending != ending:
        assert asyncio.get_running_loop().time() < deadline, provider.journal
        await asyncio.sleep(0.005)
    return provider.journal[-1]


def events(raw: bytes) -> list[Any]:
    """The JSON of every data line, [DONE] as that word."""
    lines = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ")]
    return ["[DONE]" if line == b"[DONE]" else json.loads(line) for line in lines]


@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
def test_every_word_is_one_token_alone_and_in_any_sequence(encoding: str) -> None:
    vocab = vocabulary(encoding)
    assert all(len(vocab.encode(f" {word}")) == 1 for word in WORDS)
    for start in range(len(WORDS)):
        assert len(vocab.encode("".join(words(97, start=start)))) == 97


def test_chat_input_follows_the_published_rule() -> None:
    # 3 for the reply, 3 for the message, one each for "user", "hello" and " world".
    body = {"messages": [{"role": "user", "content": "hello world"}]}
    assert chat_input_tokens(body, "o200k_base") == 9


def test_a_script_is_read_and_a_wrong_one_is_refused() -> None:
    script = parse_script("output=5; usage=late;chunk=1,7 ;reset=before_headers;label=a-b")
    assert script == Script(
        output=5, usage="late", chunk=(1, 7), reset="before_headers", label="a-b"
    )
    assert parse_script(None) == Script()
    for wrong in ("outputs=5", "output=-1", "output", "usage=some", "chunk=0", "reset=later"):
        with pytest.raises(ScriptError):
            parse_script(wrong)


async def test_plain_chat_for_the_sdk(provider: FakeProvider, client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="gpt-4o", messages=MESSAGES, n=2, extra_headers=fake("output=7;cached=4")
    )
    assert [len((c.message.content or "").split()) for c in answer.choices] == [7, 7]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 14
    assert answer.usage.prompt_tokens == chat_input_tokens(CHAT, "o200k_base")
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    entry = provider.journal[-1]
    assert (entry.output_tokens_produced, entry.status, entry.ending) == (14, 200, "finished")
    assert entry.usage_sent


async def test_the_clients_own_cap_wins(client: openai.AsyncOpenAI) -> None:
    chat = await client.chat.completions.create(
        model="gpt-4o", messages=MESSAGES, max_completion_tokens=3, max_tokens=9
    )
    assert (chat.choices[0].message.content or "").split() == list(WORDS[:3])
    assert chat.choices[0].finish_reason == "length"
    text = await client.completions.create(model="gpt-4o", prompt=["a", "b c"], max_tokens=2)
    assert text.usage is not None
    assert (text.usage.prompt_tokens, text.usage.completion_tokens) == (3, 2)


@pytest.mark.parametrize("asked", [True, False])
async def test_a_usage_chunk_only_for_who_asks(client: openai.AsyncOpenAI, *, asked: bool) -> None:
    options: Any = {"stream_options": {"include_usage": True}} if asked else {}
    stream = await client.chat.completions.create(
        model="gpt-4o", messages=MESSAGES, stream=True, extra_headers=fake("output=4"), **options
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text.split() == list(WORDS[:4])
    totals = [c.usage.completion_tokens for c in chunks if c.usage is not None]
    assert totals == ([4] if asked else [])


async def test_anthropic_for_the_sdk(
    provider: FakeProvider, claude: anthropic.AsyncAnthropic
) -> None:
    plain = await claude.messages.create(
        model="claude-opus-4-8", max_tokens=5, messages=MESSAGES, system="Be brief."
    )
    assert plain.usage.output_tokens == 5
    assert plain.stop_reason == "max_tokens"
    async with claude.messages.stream(
        model="claude-opus-4-8",
        max_tokens=50,
        messages=MESSAGES,
        extra_headers=fake("output=6;cached=2"),
    ) as stream:
        final = await stream.get_final_message()
    assert final.content[0].type == "text"
    assert final.content[0].text.split() == list(WORDS[:6])
    assert final.usage.output_tokens == 6
    assert final.usage.input_tokens + 2 == provider.journal[-1].input_tokens
    assert final.usage.cache_read_input_tokens == 2


async def test_anthropic_events_come_in_the_documented_order(provider: FakeProvider) -> None:
    body = {"model": "c", "max_tokens": 2, "messages": MESSAGES, "stream": True}
    raw = await post(provider, body, "", "/v1/messages")
    assert [event["type"] for event in events(raw)] == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


async def test_embeddings_for_the_sdk(client: openai.AsyncOpenAI) -> None:
    answer = await client.embeddings.create(
        model="text-embedding-3-small",
        input=["hello world", "good morning"],
        encoding_format="float",
    )
    assert [item.index for item in answer.data] == [0, 1]
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (4, 4)


@pytest.mark.parametrize(
    ("mode", "reports"),
    [
        ("normal", [3]),
        ("none", []),
        ("null", []),
        ("zero", [0]),
        ("late", [3]),
        ("in_choice", []),
        ("every_chunk", [0, 1, 2, 3, 3]),
    ],
)
async def test_usage_modes_of_a_stream(
    provider: FakeProvider, mode: str, reports: list[int]
) -> None:
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    seen = events(await post(provider, body, f"usage={mode};output=3"))
    usages = [e["usage"] for e in seen if e != "[DONE]" and e.get("usage")]
    if mode == "every_chunk":
        assert len(usages) == len(seen) - 1
    assert sorted({u["completion_tokens"] for u in usages}) == sorted(set(reports))
    assert (seen[-1] == "[DONE]") is (mode != "late")
    in_choices = [c["usage"] for e in seen if e != "[DONE]" for c in e["choices"] if "usage" in c]
    assert len(in_choices) == (mode == "in_choice")
    assert provider.journal[-1].usage_sent is (mode not in ("none", "null"))


async def test_errors_have_the_providers_shape(
    client: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    with pytest.raises(openai.RateLimitError) as limited:
        await client.chat.completions.create(
            model="m", messages=MESSAGES, extra_headers=fake("status=429;retry_after=7")
        )
    assert limited.value.response.headers["retry-after"] == "7"
    assert limited.value.code == "rate_limit_exceeded"
    with pytest.raises(anthropic.InternalServerError) as broken:
        await claude.messages.create(
            model="c", max_tokens=1, messages=MESSAGES, extra_headers=fake("status=500")
        )
    assert isinstance(broken.value.body, dict)
    assert broken.value.body["error"]["type"] == "api_error"
    with pytest.raises(openai.BadRequestError) as wrong:
        await client.chat.completions.create(model="m", messages=[])
    assert wrong.value.param == "messages"


async def test_bytes_are_the_same_however_they_are_cut(provider: FakeProvider) -> None:
    body = {**CHAT, "stream": True}
    whole = await post(provider, body, "output=5")
    cut = await post(provider, body, "output=5;chunk=1,40,3")
    assert [e if e == "[DONE]" else e["choices"] for e in events(cut)] == [
        e if e == "[DONE]" else e["choices"] for e in events(whole)
    ]
    assert provider.journal[-1].output_tokens_produced == 5


async def test_a_break_leaves_exactly_the_chunks_before_it(provider: FakeProvider) -> None:
    received = b""

    async def read_all() -> None:
        nonlocal received
        url = f"{provider.url}/v1/chat/completions"
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                url, json={**CHAT, "stream": True}, headers=fake("output=9;break_after=4")
            ) as response,
        ):
            async for data in response.content.iter_any():
                received += data

    with pytest.raises(aiohttp.ClientPayloadError):
        await read_all()
    texts = [e["choices"][0]["delta"]["content"] for e in events(received)]
    assert "".join(texts).split() == list(WORDS[:4])
    entry = await journal_when(provider, "broken")
    assert entry.output_tokens_produced == 4


async def test_a_hang_ends_when_the_client_leaves(provider: FakeProvider) -> None:
    async with aiohttp.ClientSession() as session:
        response = await session.post(
            f"{provider.url}/v1/chat/completions",
            json={**CHAT, "stream": True},
            headers=fake("output=9;hang_after=3;label=leaver"),
        )
        seen = 0
        async for line in response.content:
            seen += b'"content":" ' in line
            if seen == 3:
                break
        assert provider.journal[-1].ending == "open"
        response.close()
    entry = await journal_when(provider, "client_gone")
    assert (entry.output_tokens_produced, entry.label) == (3, "leaver")


async def test_a_reset_comes_before_any_header(provider: FakeProvider) -> None:
    body = json.dumps(CHAT).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-fake: reset=before_headers\r\n"
        b"content-length: %d\r\n\r\n" % len(body)
    )
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", provider.port)) as connection:
        connection.settimeout(0)
        await loop.sock_sendall(connection, head + body)
        with pytest.raises(ConnectionResetError):
            await loop.sock_recv(connection, 1)
    assert (await journal_when(provider, "broken")).status == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_an_error_event_ends_a_stream(provider: FakeProvider, path: str) -> None:
    body = {**CHAT, "stream": True, "max_tokens": 9}
    seen = events(await post(provider, body, "output=9;error_event_after=2", path))
    assert "error" in seen[-1]
    assert provider.journal[-1].output_tokens_produced == 2


async def test_an_answer_that_is_only_an_error_is_not_billed(provider: FakeProvider) -> None:
    for stream in (False, True):
        raw = await post(provider, {**CHAT, "stream": stream}, "error_event_after=0;usage=none")
        assert b'"error"' in raw
        entry = provider.journal[-1]
        assert (entry.status, entry.input_tokens, entry.output_tokens_produced) == (200, 0, 0)


async def test_a_gate_holds_answers_back_until_it_is_opened(provider: FakeProvider) -> None:
    waiting = [asyncio.create_task(post(provider, CHAT, "gate=noon;label=held")) for _ in range(2)]
    while len(provider.journal) < 2:
        await asyncio.sleep(0.01)
    for _ in range(3):  # others pass meanwhile
        await post(provider, CHAT, "label=passes")
    endings = {(entry.label, entry.ending) for entry in provider.journal}
    assert endings == {("held", "open"), ("passes", "finished")}
    async with aiohttp.ClientSession(provider.url) as session:
        assert (await session.post("/_fake/gates/noon")).status == 204
    assert all(b"usage" in answer for answer in await asyncio.gather(*waiting))
    assert b"usage" in await post(provider, CHAT, "gate=noon")


async def test_the_journal_is_served_and_emptied(provider: FakeProvider) -> None:
    await post(provider, CHAT, "output=2;label=one")
    async with aiohttp.ClientSession(provider.url) as session:
        async with session.get("/_fake/journal") as response:
            (entry,) = await response.json()
        assert (entry["label"], entry["output_tokens_produced"]) == ("one", 2)
        assert (entry["path"], entry["model"]) == ("/v1/chat/completions", "gpt-4o")
        await session.delete("/_fake/journal")
        async with session.get("/_fake/journal") as response:
            assert await response.json() == []
        async with session.get("/_fake/health") as response:
            assert response.status == 200
