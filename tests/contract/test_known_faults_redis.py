"""REDIS: faults that others reported about Redis and its drivers; see docs/known-faults.md."""

import asyncio

import pytest
import redis

from extproc.core.errors import StoreUnavailableError
from extproc.core.reservations import Admitted
from extproc.stores.batcher import RedisBatcher
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.reservations import Inspector, request, settlement
from tests.support.tcp import Losing, tcp_server


async def test_a_flush_of_the_scripts_between_reserve_and_settle_is_not_noticed(
    store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis
) -> None:
    """B141: NOSCRIPT. Charged once, also where several settle at the same moment."""
    inspect.cache(rpm=100, tpm=100_000)
    for number in range(10):
        verdict = await store.reserve(request(rid=f"r{number}"))
        assert isinstance(verdict, Admitted)
    redis_client.script_flush()
    ends = (store.settle(settlement(f"r{number % 10}", 10, 5)) for number in range(20))
    await asyncio.gather(*ends)
    assert inspect.used() == (10, 10 * 15)
    assert inspect.open() == 0


async def test_the_driver_sends_nothing_twice_by_itself(
    redis_url: str, redis_client: redis.Redis
) -> None:
    """B149 and B034: INCR timed out, was sent again, and had run: 3 instead of 2."""
    redis_client.set("n", 1)
    proxy = Losing(redis_url)
    async with tcp_server(proxy.handle) as port:
        batcher = RedisBatcher(url=f"redis://127.0.0.1:{port}/0", timeout_ms=150)
        await batcher.ping()
        before, proxy.lose = proxy.requests, 1
        with pytest.raises(StoreUnavailableError) as caught:
            await batcher.command("INCR", "n")
        assert caught.value.maybe_applied
        # Whatever were sent again would come before this.
        assert await batcher.command("GET", "n") == "2"
        await batcher.close()
    assert proxy.requests == before + 2
