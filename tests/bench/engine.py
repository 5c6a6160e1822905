"""The engine alone: what twelve limits cost in Redis, on a Valkey of its own."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import redis

from extproc.stores.batcher import RedisBatcher
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.engine_cost import OpenCost, ScriptTimes, open_cost, prepare, script_times
from tests.support.valkey import valkey_server

_BATCHES = 100
_TIMEOUT_MS = 5000


@dataclass(frozen=True, slots=True)
class EngineCost:
    """Time of the reserve script, and what an open reservation needs."""

    times: ScriptTimes
    open: OpenCost


def measure_engine(directory: Path) -> EngineCost:
    """Takes a few seconds."""

    async def both(url: str, client: redis.Redis) -> EngineCost:
        batcher = RedisBatcher(url=url, timeout_ms=_TIMEOUT_MS)
        try:
            store = RedisReservationStore(batcher)
            await store.ping()
            prepare(client)
            times = await script_times(store, client, batches=_BATCHES)
            return EngineCost(times, await open_cost(store, client))
        finally:
            await batcher.close()

    folder = directory / "engine"
    folder.mkdir()
    with (
        valkey_server(folder) as url,
        redis.Redis.from_url(url, decode_responses=True) as client,
    ):
        return asyncio.run(both(url, client))
