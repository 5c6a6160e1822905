"""A reply of Redis that is lost: the same call again gets the same decision, and takes nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest
import redis

from extproc.core.errors import StoreUnavailableError
from extproc.core.estimates import EstimatePlan
from extproc.core.policies import Descriptor
from extproc.core.reservations import Admitted
from extproc.core.reserving import Attempt, Reserver
from extproc.stores.batcher import RedisBatcher
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.views import Views
from tests.support.fakes import ListedLimits
from tests.support.reservations import ROOT, Inspector, request
from tests.support.tcp import tcp_server


class Losing:
    """Passes everything on to a real Valkey, and swallows the next ``lose`` of its replies."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = parts.hostname, parts.port
        self.lose = 0
        self.requests = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, to_upstream = await asyncio.open_connection(*self._address)

        async def answers() -> None:
            while data := await upstream.read(65_536):
                if self.lose > 0:
                    self.lose -= 1
                    continue
                writer.write(data)

        passing = asyncio.create_task(answers())
        while data := await reader.read(65_536):
            self.requests += 1
            to_upstream.write(data)
        to_upstream.close()
        passing.cancel()


@asynccontextmanager
async def losing(url: str) -> AsyncIterator[tuple[Losing, Reserver]]:
    proxy = Losing(url)
    async with tcp_server(proxy.handle) as port:
        batcher = RedisBatcher(url=f"redis://127.0.0.1:{port}/0", timeout_ms=300)
        try:
            store = RedisReservationStore(batcher)
            await store.ping()
            yield (
                proxy,
                Reserver(
                    store=store,
                    limits=ListedLimits(),
                    views=Views(),
                    estimate=EstimatePlan(),
                    clock=lambda: datetime.now(UTC),
                ),
            )
        finally:
            await batcher.close()


def attempt() -> Attempt:
    asked = replace(request(rid="r1"), owner="0123456789abcdef", request_hash="fedcba9876543210")
    return Attempt(asked, Descriptor(root=ROOT, values={}, requested_model="gpt-4o"))


async def test_one_lost_reply_costs_the_client_nothing(
    redis_url: str, inspect: Inspector, redis_client: redis.Redis
) -> None:
    inspect.cache(rpm=10, tpm=1000)
    async with losing(redis_url) as (proxy, reserver):
        proxy.lose = 1
        verdict = await reserver.reserve(attempt())
    assert isinstance(verdict, Admitted)
    assert inspect.used() == (1, 110)
    assert inspect.open() == 1


async def test_two_lost_replies_are_an_error_that_says_what_may_be_taken(
    redis_url: str, inspect: Inspector, redis_client: redis.Redis
) -> None:
    inspect.cache(rpm=10, tpm=1000)
    async with losing(redis_url) as (proxy, reserver):
        proxy.lose = 2
        with pytest.raises(StoreUnavailableError) as caught:
            await reserver.reserve(attempt())
    assert caught.value.maybe_applied
    assert inspect.used() == (1, 110)
