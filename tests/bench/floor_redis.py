"""The floor's Redis client: what is written in one turn of the loop travels together, replies come
in order, and that is all. No time-outs, no second connection, no reconnecting, no errors.

uvloop gathers the writes of a turn by itself, so that there is not even a queue.
"""

import asyncio
from collections import deque
from typing import Any, cast

import hiredis
from redis.asyncio.connection import parse_url

from extproc.stores.redis_link import pack
from extproc.stores.redis_url import check_redis_url

_LAZY_SECONDS = 0.002


class FloorRedis(asyncio.Protocol):
    """One connection. Commands are given as they are sent."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        # None: nobody wants this reply.
        self._waiting: deque[asyncio.Future[Any] | None] = deque()
        self._later: list[bytes] = []
        self._later_is_due = False

    @classmethod
    async def connect(cls, url: str) -> "FloorRedis":
        """``redis://HOST:PORT/DB`` without a password."""
        check_redis_url(url, cluster=False)
        where = parse_url(url)
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(cls, where["host"], where["port"])
        await made.send(pack(("SELECT", where.get("db", 0)), asking=False))
        return made

    async def load(self, source: str) -> None:
        """Make a script known to Redis."""
        await self.send(pack(("SCRIPT", "LOAD", source), asking=False))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods, and are no asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def send(self, packed: bytes) -> asyncio.Future[Any]:
        """Send now; what waited for company goes with it."""
        if self._later:
            self._write_later()
        future = self._loop.create_future()
        self._waiting.append(future)
        self._transport.write(packed)
        return future

    def send_later(self, packed: bytes) -> None:
        """Send with the next call, or in two milliseconds; nobody waits."""
        self._later.append(packed)
        if not self._later_is_due:
            self._later_is_due = True
            self._loop.call_later(_LAZY_SECONDS, self._time_is_over)

    def _time_is_over(self) -> None:
        self._later_is_due = False
        if self._later:
            self._write_later()

    def _write_later(self) -> None:
        self._waiting.extend([None] * len(self._later))
        self._transport.write(b"".join(self._later))
        self._later.clear()

    def data_received(self, data: bytes) -> None:
        """Replies, in the order of the calls. What is an error is seen as a fault of the server."""
        reader, waiting = self._reader, self._waiting
        reader.feed(data)
        while (reply := reader.gets()) is not False:
            future = waiting.popleft()
            if future is not None:
                future.set_result(reply)
            elif isinstance(reply, Exception):
                raise reply
