"""The cold path of a limit lookup: once per service, from SQL, into the cache.

The race that must not be lost: a reader takes the old row from SQL, an administrator commits a new
one and deletes the cache key, the reader writes the old row into the cache, where it would stay for
ten minutes. So, before it looks into SQL, a reader takes a lease, which is a field of the very key
that the administrator deletes, and writes only while that lease stands.
"""

import asyncio
import random
import secrets

from extproc.core.errors import StoreUnavailableError
from extproc.core.limits import ServiceLimit
from extproc.core.ports import LimitLookup
from extproc.stores import keys, scripts
from extproc.stores.batcher import RedisBatcher
from extproc.stores.limit_table import LimitTable
from extproc.stores.scripts import load_script

_LEASE_MS = 10_000
# How often a refused backfill looks again; each refusal is a change of limits in between.
_ROUNDS = 3


class CachedLimitSource:
    """Implements ``core.ports.LimitSource``. Batcher and table are shared, closed by their owner.

    Entries live ``cache_ttl_seconds`` less a random tenth at most, so that services loaded together
    do not expire together; unknown services are remembered for ``negative_ttl_seconds``.
    """

    def __init__(
        self,
        batcher: RedisBatcher,
        table: LimitTable,
        *,
        cache_ttl_seconds: int = 600,
        negative_ttl_seconds: int = 10,
    ) -> None:
        self._redis = batcher
        self._table = table
        self._ttl_ms = cache_ttl_seconds * 1000
        self._negative_ttl_ms = negative_ttl_seconds * 1000
        self._lease = load_script(scripts.LEASE)
        self._backfill = load_script(scripts.BACKFILL)
        self._flights: dict[str, asyncio.Task[LimitLookup]] = {}

    async def load(self, service_id: str) -> LimitLookup:
        """Look the service up; callers that meet share one lookup.

        The lookup is a task of this object: a caller that is cancelled does not take the others
        down. Raises StoreUnavailableError when neither Redis nor SQL can say.
        """
        flight = self._flights.get(service_id)
        if flight is None:
            flight = asyncio.create_task(self._load(service_id))
            self._flights[service_id] = flight
            flight.add_done_callback(lambda task: self._landed(service_id, task))
        return await asyncio.shield(flight)

    async def close(self) -> None:
        """Stop the lookups under way."""
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)

    def _landed(self, service_id: str, task: asyncio.Task[LimitLookup]) -> None:
        del self._flights[service_id]
        if not task.cancelled():
            task.exception()  # seen, even if every caller has gone

    async def _load(self, service_id: str) -> LimitLookup:
        limit = None
        for _ in range(_ROUNDS):
            token: str | None = None
            try:
                reply = await self._redis.run(
                    self._lease, (keys.config(service_id),), (secrets.token_hex(8), _LEASE_MS)
                )
                if reply[0] == "limits":
                    return LimitLookup(_cached_limit(service_id, *reply[1:]), cached=True)
                token = reply[1]
            except StoreUnavailableError:
                pass  # SQL can still say
            limit = await self._table.find(service_id)
            if token is None:
                break
            try:
                if await self._fill(service_id, token, limit):
                    return LimitLookup(limit, cached=True)
            except StoreUnavailableError:
                break  # not cached, but the answer stands
        return LimitLookup(limit, cached=False)

    async def _fill(self, service_id: str, token: str, limit: ServiceLimit | None) -> bool:
        key = keys.config(service_id)
        if limit is None:
            args: tuple[str | int, ...] = (token, "unknown", "", "", self._negative_ttl_ms)
        else:
            # First: whatever a cached limit admits, the reaper can find.
            await self._redis.command("SADD", keys.ROOTS, service_id)
            ttl_ms = self._ttl_ms - random.randint(0, self._ttl_ms // 10)  # noqa: S311
            args = (token, int(limit.enabled), limit.rpm, limit.tpm, ttl_ms)
        return bool(await self._redis.run(self._backfill, (key,), args) == 1)


def _cached_limit(service_id: str, status: str, rpm: str, tpm: str) -> ServiceLimit | None:
    if status == "unknown":
        return None
    return ServiceLimit(service_id=service_id, rpm=int(rpm), tpm=int(tpm), enabled=status == "1")
