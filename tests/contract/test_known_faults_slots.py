"""SLOT: the fault that others reported about places; see docs/known-faults.md."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from extproc.core.buckets import Unit
from extproc.core.settler import Settler
from extproc.envoy_io.metering import Metering
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.engine import Counters, admit, minute, slots
from tests.support.fakes import RecordingTelemetry
from tests.support.gateway import answer_messages, handle_of
from tests.support.reservations import settlement
from tests.support.streams import MemoryContext
from tests.support.tcp import Losing, tcp_server

PLACES = slots("parallel", 2)
WORD = b'data: {"choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancel_while_the_place_is_given_back_leaks_nothing(
    store: RedisReservationStore, counters: Counters, turns: int
) -> None:
    """B042, first cause: the cancel that ended the stream aborted the release too."""
    await admit(store, PLACES, rid="r1")
    settler = Settler(store, RecordingTelemetry())
    metering = Metering(settler, RecordingTelemetry(), is_stopping=lambda: False)
    messages = answer_messages(handle_of("r1", reserved_tokens=110), [WORD], is_cut=True)
    context: Any = MemoryContext(messages, half_close=False)
    task = asyncio.create_task(metering.process(context))
    async with asyncio.timeout(5):
        await context.idle.wait()
    task.cancel()
    # From before the call is written to after Redis has answered.
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert await settler.flush(timeout_seconds=5) == 0
    assert counters.state() == {}
    assert counters.client.zcard(keys.pending("svc-1")) == 0


async def test_a_timeout_of_the_release_is_not_swallowed(
    redis_url: str, store: RedisReservationStore, counters: Counters
) -> None:
    """B042, second cause. First the call is lost before Redis sees it, then a reply."""
    await admit(store, PLACES, rid="r1")
    proxy = Losing(redis_url)
    async with tcp_server(proxy.handle) as port:
        batcher = RedisBatcher(url=f"redis://127.0.0.1:{port}/0", timeout_ms=150)
        through = RedisReservationStore(batcher)
        await through.ping()
        proxy.lose_requests, proxy.lose = 1, 1
        settler = Settler(through, RecordingTelemetry())
        settler.submit(settlement("r1"))
        assert await settler.flush(timeout_seconds=10) == 0
        await batcher.close()
    assert (proxy.lose_requests, proxy.lose) == (0, 0)
    assert counters.state() == {}


async def test_a_leak_ages_however_busy_the_limit_is(
    store: RedisReservationStore, counters: Counters
) -> None:
    """B042, third cause: each new request gave the whole counter a new life, the leak with it."""
    # The other limit keeps every call from being one of places only.
    limits = PLACES, minute("rpm", Unit.REQUESTS, 100)
    await admit(store, *limits, rid="leak", deadline_ms=10_000)
    for number in range(4):
        await admit(store, *limits, rid=f"r{number}", deadline_ms=10_000)
        assert counters.client.zscore(PLACES.key, "leak") is not None
        await store.settle(settlement(f"r{number}"))
        counters.age(PLACES.key, 2_400)
    assert counters.state()[PLACES.key] == ["leak"]
    counters.age(PLACES.key, 2_400)
    await admit(store, *limits, rid="last")
    assert counters.state()[PLACES.key] == ["last"]
    await store.settle(settlement("last"))
    assert PLACES.key not in counters.state()
    assert counters.without_ttl() == []
