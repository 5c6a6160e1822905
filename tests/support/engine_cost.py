"""What twelve limits over five scopes cost in Redis, by Redis' own figures."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import redis

from extproc.core.estimates import EstimateMode, EstimatePlan
from extproc.core.reservations import Admitted, ReserveRequest
from extproc.stores import keys
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.engine import asking, cache_view, twelve_limits
from tests.support.reservations import ROOT, Inspector, request, settlement

TARGET_RATIO = 3.0
TARGET_BYTES = 1024
# The root of two limits; the usual one has twelve.
SIMPLE = "simple"
_HISTORY_MINUTES = 10
_WARM_UP = 300
_ROUNDS = 3
_ids = itertools.count()


def twelve() -> ReserveRequest:
    """A request that meets twelve limits, with texts as long as in production."""
    return asking(
        *twelve_limits(),
        estimate=EstimatePlan(mode=EstimateMode.QUANTILE),
        input_price=2_500_000,
        output_price=10_000_000,
        owner="0123456789abcdef",
        request_hash="fedcba9876543210",
        request_id=f"01234567-89ab-cdef-0123-{next(_ids):012x}",
    )


def prepare(client: redis.Redis) -> None:
    """Cached limits and ten minutes of history for both roots."""
    Inspector(client, SIMPLE).cache(rpm=2**40, tpm=2**40)
    cache_view(client)
    for root in (ROOT, SIMPLE):
        for back in range(1, _HISTORY_MINUTES + 1):
            client.hset(
                keys.output_prefix(root) + Inspector(client).minute(back),
                mapping={"count": 1000, "output_tokens": 300_000},
            )


@dataclass(frozen=True, slots=True)
class ScriptTimes:
    """Microseconds of one reserve script."""

    two_limits_us: float
    twelve_limits_us: float

    @property
    def ratio(self) -> float:
        return self.twelve_limits_us / self.two_limits_us


async def script_times(
    store: RedisReservationStore, client: redis.Redis, *, batches: int, batch: int = 20
) -> ScriptTimes:
    """Both by Redis' ``commandstats``, in turn; of all batches the shortest counts, because the
    others were interrupted by whatever else the machine does."""
    kinds: tuple[Callable[[], ReserveRequest], ...] = (lambda: request(root=SIMPLE), twelve)
    best = [float("inf")] * len(kinds)
    for _ in range(batches):
        for index, ask in enumerate(kinds):
            client.config_resetstat()
            verdicts = await asyncio.gather(*(store.reserve(ask()) for _ in range(batch)))
            assert all(isinstance(verdict, Admitted) for verdict in verdicts)
            used = float(client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"])
            best[index] = min(best[index], used)
    return ScriptTimes(*best)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCost:
    """One open reservation of twelve limits: its record, and all that Redis keeps for it, which is
    also its entries in the sets and what Redis spends on keys. Round trips are reads from the
    client's socket, when each call waits for the one before."""

    record_bytes: int
    total_bytes: float
    round_trips_to_reserve: float
    round_trips_to_settle: float


async def open_cost(
    store: RedisReservationStore, client: redis.Redis, *, count: int = 2000
) -> OpenCost:
    """Open ``count`` reservations, a few times, and settle the last.

    The least growth counts: in the others a table of Redis' own may have doubled, or a buffer of
    somebody else's connection.
    """
    for _ in range(_WARM_UP):
        await store.reserve(twelve())
    grown = float("inf")
    for _ in range(_ROUNDS):
        asked = [twelve() for _ in range(count)]
        before = client.info("memory")["used_memory"]
        to_reserve = await _round_trips(client, (store.reserve(a) for a in asked), count=count)
        grown = min(grown, client.info("memory")["used_memory"] - before)
    ids = [each.reservation_id for each in asked]
    record_bytes = client.memory_usage(keys.reservation(ROOT, ids[-1]), samples=0)
    endings = (store.settle(settlement(i)) for i in ids)
    to_settle = await _round_trips(client, endings, count=count)
    return OpenCost(
        record_bytes=record_bytes or 0,
        total_bytes=grown / count,
        round_trips_to_reserve=to_reserve,
        round_trips_to_settle=to_settle,
    )


async def _round_trips(
    client: redis.Redis, calls: Iterable[Awaitable[object]], *, count: int
) -> float:
    def reads() -> int:
        return int(client.info("stats")["total_reads_processed"])

    before = reads()
    for call in calls:
        await call
    # The second look is a read of its own.
    return (reads() - before - 1) / count
