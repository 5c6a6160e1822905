"""The cold path of a limit lookup: once per root, from SQL, into the cache.

The race that must not be lost: a reader takes the old row from SQL, an administrator commits a new
one and deletes the cache key, the reader writes the old row into the cache, where it would stay for
ten minutes. So, before it looks into SQL, a reader takes a lease, which is a field of the very key
that the administrator deletes, and writes only while that lease stands.

A change of policies that concern every root deletes the keys of the roots that are registered. One
that is not yet registered while a reader looks for its limits would be missed; so who registers a
root looks for its policies again.
"""

import asyncio
import logging
import random
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from extproc.core.errors import StoreUnavailableError
from extproc.core.limits import ServiceLimit
from extproc.core.policies import BadRow, PolicySet
from extproc.core.ports import LimitLookup, Telemetry
from extproc.core.views import from_json, next_boundary, to_json, version_of
from extproc.stores import keys, scripts
from extproc.stores.client import RedisClient
from extproc.stores.policy_rows import BadRowsError
from extproc.stores.policy_table import PolicyTable
from extproc.stores.scripts import load_script

log = logging.getLogger("tokenweir.limits")

_LEASE_MS = 10_000
# How often a refused backfill looks again; each refusal is a change of limits in between.
_ROUNDS = 3
_SHORTEST_MS = 1000
# What cannot be cached in Redis is read from SQL so often at most, by root and process.
_BRIEFLY_SECONDS = 1.0
_MOST_BRIEF = 1024


@dataclass(frozen=True, slots=True)
class _Brief:
    """An answer that Redis cannot keep. ``view`` is the hash of what is there."""

    until: float
    view: int
    answer: LimitLookup | BadRowsError


