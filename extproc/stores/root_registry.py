"""Which roots may hold a reservation, so that the reaper finds every one.

A root with cached limits was registered when they were filled in. Others register before they are
asked: roots whose limits could not be cached, and the roots of counters that all tenants share.
Those may be named by what clients ask for (a model, say), so they are forgotten when nobody has
asked for long.
"""

import asyncio
import time

from extproc.core.ids import ACROSS_PREFIX
from extproc.stores import keys, scripts
from extproc.stores.client import RedisClient
from extproc.stores.scripts import load_script

# A root that this process has registered is taken to be known for so long, so that a warm request
# pays nothing.
_REMEMBERED_SECONDS = 30.0
# A shared root that nobody has asked for so long, and where nothing is open, is forgotten. Much
# longer than it is remembered here, so that whoever asks it has told so.
_FORGOTTEN_MS = 600_000
# So many of them are looked at in one sweep.
_MOST_FORGOTTEN = 1000
_MOST_REMEMBERED = 4096


class RootRegistry:
    """The sets ``roots`` and ``roots:across``."""

    def __init__(self, redis: RedisClient) -> None:
        self._redis = redis
        self._known: dict[str, float] = {}
        self._forget = load_script(scripts.FORGET_ROOT)

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
        """All of them, sorted; idle shared ones are forgotten."""
        await self._forget_idle()
        shared = await self._redis.command("ZRANGE", keys.ROOTS_ACROSS, 0, -1)
        return sorted({*await self._redis.command("SMEMBERS", keys.ROOTS), *shared})

    async def _forget_idle(self) -> None:
        until = _now_ms() - _FORGOTTEN_MS
        idle = await self._redis.command(
            *("ZRANGEBYSCORE", keys.ROOTS_ACROSS, "-inf", until, "LIMIT", 0, _MOST_FORGOTTEN)
        )
        counts = await asyncio.gather(
            *(self._redis.command("ZCARD", keys.pending(root)) for root in idle)
        )
        for root, count in zip(idle, counts, strict=True):
            if count == 0:
                await self._redis.run(self._forget, (keys.ROOTS_ACROSS,), (root, until))
            else:
                # It is looked at again, and does not hide others from being looked at.
                await self._redis.command("ZADD", keys.ROOTS_ACROSS, "XX", _now_ms(), root)


def _now_ms() -> int:
    return int(time.time() * 1000)
