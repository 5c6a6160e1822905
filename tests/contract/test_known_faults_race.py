"""RACE: faults that others reported about requests at the same time; see docs/known-faults.md."""

import asyncio
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from extproc.core.buckets import Unit
from extproc.core.reservations import Admitted, Rejected
from extproc.stores.batcher import RedisBatcher
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.engine import Counters, admit, asking, minute, quota, reject, slots
from tests.support.reservations import Inspector, settlement

CHECKOUT = Path(__file__).parents[2]
MICROS = {"input_price": 1_000_000}  # one for each token


@pytest.mark.parametrize(
    "case",
    [
        pytest.param((1_000_000, 10, 400_000, 2), id="1.00 for 10 of 0.40"),  # B012
        pytest.param((10, 50, 1, 10), id="10 for 50 of 1"),  # B014: who had much was trusted
    ],
)
async def test_parallel_calls_cannot_overdraw_a_budget(
    redis_url: str, counters: Counters, case: tuple[int, int, int, int]
) -> None:
    """B012 and B014: each of them saw the budget before the others had spent."""
    budget, calls, cost, admitted = case
    limit = quota("budget", Unit.COST, budget)
    batchers = [RedisBatcher(url=redis_url, timeout_ms=5000) for _ in range(4)]
    stores = [RedisReservationStore(batcher) for batcher in batchers]
    asked = (asking(limit, input_tokens=cost, cap=0, **MICROS) for _ in range(calls))
    verdicts = await asyncio.gather(
        *(stores[number % 4].reserve(one) for number, one in enumerate(asked))
    )
    assert sum(isinstance(verdict, Admitted) for verdict in verdicts) == admitted
    assert sum(isinstance(verdict, Rejected) for verdict in verdicts) == calls - admitted
    (key,) = counters.state()
    assert counters.client.hget(key, "held") == str(admitted * cost)
    for batcher in batchers:
        await batcher.close()


def test_four_processes_share_one_limit(redis_url: str, inspect: Inspector) -> None:
    """B013: a limit of 5 in each of 4 workers let all 20 requests through."""
    inspect.cache(rpm=5, tpm=100_000)
    command = [sys.executable, "-m", "tests.support.reserving_process", redis_url, "5"]
    with ExitStack() as running:
        workers = [
            running.enter_context(
                subprocess.Popen(
                    command,
                    cwd=CHECKOUT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(4)
        ]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        admitted = [int(worker.communicate(timeout=30)[0]) for worker in workers]
    assert sum(admitted) == 5
    assert inspect.used() == (5, 5 * 110)


async def test_who_finds_no_place_uses_up_no_request(
    store: RedisReservationStore, counters: Counters, inspect: Inspector, redis_client: redis.Redis
) -> None:
    """B017: refused for concurrency, and one request poorer."""
    requests, places = minute("rpm", Unit.REQUESTS, 2), slots("parallel", 1)

    def used() -> str:
        return str(redis_client.get(requests.key + inspect.minute()))

    await admit(store, requests, places, rid="a")
    assert used() == "1"
    refused = await reject(store, requests, places, rid="b")
    assert refused.refused_by == "parallel"
    assert used() == "1"
    await store.settle(settlement("a"))
    await admit(store, requests, places, rid="c")
    assert used() == "2"
