"""The local view through Envoy: two server processes, one hot service, and the books."""

import asyncio
from collections.abc import Iterator

import aiohttp
import pytest
import redis

from extproc.demo.stack import Stack
from extproc.stores import keys
from tests.support.client import CHAT, StackClient, eventually
from tests.support.drift import drift_of, journal_of

REQUESTS = 300


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    environment = {
        "TOKENWEIR_LOCAL_VIEW__ENABLED": "true",
        "TOKENWEIR_LOCAL_VIEW__HOT_REQUESTS_PER_SECOND": "5",
    }
    with Stack(services=("hot",), serve_env=environment, workers=2) as started:
        yield started


def test_a_hot_service_is_metered_to_the_token(stack: Stack) -> None:
    """Whichever worker settles: the one that admitted, or another, which may be first."""
    with redis.Redis.from_url(stack.redis_url, decode_responses=True) as connection:
        client = StackClient(stack, "hot", connection)
        client.limit(rpm=1_000_000, tpm=100_000_000)

        async def ask(session: aiohttp.ClientSession, number: int) -> int:
            # Some are refused by the provider, and some answers come at once.
            fake = "label=hot;status=500" if number % 10 == 0 else "label=hot;output=12"
            async with session.post(
                f"{stack.base_url}/v1/chat/completions", json=CHAT, headers=client.headers(fake)
            ) as response:
                await response.read()
                return response.status

        async def ask_all() -> list[int]:
            statuses: list[int] = []
            async with aiohttp.ClientSession() as session:
                for start in range(0, REQUESTS, 10):
                    some = (ask(session, number) for number in range(start, start + 10))
                    statuses += await asyncio.gather(*some)
            return statuses

        statuses = asyncio.run(ask_all())
        assert statuses.count(200) == REQUESTS * 9 // 10
        eventually(lambda: connection.zcard(keys.pending("hot")) == 0)
        assert client.counted("rpm") == REQUESTS
        assert drift_of(client) == 0
        assert len(journal_of(client)) == REQUESTS
        names = connection.scan_iter(match=keys.reservation_prefix("hot") + "*")
        records = [connection.hgetall(name) for name in names]
        local = sum("from" in record for record in records)
        assert local > REQUESTS // 4
