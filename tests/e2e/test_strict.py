"""Strict mode: what was reserved can never be passed, however many ask at once."""

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
import redis

from extproc.demo.stack import Stack
from tests.support.client import CHAT, StackClient
from tests.support.drift import script, settled_as_produced

# 9 tokens of input and the cap.
RESERVED = 29


PROMPT = "Tell me about the river and the old stone bridge."
MESSAGES = [{"role": "user", "content": PROMPT}]
BLOCKS = [{"role": "user", "content": [{"text": PROMPT}]}]
CONTENTS = [{"role": "user", "parts": [{"text": PROMPT}]}]
# Requests without a cap in each API that has a place for one.
UNCAPPED: list[tuple[str, dict[str, Any]]] = [
    ("/v1beta/models/gemini-2.5-flash:generateContent", {"contents": CONTENTS}),
    ("/v1beta/models/gemini-2.5-flash:streamGenerateContent", {"contents": CONTENTS}),
    ("/model/amazon.nova-lite-v1%3A0/converse", {"messages": BLOCKS}),
    ("/model/amazon.nova-lite-v1%3A0/converse-stream", {"messages": BLOCKS}),
    ("/model/amazon.nova-lite-v1%3A0/invoke", {"messages": BLOCKS}),
    ("/model/amazon.titan-text-express-v1/invoke", {"inputText": PROMPT}),
    ("/model/meta.llama3-1-8b-instruct-v1%3A0/invoke", {"prompt": PROMPT}),
    ("/v2/chat", {"model": "command-a-03-2025", "messages": MESSAGES}),
    ("/v1/chat", {"message": PROMPT, "stream": True}),
    ("/api/chat", {"model": "llama3.2", "messages": MESSAGES}),
    ("/api/generate", {"model": "llama3.2", "prompt": PROMPT, "options": {"num_predict": -1}}),
]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    environment = {
        "TOKENWEIR_ADMISSION__ESTIMATE": "strict",
        "TOKENWEIR_ADMISSION__PLATFORM_CAP_TOKENS": "20",
    }
    with Stack(services=("svc", "others"), serve_env=environment) as started:
        yield started


@pytest.fixture
def connection(stack: Stack) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(stack.redis_url, decode_responses=True) as opened:
        yield opened


async def test_a_hundred_at_once_never_use_more_than_the_limit(
    stack: Stack, connection: "redis.Redis"
) -> None:
    client = StackClient(stack, "svc", connection)
    # Room for seven and a half.
    client.limit(rpm=1000, tpm=7 * RESERVED + RESERVED // 2)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask() -> int:
            async with session.post(
                f"{stack.base_url}/v1/chat/completions",
                json=CHAT,
                # The provider would answer with 500 tokens if it were not for the cap.
                headers=client.headers("output=500;delay_ms=500;label=strict"),
            ) as response:
                await response.read()
                return response.status

        statuses = await asyncio.gather(*(ask() for _ in range(100)))
    assert statuses.count(200) == 7
    assert statuses.count(429) == 93
    client.settled(7)
    produced = [entry["output_tokens_produced"] for entry in client.journal("strict")]
    assert produced == [20] * 7
    assert client.counted("tpm") == 7 * RESERVED


def test_each_api_is_capped_in_its_own_words(stack: Stack, connection: "redis.Redis") -> None:
    client = StackClient(stack, "others", connection)
    client.limit()
    for path, body in UNCAPPED:
        answer = client.post(body, path=path, fake=script(client, "output=500")["x-fake"])
        assert answer.status == 200, (path, answer.body)
    journal = settled_as_produced(client, len(UNCAPPED))
    assert [entry.output_tokens_produced for entry in journal] == [20] * len(UNCAPPED)
