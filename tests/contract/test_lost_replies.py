"""A reply of Redis that is lost: the same call again gets the same decision, and takes nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

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
from tests.support.tcp import Losing, tcp_server


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
