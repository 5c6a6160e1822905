"""Redis access: the calls of one event-loop turn travel together.

Why not redis-py's own client: per call it costs more than twice as much CPU, it retries by default
(a script that timed out would run again), and a cancelled caller can leave an unread reply in the
socket. Here a batch belongs to its connection, so cancelling a caller never touches one, and a
connection on which anything went wrong is closed. Only one thing is ever sent again: a script that
Redis did not know (NOSCRIPT), once, with its source; it cannot have run.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from typing import Any

from redis import exceptions as redis_errors
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from extproc.core.errors import SettingsError, StoreUnavailableError
from extproc.stores.failures import fail_all
from extproc.stores.redis_link import Call, RedisLink, Word, pack
from extproc.stores.redis_url import check_redis_url
from extproc.stores.scripts import Script

# So many calls at most share one write: Redis answers them in a few milliseconds.
MAX_BATCH = 256
# So many keys at once are looked at by SCAN.
_PAGE = 1000
# How long a call that nobody waits for may wait for company.
_LAZY_SECONDS = 0.002


class RedisBatcher:
    """Sends commands and scripts; every failure is a StoreUnavailableError.

    ``timeout_ms`` bounds one exchange (connecting included) and, separately, the wait for a free
    connection. ``max_connections`` batches are under way at most; calls beyond wait and then travel
    together. To be used from one event loop.
    """

    def __init__(self, *, url: str, timeout_ms: int = 50, max_connections: int = 8) -> None:
        self._timeout = timeout_ms / 1000
        self._max_connections = max_connections
        # The pool only reads the URL and makes connections. One time-out bounds a whole exchange,
        # so the socket needs none of its own.
        self._idle: list[RedisLink] = []
        try:
            check_redis_url(url, cluster=False)
            self._pool = ConnectionPool.from_url(
                url,
                decode_responses=True,
                protocol=2,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=None,
                socket_connect_timeout=self._timeout,
                driver_info=None,
            )
            # Options are looked at when a connection is made: this one is for nothing else.
            self._make_connection()
        except Exception as error:
            raise SettingsError("redis.url", str(error) or type(error).__name__) from error
        self._queue: deque[Call] = deque()
        self._busy: set[RedisLink] = set()
        self._flush_is_due = False
        self._lazy_timer: asyncio.TimerHandle | None = None
        self._all_free: asyncio.Future[None] | None = None
        self._closed = False

    def _make_connection(self) -> AbstractConnection:
        connection: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        return connection

    async def command(self, *command: Word) -> Any:
        """Send one command; its decoded reply."""
        return await self.send(command)

    def run(
        self, script: Script, keys: Sequence[str], args: Iterable[Word], *, lazily: bool = False
    ) -> Coroutine[Any, Any, Any]:
        """Run a script by its SHA; its decoded reply. ``lazily`` as in ``send``."""
        return self.send(
            ("EVALSHA", script.sha, len(keys), *keys, *args), script=script, lazily=lazily
        )

    async def ping(self) -> None:
        """The server answers."""
        await self.send(("PING",))

    async def load(self, scripts: Iterable[Script]) -> None:
        """Make scripts known to Redis. Where SCRIPT LOAD is forbidden, first use will do it."""
        for script in scripts:
            try:
                await self.command("SCRIPT", "LOAD", script.source)
            except StoreUnavailableError as error:
                if not isinstance(error.__cause__, redis_errors.NoPermissionError):
                    raise

    async def close(self) -> None:
        """Let running batches end (each is bounded by the time-out), then close all connections."""
        self._closed = True
        self._flush()
        while self._busy:
            self._all_free = asyncio.get_running_loop().create_future()
            await self._all_free
        for link in self._idle:
            link.close()
        await asyncio.sleep(0)  # for transports, which close in the loop's next turn

    async def scan(self, pattern: str) -> AsyncIterator[list[str]]:
        """Pages of all keys of a pattern; one may come twice. It looks at every key."""
        cursor = "0"
        while True:
            words = ("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE)
            cursor, page = await self.send(words)
            yield page
            if cursor == "0":
                return

    async def send(
        self,
        command: tuple[Word, ...],
        *,
        script: Script | None = None,
        asking: bool = False,
        lazily: bool = False,
    ) -> Any:
        """Send one command; its decoded reply.

        ``script``: what EVALSHA runs; its source is sent when Redis does not know it. ``asking``:
        ASKING goes before it, for a node that is taking over the slot. ``lazily``: nobody waits, so
        it travels with the next calls that somebody waits for, or alone after two milliseconds.
        """
        if self._closed:
            raise StoreUnavailableError("redis", "the client is closed", transient=False)
        loop = asyncio.get_running_loop()
        # Packed here, where a value that cannot be packed fails its own call only.
        packed = pack(command, asking=asking)
        future: asyncio.Future[Any] = loop.create_future()
        self._queue.append(Call(command, packed, loop.time(), future, script, asking))
        if lazily and len(self._queue) < MAX_BATCH:
            if not self._flush_is_due and self._lazy_timer is None:
                self._lazy_timer = loop.call_later(_LAZY_SECONDS, self._flush)
        elif not self._flush_is_due:
            self._flush_is_due = True
            loop.call_soon(self._flush)
        return await future

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._lazy_timer is not None:
            self._lazy_timer.cancel()
            self._lazy_timer = None
        while self._queue and len(self._busy) < self._max_connections:
            calls = self._next_batch()
            if calls:
                link = self._idle.pop() if self._idle else self._new_link()
                self._busy.add(link)
                link.start(calls)
        self._tell_if_all_free()

    def _new_link(self) -> RedisLink:
        return RedisLink(
            self._make_connection,
            timeout=self._timeout,
            on_free=self._freed,
            on_moved=self._drop_idle,
        )

    def _next_batch(self) -> deque[Call]:
        too_old = asyncio.get_running_loop().time() - self._timeout
        calls: deque[Call] = deque()
        for _ in range(min(MAX_BATCH, len(self._queue))):
            call = self._queue.popleft()
            if call.queued_at < too_old:
                error = StoreUnavailableError("redis", "no connection was free", transient=True)
                fail_all([call], error)
            elif not call.future.done():  # a caller that left before is not sent at all
                calls.append(call)
        return calls

    def _freed(self, link: RedisLink) -> None:
        self._busy.discard(link)
        self._idle.append(link)
        if self._queue and not self._flush_is_due:
            # Not at once: who is answered now may have more to ask, which then travels along.
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush)
        else:
            self._tell_if_all_free()

    def _tell_if_all_free(self) -> None:
        if not self._busy and self._all_free is not None and not self._all_free.done():
            self._all_free.set_result(None)

    def _drop_idle(self) -> None:
        for link in self._idle:
            link.drop_if_idle()
