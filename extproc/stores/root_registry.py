"""Which roots may hold a reservation, so that the reaper finds every one.

A root with cached limits was registered when they were filled in. Others register before they are
asked: roots whose limits could not be cached, and the roots of counters that all tenants share.
Those may be named by what clients ask for (a model, say), so they are forgotten when nobody has
asked for long.
"""

import time

from extproc.core.ids import ACROSS_PREFIX
from extproc.stores import keys
from extproc.stores.client import RedisClient

# A root that this process has registered is taken to be known for so long, so that a warm request
# pays nothing.
_REMEMBERED_SECONDS = 30.0
# Twice the longest deadline: nothing is open at a root that nobody asked for so long. An open
# reservation that is renewed is asked for.
_FORGOTTEN_MS = 2 * 86_400_000
_MOST_REMEMBERED = 4096


class RootRegistry:
    """The sets ``roots`` and ``roots:across``."""

    def __init__(self, redis: RedisClient) -> None:
        self._redis = redis
        self._known: dict[str, float] = {}

    async def add(self, root: str) -> None:
        """Register ``root``. Raises StoreUnavailableError."""
        now = time.monotonic()
        if now - self._known.get(root, -_REMEMBERED_SECONDS) < _REMEMBERED_SECONDS:
            return
        if root.startswith(ACROSS_PREFIX):
            await self._redis.command("ZADD", keys.ROOTS_ACROSS, _now_ms(), root)
        else:
            await self._redis.command("SADD", keys.ROOTS, root)
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known[root] = now

    async def roots(self) -> list[str]:
        """All of them, sorted."""
        await self._redis.command(
            "ZREMRANGEBYSCORE", keys.ROOTS_ACROSS, "-inf", _now_ms() - _FORGOTTEN_MS
        )
        shared = await self._redis.command("ZRANGE", keys.ROOTS_ACROSS, 0, -1)
        return sorted({*await self._redis.command("SMEMBERS", keys.ROOTS), *shared})


def _now_ms() -> int:
    return int(time.time() * 1000)
