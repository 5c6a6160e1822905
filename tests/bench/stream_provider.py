"""A provider of one stream: 200 chunks of text, 2 ms apart, the first one at once.

It costs little, so that what is measured has the machine. Each event tells in its ``id`` when it
was written (nanoseconds of time.monotonic(), which all processes of a machine share), so that a
reader at the other end knows how long it was on its way.
"""

import argparse
import asyncio
import signal
import time
from functools import partial
from typing import cast

from tests.bench.answers import openai_chat

PAUSE_SECONDS = 0.002
STAMP_PREFIX = b'"id":"chatcmpl-'
STAMP_DIGITS = 20
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_END = b"0\r\n\r\n"


def events() -> list[tuple[bytes, bytes]]:
    """Each event in HTTP's chunked coding, as what stands before its stamp and behind it. One write
    for the role and the first word, one for all behind the last word."""
    pieces = openai_chat().pieces
    first, *words = (b"".join(pieces[:2]), *pieces[2:-3])
    writes = [first, *words, b"".join(pieces[-3:])]
    framed = [b"%x\r\n%s\r\n" % (len(each), each) for each in writes]
    cut = []
    for each in framed:
        before, prefix, rest = each.partition(STAMP_PREFIX)
        assert prefix
        cut.append((before + prefix, rest[STAMP_DIGITS:]))
    return cut


class StreamProvider(asyncio.Protocol):
    """One connection, one request after the other. Bodies are known by content-length."""

    def __init__(self, events: list[tuple[bytes, bytes]]) -> None:
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._next = 0
        self._started = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods, and are no asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        _, _, length = head.lower().partition(b"\r\ncontent-length:")
        if len(body) < int(length.partition(b"\r\n")[0]):
            return
        self._buffer = b""
        self._next = 0
        assert self._transport is not None
        self._transport.write(_HEAD)
        self._started = self._loop.time()
        self._write()

    def _write(self) -> None:
        """One event, and the next one at its time, so that lateness does not add up."""
        assert self._transport is not None
        before, behind = self._events[self._next]
        self._next += 1
        is_last = self._next == len(self._events)
        stamp = b"%0*d" % (STAMP_DIGITS, time.monotonic_ns())
        self._transport.write(before + stamp + behind + (_END if is_last else b""))
        if not is_last:
            due = self._started + self._next * PAUSE_SECONDS
            self._timer = self._loop.call_at(due, self._write)


async def _serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(StreamProvider, events()), "127.0.0.1", port)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    print("listening", flush=True)
    await stop.wait()
    server.close()


if __name__ == "__main__":
    import uvloop

    parser = argparse.ArgumentParser(prog="python -m tests.bench.stream_provider")
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(_serve(parser.parse_args().port))
