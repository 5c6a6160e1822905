"""An open-loop generator: requests start at fixed times, however long the answers take.

``python -m tests.bench.steady`` is a process of its own. A request's latency counts from the moment
at which it was due, so that a server which stalls cannot hide it by slowing the generator down.
Says "ready", reads from standard input when to start (of time.monotonic(), which all processes of
a machine share), and prints what it saw as JSON.

Event loops wake up at full milliseconds only, so a thread sleeps until each request is due: it is
then sent some 0.1 ms late, and by how much is part of the result.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread
from typing import cast

from tests.bench.load import ResponseReader
from tests.bench.stream_provider import STAMP_DIGITS, STAMP_PREFIX

READY = "ready"
OPEN_AT_FIRST = 4
_GIVE_UP_SECONDS = 10.0
# The thread that sleeps is not to wait for the other one.
_SWITCH_SECONDS = 0.0001


@dataclass(slots=True)
class Answered:
    """One request, times in seconds: when it was due (after the start), sent (after that), when the
    first event of a stream was there, or all of another answer, and when all of it; the latter two
    count from when it was due. ``status`` 0: no answer, because the connection was lost or the time
    was over."""

    due: float
    late: float = 0.0
    first: float = 0.0
    latency: float = 0.0
    status: int = 0


@dataclass(slots=True)
class Seen:
    """Everything that the generator saw. ``transits``: how long each event of the streams was on
    its way from the provider, in seconds."""

    requests: list[Answered] = field(default_factory=list)
    transits: list[float] = field(default_factory=list)


class _Connection(asyncio.Protocol):
    """One keep-alive connection. ``on_end`` is called with it when its request has ended."""

    def __init__(self, started: float, seen: Seen, on_end: "Callable[[_Connection], None]") -> None:
        self._reader = ResponseReader()
        self._transport: asyncio.Transport | None = None
        self._started = started
        self._seen = seen
        self._on_end = on_end
        self.current: Answered | None = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods, and are no asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes, answered: Answered) -> None:
        assert self._transport is not None
        self.current = answered
        answered.late = self._since_due(answered)
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self.current is None:
            self.close()
            return
        at = data.find(STAMP_PREFIX)
        if at >= 0:
            if not self.current.first:
                self.current.first = self._since_due(self.current)
            self._read_stamps(data, at)
        try:
            is_complete = self._reader.feed(data)
        except ValueError:
            self.close()
            return
        if is_complete:
            self._end(self._reader.status)

    def _read_stamps(self, data: bytes, at: int) -> None:
        now = time.monotonic()
        while at >= 0:
            begin = at + len(STAMP_PREFIX)
            stamp = data[begin : begin + STAMP_DIGITS]
            if len(stamp) == STAMP_DIGITS and stamp.isdigit():
                self._seen.transits.append(now - int(stamp) / 1e9)
            at = data.find(STAMP_PREFIX, begin)

    def _since_due(self, answered: Answered) -> float:
        return time.monotonic() - self._started - answered.due

    def _end(self, status: int) -> None:
        answered, self.current = self.current, None
        if answered is not None:
            answered.status = status
            answered.latency = self._since_due(answered)
            answered.first = answered.first or answered.latency
        self._on_end(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.is_lost = True
        if self.current is not None:
            self._end(0)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _Generator:
    """Connections that are free, and a new one when there is none."""

    def __init__(self, port: int, request: bytes, *, started: float) -> None:
        self._port = port
        self._request = request
        self._started = started
        self._free: deque[_Connection] = deque()
        self._all: list[_Connection] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._open = 0
        self._idle = asyncio.Event()
        self.seen = Seen()

    async def open(self) -> _Connection:
        make = partial(_Connection, self._started, self.seen, self._on_end)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(make, "127.0.0.1", self._port)
        self._all.append(connection)
        return connection

    async def prepare(self, connections: int) -> None:
        self._free.extend([await self.open() for _ in range(connections)])

    def send(self, due: float) -> None:
        """``due`` is of time.monotonic()."""
        answered = Answered(due - self._started)
        self.seen.requests.append(answered)
        self._open += 1
        while self._free:
            connection = self._free.pop()
            if not connection.is_lost:
                connection.send(self._request, answered)
                return
        task = asyncio.get_running_loop().create_task(self._send_on_new(answered))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _send_on_new(self, answered: Answered) -> None:
        try:
            connection = await self.open()
        except OSError:
            self._count_ended()
            return
        connection.send(self._request, answered)

    def _on_end(self, connection: _Connection) -> None:
        if not connection.is_lost:
            self._free.append(connection)
        self._count_ended()

    def _count_ended(self) -> None:
        self._open -= 1
        if not self._open:
            self._idle.set()

    async def finish(self) -> None:
        """Wait for the answers under way; those that do not come keep status 0."""
        try:
            async with asyncio.timeout(_GIVE_UP_SECONDS):
                while self._open:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            pass
        for connection in self._all:
            connection.close()
        await asyncio.sleep(0)  # for the transports, which close in the loop's next turn


def due_times(
    started: float, *, rate: float, on: float, off: float, total: float
) -> Iterator[float]:
    """When requests are due: ``rate`` a second within windows of ``on`` seconds, each followed by
    ``off`` seconds of silence, for ``total`` seconds."""
    number = 0
    while number / rate < total:
        at = number / rate
        if at % (on + off) < on:
            yield started + at
        number += 1


async def steady(
    port: int,
    request: bytes,
    *,
    rate: float,
    on: float,
    off: float,
    total: float,
    started: float,
    connections: int = OPEN_AT_FIRST,
) -> Seen:
    """Requests in the order in which they were due; ``started`` is of time.monotonic().
    ``connections`` are open before the first one."""
    loop = asyncio.get_running_loop()
    generator = _Generator(port, request, started=started)
    await generator.prepare(connections)
    times = due_times(started, rate=rate, on=on, off=off, total=total)
    all_sent = asyncio.Event()
    thread = Thread(target=_send_in_time, args=(loop, times, generator.send, all_sent), daemon=True)
    thread.start()
    await all_sent.wait()
    thread.join()
    await generator.finish()
    return generator.seen


def _send_in_time(
    loop: asyncio.AbstractEventLoop,
    times: Iterable[float],
    send: Callable[[float], None],
    all_sent: asyncio.Event,
) -> None:
    for due in times:
        if (wait := due - time.monotonic()) > 0:
            time.sleep(wait)
        loop.call_soon_threadsafe(send, due)
    loop.call_soon_threadsafe(all_sent.set)


def main() -> int:
    """Entry point of ``python -m tests.bench.steady``."""
    import uvloop

    parser = argparse.ArgumentParser(prog="python -m tests.bench.steady")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--request", type=Path, required=True, help="raw bytes to send")
    for name in ("--rate", "--on", "--off", "--total"):
        parser.add_argument(name, type=float, required=True)
    parser.add_argument("--connections", type=int, default=OPEN_AT_FIRST)
    args = parser.parse_args()
    run = partial(steady, rate=args.rate, on=args.on, off=args.off, total=args.total)
    request = args.request.read_bytes()
    sys.setswitchinterval(_SWITCH_SECONDS)
    print(READY, flush=True)
    started = float(sys.stdin.readline())
    seen = uvloop.run(run(args.port, request, started=started, connections=args.connections))
    print(json.dumps(asdict(seen)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
