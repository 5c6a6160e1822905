"""The load generator: keep-alive HTTP/1.1 connections that send one fixed request again and again.

``python -m tests.bench.load`` is a process of its own, so that its CPU is nobody else's. Each
connection sends its next request when the whole answer to the one before is there. The request is
a file of raw bytes; the result is one JSON object on standard output.
"""

import argparse
import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import cast

# An answer that takes longer is reported as failed, and its connection is given up.
_GIVE_UP_SECONDS = 30.0


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of values in ascending order: a value that really occurred.

    Raises ValueError without values or with a percent outside 0 < percent <= 100.
    """
    if not ordered or not 0 < percent <= 100:
        raise ValueError("a percentile needs values, and a percent in (0, 100]")
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]


class ResponseReader:
    """Reads one HTTP/1.1 response (RFC 9112) after another from one connection, incrementally.

    Knows bodies by content-length and chunked bodies; raises ValueError for anything else, and for
    bytes behind the end, because nobody asked for them.
    """

    def __init__(self) -> None:
        self.status = 0
        self._buffer = b""
        self._in_head = True
        self._is_chunked = False
        self._in_trailers = False
        self._left = 0  # bytes of the body, or of the current chunk and its line end

    def feed(self, data: bytes) -> bool:
        """Take the next bytes; True when they complete the response."""
        self._buffer += data
        if self._in_head and not self._read_head():
            return False
        done = self._read_chunks() if self._is_chunked else self._skip()
        if done:
            if self._buffer:
                raise ValueError(f"{len(self._buffer)} bytes behind the end of the response")
            self._in_head = True
        return done

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        first, *lines = self._buffer[:end].lower().split(b"\r\n")
        if not first.startswith(b"http/1.1 "):
            raise ValueError(f"not an HTTP/1.1 response: {first[:40]!r}")
        headers = dict(line.split(b":", 1) for line in lines)
        self.status = int(first[9:12])
        self._is_chunked = headers.get(b"transfer-encoding", b"").strip() == b"chunked"
        if not self._is_chunked and b"content-length" not in headers:
            raise ValueError("neither content-length nor chunked")
        self._left = 0 if self._is_chunked else int(headers[b"content-length"])
        self._in_head = self._in_trailers = False
        self._buffer = self._buffer[end + 4 :]
        return True

    def _skip(self) -> bool:
        taken = min(self._left, len(self._buffer))
        self._left -= taken
        self._buffer = self._buffer[taken:]
        return self._left == 0

    def _read_chunks(self) -> bool:
        while self._skip():
            end = self._buffer.find(b"\r\n")
            if end < 0:
                return False
            line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
            if self._in_trailers:
                if not line:
                    return True
                continue
            size = int(line.split(b";", 1)[0], 16)
            self._in_trailers = size == 0
            self._left = size + 2 if size else 0
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What the generator saw. ``failed`` counts connections lost or given up within an answer."""

    requests: int
    seconds: float
    statuses: dict[str, int]
    failed: int
    p50_ms: float
    p99_ms: float

    @property
    def per_second(self) -> float:
        """Complete answers a second."""
        return self.requests / self.seconds

    @property
    def not_200(self) -> int:
        """Answers with another status, and connections that failed."""
        return self.requests - self.statuses.get("200", 0) + self.failed


class Client(asyncio.Protocol):
    """One connection. ``until`` bounds the start of requests by the clock, ``each`` by number."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._reader = ResponseReader()
        self._transport: asyncio.Transport | None = None
        self._started = 0.0
        self._until = 0.0
        self._each: int | None = None
        self.seconds: list[float] = []
        self.statuses: Counter[int] = Counter()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods, and are no asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def start(self, *, until: float, each: int | None) -> None:
        """Send the first request."""
        self._until, self._each = until, each
        self._send()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _send(self) -> None:
        assert self._transport is not None
        self._started = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            complete = self._reader.feed(data)
        except ValueError as error:
            self._fail(error)
            return
        if not complete:
            return
        now = time.perf_counter()
        self.seconds.append(now - self._started)
        self.statuses[self._reader.status] += 1
        if now >= self._until or len(self.seconds) == self._each:
            self.done.set_result(None)
            return
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self._fail(exc or ConnectionError("closed within an answer"))

    def _fail(self, error: Exception) -> None:
        self.done.set_exception(error)
        self.close()


async def connect(port: int, requests: Sequence[bytes]) -> list[Client]:
    """A connection to 127.0.0.1:``port`` for each request; nothing is sent yet."""
    loop = asyncio.get_running_loop()
    clients = []
    for request in requests:
        _, client = await loop.create_connection(partial(Client, request), "127.0.0.1", port)
        clients.append(client)
    return clients


async def generate(
    port: int, request: bytes, *, connections: int, seconds: float, each: int | None = None
) -> LoadResult:
    """Send ``request`` to 127.0.0.1:``port``: requests start for ``seconds``, and those under way
    then are finished and counted. ``each``: at most so many on every connection.

    All connections are open before the first request. Raises RuntimeError without any answer.
    """
    clients = await connect(port, [request] * connections)
    started = time.perf_counter()
    for client in clients:
        client.start(until=started + seconds, each=each)
    futures = [client.done for client in clients]
    await asyncio.wait(futures, timeout=seconds + _GIVE_UP_SECONDS)
    took = time.perf_counter() - started
    errors = [f.exception() if f.done() else TimeoutError("no answer") for f in futures]
    for client in clients:
        client.done.cancel()
        client.close()
    latencies = sorted(value for client in clients for value in client.seconds)
    failures = [error for error in errors if error is not None]
    if not latencies:
        raise RuntimeError(f"no answer at all; the first failure: {failures[0]!r}")
    statuses: Counter[int] = sum((client.statuses for client in clients), Counter())
    return LoadResult(
        requests=len(latencies),
        seconds=took,
        statuses={str(status): count for status, count in statuses.items()},
        failed=len(failures),
        p50_ms=percentile(latencies, 50) * 1000,
        p99_ms=percentile(latencies, 99) * 1000,
    )


def main() -> int:
    """Entry point of ``python -m tests.bench.load``."""
    import uvloop

    parser = argparse.ArgumentParser(prog="python -m tests.bench.load")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--request", type=Path, required=True, help="raw bytes to send")
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    result = uvloop.run(
        generate(
            args.port,
            args.request.read_bytes(),
            connections=args.connections,
            seconds=args.seconds,
        )
    )
    print(json.dumps(asdict(result)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
