"""IDEMP: faults that others reported about what comes twice; see docs/known-faults.md."""

import json
from dataclasses import replace

import redis

from extproc.core.buckets import Unit
from extproc.core.outcomes import settle_ending
from extproc.core.reservations import Outcome, SettleStatus, State
from extproc.core.settler import Settler
from extproc.stores.batcher import RedisBatcher
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.engine import Counters, admit, quota
from tests.support.fakes import RecordingTelemetry
from tests.support.gateway import Gateway, handle_of
from tests.support.reservations import Inspector, request, settlement
from tests.support.tcp import Losing, tcp_server

TEN = 10_000_000
MICROS = {"input_price": 1_000_000}  # one for each token


async def test_a_second_settlement_refunds_nothing(
    store: RedisReservationStore, counters: Counters, inspect: Inspector
) -> None:
    """B036: 10.00 - 2.20, real cost 0.55: 9.45 after the first and 11.65 after the second."""
    limit = quota("balance", Unit.COST, TEN)
    today = inspect.minute()[:8]

    def balance() -> int:
        found = counters.quota(limit, today)
        assert found is not None
        return TEN - sum(found)

    await admit(store, limit, rid="r1", input_tokens=2_200_000, cap=0, **MICROS)
    assert balance() == 7_800_000
    for status in (SettleStatus.APPLIED, SettleStatus.NOOP):
        assert (await store.settle(settlement("r1", 550_000, 0))).status is status
        assert balance() == 9_450_000


async def test_a_refund_that_is_tried_four_times_is_one_refund(
    redis_url: str, store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis
) -> None:
    """B037: it failed between the refund and the mark that says so, three times. Here both are one
    script, so the failure can only be that of its reply."""
    inspect.cache(rpm=10, tpm=1000)
    for rid in ("r1", "r2", "r3"):
        await store.reserve(request(rid=rid))
    proxy = Losing(redis_url)
    async with tcp_server(proxy.handle) as port:
        batcher = RedisBatcher(url=f"redis://127.0.0.1:{port}/0", timeout_ms=150)
        through = RedisReservationStore(batcher)
        await through.ping()
        proxy.lose = 3
        before = proxy.requests
        settler = Settler(through, RecordingTelemetry())
        settler.submit(replace(settlement("r1", 0, 0), state=State.RELEASED))
        assert await settler.flush(timeout_seconds=10) == 0
        await batcher.close()
    assert (proxy.lose, proxy.requests) == (0, before + 4)
    assert inspect.used() == (3, 2 * 110)
    assert inspect.open() == 2


async def test_usage_and_the_end_of_the_stream_are_one_deduction(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    """B040: 10 and 20 were deducted by the usage chunk, and again by the callback at the end."""
    inspect.cache(rpm=10, tpm=1000)
    await store.reserve(request(rid="r1"))
    gateway, handle = Gateway(store), handle_of("r1", reserved_tokens=110)
    usage = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}
    chunk = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    await gateway.answer(handle, [chunk, b"data: [DONE]\n\n", b""])
    assert inspect.used() == (1, 30)
    # The access log entry, as if Envoy had not been told that metering settles.
    gateway.settler.submit(settle_ending(handle, Outcome.COMPLETE_ESTIMATED))
    await gateway.flush()
    await gateway.answer(handle, [chunk, b"data: [DONE]\n\n", b""])
    assert inspect.used() == (1, 30)
    gateway.close()
