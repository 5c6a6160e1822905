"""Redis access: the calls of one event-loop turn travel together.

Why not redis-py's own client: per call it costs more than twice as much CPU, it retries by default
(a script that timed out would run again), and a cancelled caller can leave an unread reply in the
socket. Here a batch is a task of its own, so cancelling a caller never touches a connection, and a
connection on which anything went wrong is closed. Only one thing is ever sent again: a script that
Redis did not know (NOSCRIPT), once, with its source; it cannot have run.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hiredis import pack_command
from redis import exceptions as redis_errors
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from extproc.core.errors import SettingsError, StoreUnavailableError
from extproc.stores.failures import fail_all, lost, refused
from extproc.stores.redis_url import check_redis_url
from extproc.stores.scripts import Script

# What a command is made of. Text is sent as UTF-8, so it may not hold lone surrogates.
Word = str | int | bytes

# So many calls at most share one write: Redis answers them in a few milliseconds.
MAX_BATCH = 256
# So many keys at once are looked at by SCAN.
_PAGE = 1000
# It holds for the next command of the same connection, so both are always written together.
_ASKING: bytes = pack_command(("ASKING",))


@dataclass(slots=True)
class _Call:
    command: tuple[Word, ...]
    packed: bytes = field(repr=False)
    queued_at: float
    future: asyncio.Future[Any] = field(repr=False)
    script: Script | None = None
    asking: bool = False

    def fail(self, error: StoreUnavailableError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def _pack(command: tuple[Word, ...], *, asking: bool) -> bytes:
    packed: bytes = pack_command(command)  # type: ignore[arg-type]  # its stub: "a tuple of one"
    return _ASKING + packed if asking else packed


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
        self._idle: list[AbstractConnection] = []
        try:
            check_redis_url(url, cluster=False)
            self._pool = ConnectionPool.from_url(
                url,
                decode_responses=True,
                # A value that is no text must not spoil the other replies of its batch.
                encoding_errors="surrogateescape",
                protocol=2,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=None,
                socket_connect_timeout=self._timeout,
                driver_info=None,
            )
            # Options are looked at when a connection is made. It is the first to be used.
            self._idle.append(self._make_connection())
        except Exception as error:
            raise SettingsError("redis.url", str(error) or type(error).__name__) from error
        self._queue: deque[_Call] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._flush_is_due = False
        self._closed = False

    def _make_connection(self) -> AbstractConnection:
        connection: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        return connection

    async def command(self, *command: Word) -> Any:
        """Send one command; its decoded reply."""
        return await self.send(command)

    async def run(self, script: Script, keys: Sequence[str], args: Iterable[Word]) -> Any:
        """Run a script by its SHA; its decoded reply."""
        return await self.send(
            ("EVALSHA", script.sha, len(keys), *keys, *args),
            script=script,
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
        while self._running or self._queue:
            self._flush()
            await asyncio.wait(self._running)
        for connection in self._idle:
            await connection.disconnect()

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
        self, command: tuple[Word, ...], *, script: Script | None = None, asking: bool = False
    ) -> Any:
        """Send one command; its decoded reply.

        ``script``: what EVALSHA runs; its source is sent when Redis does not know it. ``asking``:
        ASKING goes before it, for a node that is taking over the slot.
        """
        if self._closed:
            raise StoreUnavailableError("redis", "the client is closed", transient=False)
        loop = asyncio.get_running_loop()
        # Packed here, where a value that cannot be packed fails its own call only.
        packed = _pack(command, asking=asking)
        call = _Call(command, packed, loop.time(), loop.create_future(), script, asking)
        self._queue.append(call)
        if not self._flush_is_due:
            self._flush_is_due = True
            loop.call_soon(self._flush)
        return await call.future

    def _flush(self) -> None:
        self._flush_is_due = False
        while self._queue and len(self._running) < self._max_connections:
            size = min(MAX_BATCH, len(self._queue))
            calls = [self._queue.popleft() for _ in range(size)]
            task = asyncio.create_task(self._run_batch(calls))
            self._running.add(task)
            task.add_done_callback(self._batch_ended)

    def _batch_ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._flush()

    async def _run_batch(self, calls: list[_Call]) -> None:
        too_old = asyncio.get_running_loop().time() - self._timeout
        waiting: deque[_Call] = deque()
        for call in calls:
            if call.queued_at < too_old:
                error = StoreUnavailableError("redis", "no connection was free", transient=True)
                fail_all([call], error)
            elif not call.future.done():  # a caller that left before is not sent at all
                waiting.append(call)
        if not waiting:
            return
        connection: AbstractConnection | None = None
        sent = False
        try:
            connection = self._idle.pop() if self._idle else self._make_connection()
            async with asyncio.timeout(self._timeout):
                # A connection that Redis closed, or that has something to read, is not reused.
                if not connection.is_connected or await connection.can_read():
                    await connection.disconnect(nowait=True)
                    await connection.connect()  # type: ignore[no-untyped-call]
                sent = True
                await self._exchange(connection, waiting)
        except Exception as cause:  # noqa: BLE001  # a caller without an answer waits for ever
            fail_all(waiting, lost(cause, was_sent=sent))
            if connection is not None:
                await connection.disconnect(nowait=True)
        except BaseException:
            fail_all(waiting, StoreUnavailableError("redis", "stopped", transient=False))
            if connection is not None:
                await connection.disconnect(nowait=True)
            raise
        finally:
            if connection is not None:
                self._idle.append(connection)

    async def _exchange(self, connection: AbstractConnection, waiting: deque[_Call]) -> None:
        """Send ``waiting`` and answer its calls; a call leaves it when it has its answer."""
        moved = False
        await connection.send_packed_command(
            b"".join([call.packed for call in waiting]), check_health=False
        )
        for _ in range(len(waiting)):
            call = waiting[0]
            try:
                if call.asking:
                    with suppress(redis_errors.ResponseError):  # the command's own reply decides
                        await connection.read_response()
                reply = await connection.read_response()
            except redis_errors.ResponseError as error:
                moved = moved or isinstance(error, redis_errors.ReadOnlyError)
                if isinstance(error, redis_errors.NoScriptError) and call.script is not None:
                    call.command = ("EVAL", call.script.source, *call.command[2:])
                    call.packed = _pack(call.command, asking=call.asking)
                    call.script = None
                    waiting.append(call)
                else:
                    fail_all([call], refused(error), error)
            else:
                if not call.future.done():
                    call.future.set_result(reply)
            waiting.popleft()
        if waiting:  # scripts that Redis did not know
            await self._exchange(connection, waiting)
        if moved:
            # A replica that was the primary: its name may lead elsewhere by now.
            for each in (connection, *self._idle):
                await each.disconnect(nowait=True)
