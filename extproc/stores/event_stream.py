"""Usage events in Redis: a stream for each root, read by one consumer group.

Whoever reads an event keeps it until it is dropped; if he dies, another gets it after a while. In a
cluster every stream is in the slot of its root, so each is asked by a call of its own; the client
sends them together.
"""

import asyncio
import secrets
import time
from collections.abc import Sequence

from extproc.core.ids import ACROSS_PREFIX, is_valid_id
from extproc.core.ledger import UsageEvent
from extproc.stores import keys, scripts
from extproc.stores.client import RedisClient
from extproc.stores.scripts import load_script

GROUP = "ledger"
# Asked side by side.
_AT_ONCE = 500
# Events of one root that one call reads or drops: admissions of that Redis wait for it meanwhile.
_ONE_CALL = 250
# What was registered may be lost by the one master that knows it; the streams themselves are
# looked for so often.
_SCAN_SECONDS = 600.0


class RedisEventSource:
    """Implements ``core.ledger.EventSource``. ``reclaim_ms``: a reader that has kept an event for
    so long has died."""

    def __init__(self, redis: RedisClient, *, reclaim_ms: int = 60_000) -> None:
        self._redis = redis
        self._reclaim_ms = reclaim_ms
        self._name = f"writer.{secrets.token_hex(8)}"
        self._read = load_script(scripts.READ_EVENTS)
        self._drop = load_script(scripts.DROP_EVENTS)
        self._found: set[str] = set()
        self._scans_at = 0.0

    async def waiting(self) -> dict[str, int]:
        """See ``EventSource``."""
        registered = set(await self._redis.command("SMEMBERS", keys.ROOTS))
        if time.monotonic() >= self._scans_at:
            self._found = await self._scan()
            self._scans_at = time.monotonic() + _SCAN_SECONDS
        roots = sorted(root for root in registered | self._found if _is_own(root))
        counts: dict[str, int] = {}
        for start in range(0, len(roots), _AT_ONCE):
            some = roots[start : start + _AT_ONCE]
            found = await asyncio.gather(
                *(self._redis.command("XLEN", keys.events(root)) for root in some)
            )
            counts.update({root: n for root, n in zip(some, found, strict=True) if n})
        return counts

    async def _scan(self) -> set[str]:
        before, _, after = keys.events("*").partition("*")
        found: set[str] = set()
        async for page in self._redis.scan(keys.events("*")):
            found.update(key.removeprefix(before).removesuffix(after) for key in page)
        return found

    async def read(self, root: str, *, at_most: int) -> list[UsageEvent]:
        """See ``EventSource``."""
        parts = await asyncio.gather(
            *(
                self._events(root, min(_ONE_CALL, at_most - start), "")
                for start in range(0, at_most, _ONE_CALL)
            )
        )
        return [event for part in parts for event in part]

    async def claim(self, root: str, *, at_most: int) -> list[UsageEvent]:
        """See ``EventSource``."""
        return await self._events(root, at_most, self._reclaim_ms)

    async def _events(self, root: str, at_most: int, idle_ms: int | str) -> list[UsageEvent]:
        reply = await self._redis.run(
            self._read, (keys.events(root),), (GROUP, self._name, at_most, idle_ms)
        )
        return [
            UsageEvent(root, event_id, dict(zip(flat[::2], flat[1::2], strict=True)))
            for event_id, flat in reply
        ]

    async def drop(self, root: str, event_ids: Sequence[str]) -> None:
        """See ``EventSource``."""
        for start in range(0, len(event_ids), _ONE_CALL):
            some = event_ids[start : start + _ONE_CALL]
            await self._redis.run(self._drop, (keys.events(root),), (GROUP, *some))


def _is_own(root: str) -> bool:
    return is_valid_id(root) and not root.startswith(ACROSS_PREFIX)