class CachedLimitSource:
    """Implements ``core.ports.LimitSource``. Batcher and table are shared, closed by their owner.

    Entries live ``cache_ttl_seconds`` less a random tenth at most, so that services loaded together
    do not expire together, and not past the moment when a policy, a block or an override begins or
    ends by itself; unknown services are remembered for ``negative_ttl_seconds``.

    A view in Redis that is not understood here, such as one of a newer release, is left there, and
    SQL decides. That, and the news that rows of a root cannot be read, is remembered for a second.
    """

    def __init__(
        self,
        batcher: RedisClient,
        table: PolicyTable,
        *,
        telemetry: Telemetry | None = None,
        cache_ttl_seconds: int = 600,
        negative_ttl_seconds: int = 10,
    ) -> None:
        self._redis = batcher
        self._table = table
        self._telemetry = telemetry
        self._ttl_ms = cache_ttl_seconds * 1000
        self._negative_ttl_ms = negative_ttl_seconds * 1000
        self._lease = load_script(scripts.LEASE)
        self._backfill = load_script(scripts.BACKFILL)
        self._flights: dict[str, asyncio.Task[LimitLookup]] = {}
        self._brief: OrderedDict[str, _Brief] = OrderedDict()

    async def load(self, service_id: str) -> LimitLookup:
        """Look the service up; callers that meet share one lookup.

        The lookup is a task of this object: a caller that is cancelled does not take the others
        down. Raises StoreUnavailableError when neither Redis nor SQL can say, and BadRowsError,
        which is one, when rows of the root cannot be read.
        """
        if isinstance(known := self._briefly(service_id), BadRowsError):
            raise BadRowsError(service_id, known.rows)
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

    async def _load(self, root: str) -> LimitLookup:
        for _ in range(_ROUNDS):
            token: str | None = None
            view = ""
            try:
                reply = await self._redis.run(
                    self._lease, (keys.config(root),), (secrets.token_hex(8), _LEASE_MS)
                )
                if reply[0] == "limits":
                    view = reply[4]
                    return _cached(root, *reply[1:])
                token = reply[1]
            except StoreUnavailableError:
                pass  # SQL can still say
            except ValueError as error:
                if isinstance(known := self._briefly(root, view), LimitLookup):
                    return known
                log.warning("view not understood", extra={"root": root, "reason": str(error)})
            try:
                found = await self._table.load(root)
                if token is None:
                    break
                if found is not None and await self._register(root):
                    found = await self._table.load_again(found)
                if await self._fill(root, token, found):
                    self._tell(root, found)
                    return _lookup(found, cached=True)
            except BadRowsError as error:
                self._say_bad(root, error.rows)
                self._keep_briefly(root, "", error)
                raise
            except StoreUnavailableError as error:
                if error.store != "redis":
                    raise
                break  # not cached, but the answer stands
        self._tell(root, found)
        answer = _lookup(found, cached=False)
        if view:
            self._keep_briefly(root, view, answer)
        return answer

    def _tell(self, root: str, found: PolicySet | None) -> None:
        if found is not None and found.bad:
            self._say_bad(root, found.bad)

    def _say_bad(self, root: str, rows: Sequence[BadRow]) -> None:
        """One line a load, so that no limit is missing in silence."""
        log.error(
            "limits that cannot be read",
            extra={
                "root": root,
                "rows": [
                    {
                        "table": row.table,
                        "id": row.id,
                        "name": row.name,
                        "reason": row.reason,
                        "effect": row.effect.value,
                    }
                    for row in rows
                ],
            },
        )
        if self._telemetry is not None:
            for row in rows:
                self._telemetry.unreadable_row(row.table)

    def _briefly(self, root: str, view: str = "") -> LimitLookup | BadRowsError | None:
        """What was found a moment ago, if Redis still holds the same."""
        known = self._brief.get(root)
        if known is None or known.until < time.monotonic():
            self._brief.pop(root, None)
            return None
        return known.answer if known.view == hash(view) else None

    def _keep_briefly(self, root: str, view: str, answer: LimitLookup | BadRowsError) -> None:
        self._brief[root] = _Brief(time.monotonic() + _BRIEFLY_SECONDS, hash(view), answer)
        self._brief.move_to_end(root)
        if len(self._brief) > _MOST_BRIEF:
            self._brief.popitem(last=False)

    async def _register(self, root: str) -> bool:
        """Before a positive backfill: whatever a cached limit admits, the reaper can find."""
        return bool(await self._redis.command("SADD", keys.ROOTS, root) == 1)

    async def _fill(self, root: str, token: str, found: PolicySet | None) -> bool:
        if found is None:
            args: tuple[str | int, ...] = (token, "unknown", "", "", self._negative_ttl_ms, "", "")
        else:
            limit = found.service
            view = to_json(found) if _has_view(found) else ""
            args = (
                token,
                int(limit is None or limit.enabled),
                "" if limit is None else limit.rpm,
                "" if limit is None else limit.tpm,
                self._life_ms(found),
                view and version_of(view),
                view,
            )
        return bool(await self._redis.run(self._backfill, (keys.config(root),), args) == 1)

    def _life_ms(self, found: PolicySet) -> int:
        life_ms = self._ttl_ms - random.randint(0, self._ttl_ms // 10)  # noqa: S311
        now = datetime.now(UTC)
        boundary = next_boundary(found, now)
        if boundary is None:
            return life_ms
        until_ms = round((boundary - now).total_seconds() * 1000)
        # Views hold what is to come, so a moment more does no harm, and no two clocks agree.
        return min(life_ms, max(until_ms, _SHORTEST_MS))


def _has_view(found: PolicySet) -> bool:
    return bool(found.policies or found.blocks)


def _lookup(found: PolicySet | None, *, cached: bool) -> LimitLookup:
    if found is None:
        return LimitLookup(None, cached=cached)
    return LimitLookup(found.service, cached, found if _has_view(found) else None)


def _cached(root: str, status: str, rpm: str, tpm: str, view: str) -> LimitLookup:
    if status == "unknown":
        return LimitLookup(None, cached=True)
    if view:
        found = from_json(view)
        if found.root != root:
            raise ValueError(f"a view of {found.root}")
        return _lookup(found, cached=True)
    limit = ServiceLimit(service_id=root, rpm=int(rpm), tpm=int(tpm), enabled=status == "1")
    return LimitLookup(limit, cached=True)
