"""Redis access: the calls of one event-loop turn travel together.

Why not redis-py's own client: per call it costs more than twice as much CPU, it retries by default
(a script that timed out would run again), and a cancelled caller can leave an unread reply in the
socket. Here a batch is a task of its own, so cancelling a caller never touches a connection, and a
connection on which anything went wrong is closed. Only one thing is ever sent again: a script that
Redis did not know (NOSCRIPT), once, with its source; it cannot have run.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hiredis import pack_command
from redis import exceptions as redis_errors
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from extproc.core.errors import SettingsError, StoreUnavailableError
from extproc.stores.scripts import Script

# What a command is made of. Text is sent as UTF-8, so it may not hold lone surrogates.
Word = str | int | bytes

# So many calls at most share one write: Redis answers them in a few milliseconds.
MAX_BATCH = 256

# Error replies that say that the command did not run, and that another moment may be better.
_NOT_RUN_TRANSIENT = (
    redis_errors.BusyLoadingError,
    redis_errors.ReadOnlyError,
    redis_errors.MasterDownError,
    redis_errors.ClusterDownError,
    redis_errors.OutOfMemoryError,
    redis_errors.MaxConnectionsError,
)
_NOT_RUN_FINAL = (
    redis_errors.NoPermissionError,
    redis_errors.AuthenticationError,
    redis_errors.AuthorizationError,
    redis_errors.NoScriptError,
)
_NOT_RUN_WORDS = ("BUSY ", "NOREPLICAS ", "TRYAGAIN ")


@dataclass(slots=True)
class _Call:
    command: tuple[Word, ...]
    packed: bytes = field(repr=False)
    queued_at: float
    future: asyncio.Future[Any] = field(repr=False)
    script: Script | None = None


def _pack(command: tuple[Word, ...]) -> bytes:
    packed: bytes = pack_command(command)  # type: ignore[arg-type]  # its stub: "a tuple of one"
    return packed


def _refused(error: redis_errors.RedisError) -> StoreUnavailableError:
    """What an error reply means."""
    text = str(error) or type(error).__name__
    if isinstance(error, _NOT_RUN_TRANSIENT) or text.startswith(_NOT_RUN_WORDS):
        return StoreUnavailableError("redis", text, transient=True)
    if isinstance(error, _NOT_RUN_FINAL):
        return StoreUnavailableError("redis", text, transient=False)
    # A script may fail half-way, for example on a key of another type.
    return StoreUnavailableError("redis", text, transient=False, maybe_applied=True)


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
        try:
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
        except (TypeError, ValueError) as error:
            raise SettingsError("redis.url", str(error)) from error
        self._idle: list[AbstractConnection] = []
        self._queue: deque[_Call] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._flush_is_due = False
        self._closed = False

    async def command(self, *command: Word) -> Any:
        """Send one command; its decoded reply."""
        return await self._send(command, script=None)

    async def run(self, script: Script, keys: Sequence[str], args: Iterable[Word]) -> Any:
        """Run a script by its SHA; its decoded reply."""
        return await self._send(
            ("EVALSHA", script.sha, len(keys), *keys, *args),
            script=script,
        )

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

    async def _send(self, command: tuple[Word, ...], *, script: Script | None) -> Any:
        if self._closed:
            raise StoreUnavailableError("redis", "the client is closed", transient=False)
        loop = asyncio.get_running_loop()
        # Packed here, where a value that cannot be packed fails its own call only.
        packed = _pack(command)
        call = _Call(command, packed, loop.time(), loop.create_future(), script)
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
                _fail([call], error)
            elif not call.future.done():  # a caller that left before is not sent at all
                waiting.append(call)
        if not waiting:
            return
        connection: AbstractConnection = (
            self._idle.pop() if self._idle else self._pool.make_connection()  # type: ignore[no-untyped-call]
        )
        sent = False
        try:
            async with asyncio.timeout(self._timeout):
                # A connection that Redis closed, or that has something to read, is not reused.
                if not connection.is_connected or await connection.can_read():
                    await connection.disconnect(nowait=True)
                    await connection.connect()  # type: ignore[no-untyped-call]
                sent = True
                await self._exchange(connection, waiting)
        except (TimeoutError, OSError, redis_errors.RedisError) as cause:
            await connection.disconnect(nowait=True)
            _fail(waiting, _lost(cause, was_sent=sent))
        except BaseException:
            await connection.disconnect(nowait=True)
            _fail(waiting, StoreUnavailableError("redis", "stopped", transient=False))
            raise
        finally:
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
                reply = await connection.read_response()
            except redis_errors.ResponseError as error:
                moved = moved or isinstance(error, redis_errors.ReadOnlyError)
                if isinstance(error, redis_errors.NoScriptError) and call.script is not None:
                    call.command = ("EVAL", call.script.source, *call.command[2:])
                    call.packed = _pack(call.command)
                    call.script = None
                    waiting.append(call)
                else:
                    _fail([call], _refused(error), error)
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


def _lost(cause: Exception, *, was_sent: bool) -> StoreUnavailableError:
    """What a broken exchange means for the calls that it did not answer."""
    if isinstance(cause, redis_errors.RedisError) and not isinstance(
        cause, (redis_errors.ConnectionError, redis_errors.TimeoutError)
    ):
        error = _refused(cause)
    elif isinstance(cause, _NOT_RUN_FINAL):
        error = StoreUnavailableError("redis", str(cause), transient=False)
    else:
        text = str(cause) or "no reply in time"
        error = StoreUnavailableError("redis", text, transient=True)
    error.maybe_applied = was_sent and not isinstance(cause, redis_errors.BusyLoadingError)
    error.__cause__ = cause
    return error


def _fail(
    calls: Iterable[_Call], error: StoreUnavailableError, cause: Exception | None = None
) -> None:
    for call in calls:
        if not call.future.done():
            # One exception object a caller: each adds its own traceback.
            own = StoreUnavailableError(
                error.store,
                str(error).removeprefix("redis: "),
                transient=error.transient,
                maybe_applied=error.maybe_applied,
            )
            own.__cause__ = cause or error.__cause__
            call.future.set_exception(own)
