"""Learned factors in Redis: shared by workers, bounded, and never in the way."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import redis

from extproc.control.metrics import Metrics
from extproc.core.learned_factors import MAX_MODELS, LearnedFactors
from extproc.jobs.factor_exchange import FactorExchange
from extproc.stores.client import RedisClient, open_client
from extproc.stores.factor_store import RedisFactorStore

KEY = "factors:input"
GPT = ("openai", "gpt-4o")


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[RedisClient]:
    opened = open_client(url=redis_url, cluster=False, timeout_ms=2000)
    yield opened
    await opened.close()


def taught(ratio: float, *, answers: int) -> LearnedFactors:
    learned = LearnedFactors()
    for _ in range(answers):
        learned.learn(*GPT, estimated=1000, actual=round(1000 * ratio))
    return learned


def exchange(learned: LearnedFactors, client: RedisClient, metrics: Metrics) -> FactorExchange:
    return FactorExchange(learned, RedisFactorStore(client), metrics.input_factor)


async def test_what_one_worker_learned_the_next_starts_with(
    client: RedisClient, redis_client: redis.Redis
) -> None:
    metrics = Metrics()
    await exchange(taught(1.4, answers=500), client, metrics).exchange()
    assert 0 < redis_client.ttl(KEY) <= 30 * 86_400
    later = LearnedFactors()
    await exchange(later, client, metrics).exchange()
    assert later.permille(*GPT) == 1400
    labels = {"provider": "openai", "model": "gpt-4o"}
    assert metrics.registry.get_sample_value("tokenweir_input_factor", labels) == 1.4


async def test_two_workers_come_to_one_factor(client: RedisClient) -> None:
    metrics = Metrics()
    one, two = taught(1.4, answers=100), taught(1.2, answers=100)
    for _ in range(2):
        await exchange(one, client, metrics).exchange()
        await exchange(two, client, metrics).exchange()
    await exchange(one, client, metrics).exchange()
    assert one.permille(*GPT) == two.permille(*GPT)
    assert 1170 < one.permille(*GPT) < 1360
    assert one.fresh() == two.fresh() == {}


async def test_what_is_not_ours_is_skipped_and_the_oldest_go(
    client: RedisClient, redis_client: redis.Redis
) -> None:
    odd: dict[str, str] = {
        "x": "1",
        "openai|a": "",
        "openai|b": "9999:5",
        "openai|c": "-5:5",
        "|": "1500:1",
    }
    odd |= {"openai|d": "1500:" + "9" * 500, "openai|ü": "1500:99999999999", "openai|e": "x:1"}
    many: dict[str, str] = {f"openai|m{at}": f"1100:{at}" for at in range(MAX_MODELS + 40)}
    for field, value in (odd | many).items():
        redis_client.hset(KEY, field, value)
    learned = LearnedFactors()
    await exchange(learned, client, Metrics()).exchange()
    assert learned.permille("openai", f"m{MAX_MODELS + 39}") == 1100
    assert len(learned.all()) <= MAX_MODELS
    assert not redis_client.hexists(KEY, "openai|m0")
    assert redis_client.hlen(KEY) <= MAX_MODELS + len(odd)


async def test_a_key_of_another_kind_or_no_redis_is_no_failure(
    client: RedisClient, redis_client: redis.Redis
) -> None:
    redis_client.set(KEY, "a string")
    learned = taught(1.4, answers=50)
    before = learned.permille(*GPT)
    await exchange(learned, client, Metrics()).exchange()
    assert learned.permille(*GPT) == before
    assert learned.fresh()[GPT][1] == 50  # waits for the next time
    away = open_client(url="redis://127.0.0.1:1/0", cluster=False)
    await exchange(learned, away, Metrics()).exchange()
    await away.close()
    assert learned.fresh()[GPT][1] == 50


async def test_it_runs_in_the_background_and_hands_over_at_the_end(
    client: RedisClient, redis_client: redis.Redis
) -> None:
    learned = taught(1.4, answers=10)
    running = FactorExchange(
        learned, RedisFactorStore(client), Metrics().input_factor, interval_seconds=0.01
    )
    running.start()
    deadline = time.monotonic() + 5
    while learned.fresh():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    learned.learn(*GPT, estimated=1000, actual=1400)
    await running.stop()
    assert learned.fresh() == {}
    stored = redis_client.hget(KEY, "openai|gpt-4o")
    assert str(stored).startswith(f"{learned.permille(*GPT)}:")
