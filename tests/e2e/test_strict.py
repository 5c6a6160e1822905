"""Strict mode: what was reserved can never be passed, however many ask at once."""

import asyncio

import aiohttp
import redis

from extproc.demo.stack import Stack
from tests.support.client import CHAT, StackClient

# 9 tokens of input and the cap.
RESERVED = 29


async def test_a_hundred_at_once_never_use_more_than_the_limit() -> None:
    environment = {
        "TOKENWEIR_ADMISSION__ESTIMATE": "strict",
        "TOKENWEIR_ADMISSION__PLATFORM_CAP_TOKENS": "20",
    }
    async with Stack(services=("svc",), serve_env=environment) as stack:
        with redis.Redis.from_url(stack.redis_url, decode_responses=True) as connection:
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
