"""The scripts read the signs of a record as stores/record_words.py writes them."""

import itertools

import redis

from extproc.core.buckets import Unit
from extproc.core.policies import Dimension, Scope
from extproc.stores.record_words import SIGNS
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.engine import Counters, admit, minute
from tests.support.reservations import Inspector, settlement

NAMES = [
    f"p.{dimension}.{scope}:x"
    for dimension, scope in zip(itertools.cycle(Dimension), Scope, strict=False)
]


async def test_a_settlement_finds_the_counters_of_every_word(
    store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis
) -> None:
    limits = [minute(name, Unit.TOTAL, 1000) for name in NAMES]
    verdict = await admit(store, *limits, is_pinned=True)
    record = inspect.record(verdict.reservation_id)
    written = "".join(record[f"b{number}"] for number in range(1, int(record["chunks"]) + 1))
    assert set(SIGNS.values()) <= set(written)
    await store.settle(settlement(verdict.reservation_id, 10, 20))
    assert list(Counters(redis_client).state().values()) == ["30"] * len(NAMES)
