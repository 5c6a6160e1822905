"""An open-loop generator: requests start at fixed times, however long the answers take.

``python -m tests.bench.steady`` is a process of its own. A request's latency counts from the moment
at which it was due, so that a server which stalls cannot hide it by slowing the generator down.
Says "ready", reads from standard input when to start (of time.monotonic(), which all processes of
a machine share), and prints the latencies as JSON.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

from tests.bench.load import ResponseReader

READY = "ready"
_GIVE_UP_SECONDS = 10.0
_OPEN_AT_FIRST = 4


class _Connection(asyncio.Protocol):
    """One keep-alive connection. ``answered`` resolves to the status, 0 for a lost connection."""

    def __init__(self) -> None:
        self._reader = ResponseReader()
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods, and are no asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            is_complete = self._reader.feed(data)
        except ValueError:
            self.close()
            return
        if is_complete:
            self._resolve(self._reader.status)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._resolve(0)

    def _resolve(self, status: int) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(status)

    def send(self, request: bytes) -> "asyncio.Future[int]":
        assert self._transport is not None
        self._answered = asyncio.get_running_loop().create_future()
        if self._transport.is_closing():
            self._answered.set_result(0)
        else:
            self._transport.write(request)
        return self._answered

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _Pool:
    """Connections that are free; a new one when there is none."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: deque[_Connection] = deque()
        self._all: list[_Connection] = []

    async def open(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, "127.0.0.1", self._port)
        self._all.append(connection)
        return connection

    async def take(self) -> _Connection:
        return self._free.pop() if self._free else await self.open()

    def give(self, connection: _Connection) -> None:
        self._free.append(connection)

    async def close(self) -> None:
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
    port: int, request: bytes, *, rate: float, on: float, off: float, total: float, started: float
) -> list[tuple[float, float, int]]:
    """(due, latency, status) of every request in order; ``started`` is of time.monotonic()."""
    pool = _Pool(port)
    for connection in [await pool.open() for _ in range(_OPEN_AT_FIRST)]:
        pool.give(connection)
    results: list[tuple[float, float, int]] = []

    async def one(due: float) -> None:
        connection = await pool.take()
        try:
            async with asyncio.timeout(_GIVE_UP_SECONDS):
                status = await connection.send(request)
        except TimeoutError:
            status = 0
        results.append((due - started, time.monotonic() - due, status))
        if status:
            pool.give(connection)
        else:
            connection.close()

    tasks: set[asyncio.Task[None]] = set()
    for due in due_times(started, rate=rate, on=on, off=off, total=total):
        if (wait := due - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(one(due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    await pool.close()
    return sorted(results)


def main() -> int:
    """Entry point of ``python -m tests.bench.steady``."""
    import uvloop

    parser = argparse.ArgumentParser(prog="python -m tests.bench.steady")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--request", type=Path, required=True, help="raw bytes to send")
    for name in ("--rate", "--on", "--off", "--total"):
        parser.add_argument(name, type=float, required=True)
    args = parser.parse_args()
    run = partial(steady, rate=args.rate, on=args.on, off=args.off, total=args.total)
    request = args.request.read_bytes()
    print(READY, flush=True)
    started = float(sys.stdin.readline())
    print(json.dumps(uvloop.run(run(args.port, request, started=started))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
