"""One connection to Redis: redis-py makes it (TLS, AUTH, SELECT), then we read and write it.

redis-py's own reading costs a task, a time-out and several coroutines for each batch; here the loop
calls us with the bytes. One batch is under way at a time, and bounded by one time-out.
"""

import asyncio
import select
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import hiredis
from redis import exceptions as redis_errors
from redis._parsers import BaseParser
from redis.asyncio.connection import AbstractConnection

from extproc.core.errors import StoreUnavailableError
from extproc.stores.failures import fail_all, lost, refused
from extproc.stores.scripts import Script

# What a command is made of. Text is sent as UTF-8, so it may not hold lone surrogates.
Word = str | int | bytes

# It holds for the next command of the same connection, so both are always written together.
_ASKING: bytes = hiredis.pack_command(("ASKING",))
_NO_REPLY = False  # hiredis' word for "not all is here"


def pack(command: tuple[Word, ...], *, asking: bool) -> bytes:
    """A command as it is sent."""
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]  # its stub: "a tuple of one"
    return _ASKING + packed if asking else packed


@dataclass(slots=True)
class Call:
    """One command and who waits for its reply."""

    command: tuple[Word, ...]
    packed: bytes = field(repr=False)
    queued_at: float
    future: asyncio.Future[Any] = field(repr=False)
    script: Script | None = None
    asking: bool = False
    # The reply to ASKING is still to come before its own.
    asked: bool = False

    def fail(self, error: StoreUnavailableError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def _polled(transport: asyncio.Transport) -> "select.poll | None":
    found = transport.get_extra_info("socket")
    if found is None:
        return None
    poll = select.poll()
    poll.register(found.fileno(), select.POLLIN)  # a hang-up is told always
    return poll


class RedisLink(asyncio.Protocol):
    """``make`` gives a connection that is not connected yet, ``on_free`` is called whenever a batch
    has ended, however; ``on_moved`` before that, when Redis said that it is a replica now."""

    def __init__(
        self,
        make: Callable[[], AbstractConnection],
        *,
        timeout: float,
        on_free: Callable[["RedisLink"], None],
        on_moved: Callable[[], None],
    ) -> None:
        self._make = make
        self._timeout = timeout
        self._on_free = on_free
        self._on_moved = on_moved
        self._transport: asyncio.Transport | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reader: Any = None
        self._poll: select.poll | None = None
        self._waiting: deque[Call] = deque()
        self._unknown: list[Call] = []  # whose scripts Redis did not know
        self._is_busy = False
        self._has_moved = False
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None

    def start(self, calls: deque[Call]) -> None:
        """Send a batch, connecting first where that is necessary. Only when no other is under way;
        every call gets its answer."""
        loop = asyncio.get_running_loop()
        self._is_busy = True
        self._waiting = calls
        self._deadline = loop.time() + self._timeout
        if self._timer is None:
            # One timer for many batches: it looks at the deadline of the one that it meets.
            self._timer = loop.call_at(self._deadline, self._look_at_the_clock)
        if self._transport is None or self._transport.is_closing() or self._has_news():
            # The end of the old connection, if it is still to be told, is no end of the new one.
            self._drop()
            self._opening = loop.create_task(self._open())
            self._opening.add_done_callback(self._opened)
        else:
            self._write()

    def _has_news(self) -> bool:
        """Whether the idle connection was closed, or says something: the loop need not know yet."""
        return self._poll is not None and bool(self._poll.poll(0))

    def close(self) -> None:
        """Drop the connection; what is under way is answered with an error."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._break(ConnectionError("closed"))

    def drop_if_idle(self) -> None:
        """Connect anew for the next batch."""
        if not self._is_busy:
            self._break(ConnectionError("closed"))

    async def _open(self) -> None:
        try:
            connection = self._make()
            async with asyncio.timeout_at(self._deadline):
                await connection.connect()  # type: ignore[no-untyped-call]
            # From here on the bytes come to us. redis-py's object would close what it still holds.
            writer = connection._writer
            connection._reader = connection._writer = None
            assert writer is not None
        except Exception as cause:  # noqa: BLE001  # a caller without an answer waits for ever
            self._end(lost(cause, was_sent=False))
            return
        except BaseException:
            self._end(StoreUnavailableError("redis", "stopped", transient=False))
            raise
        finally:
            self._opening = None
        self._writer = writer
        self._transport = cast(asyncio.Transport, writer.transport)
        self._transport.set_protocol(self)
        self._poll = _polled(self._transport)
        self._reader = hiredis.Reader(
            replyError=BaseParser.parse_error,
            encoding="utf-8",
            # A value that is no text must not spoil the other replies of its batch.
            errors="surrogateescape",
        )
        self._write()

    def _opened(self, opening: asyncio.Task[None]) -> None:
        if self._opening is opening:  # cancelled before its first step: it has told nobody
            self._opening = None
            self._end(StoreUnavailableError("redis", "stopped", transient=False))

    def _write(self) -> None:
        assert self._transport is not None
        for call in self._waiting:
            call.asked = call.asking
        self._transport.write(b"".join([call.packed for call in self._waiting]))

    def data_received(self, data: bytes) -> None:
        """Replies, in the order of the calls."""
        try:
            self._reader.feed(data)
            # Who takes the last one may drop the connection, and its reader.
            while self._reader is not None:
                reply = self._reader.gets()
                if reply is _NO_REPLY:
                    return
                self._take(reply)
        except Exception as cause:  # noqa: BLE001  # such as a reply that cannot be read
            self._break(cause)

    def _take(self, reply: Any) -> None:
        if not self._waiting:
            raise redis_errors.InvalidResponse("a reply that nobody has asked for")
        call = self._waiting[0]
        if call.asked:
            call.asked = False  # the command's own reply decides
            return
        self._waiting.popleft()
        if isinstance(reply, redis_errors.RedisError):
            self._has_moved = self._has_moved or isinstance(reply, redis_errors.ReadOnlyError)
            if isinstance(reply, redis_errors.NoScriptError) and call.script is not None:
                call.command = ("EVAL", call.script.source, *call.command[2:])
                call.packed = pack(call.command, asking=call.asking)
                call.script = None
                self._unknown.append(call)
            else:
                fail_all([call], refused(reply), reply)
        elif not call.future.done():
            call.future.set_result(reply)
        if not self._waiting:
            self._all_answered()

    def _all_answered(self) -> None:
        if self._unknown:
            self._waiting, self._unknown = deque(self._unknown), []
            self._write()
            return
        if self._has_moved:
            # A replica that was the primary: its name may lead elsewhere by now.
            self._has_moved = False
            self._drop()
            self._on_moved()
        self._is_busy = False
        self._on_free(self)

    def eof_received(self) -> None:
        """Redis has closed; ``connection_lost`` follows."""

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            return  # one that was dropped: TLS may have been about to say this when it was
        self._transport = self._writer = None
        self._break(exc or ConnectionError("Redis closed the connection"))

    def _look_at_the_clock(self) -> None:
        self._timer = None
        if not self._is_busy:
            return  # the next batch sets it again
        loop = asyncio.get_running_loop()
        if loop.time() < self._deadline:
            self._timer = loop.call_at(self._deadline, self._look_at_the_clock)
        elif self._opening is None:  # while it opens, that has a time-out of its own
            self._break(TimeoutError())
        else:
            self._timer = loop.call_later(self._timeout, self._look_at_the_clock)

    def _break(self, cause: Exception) -> None:
        """Nothing that comes on this connection can be told apart any more."""
        self._drop()
        if self._opening is not None:
            self._opening.cancel()
        elif self._is_busy:
            self._end(lost(cause, was_sent=True))

    def _drop(self) -> None:
        transport, self._transport = self._transport, None
        self._reader = self._poll = None
        if transport is not None:
            # What still comes on it is not for us.
            transport.set_protocol(asyncio.Protocol())
            transport.abort()
        self._writer = None

    def _end(self, error: StoreUnavailableError) -> None:
        left = [*self._unknown, *self._waiting]
        self._unknown, self._waiting = [], deque()
        self._is_busy = self._has_moved = False
        fail_all(left, error)
        self._on_free(self)
