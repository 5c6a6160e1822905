"""TCP servers that misbehave on purpose."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes everything and answers nothing."""
    await reader.read()


class Losing:
    """Passes everything on to a real Valkey, but swallows the next ``lose_requests`` calls, and the
    next ``lose`` replies."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = parts.hostname, parts.port
        self.lose = self.lose_requests = 0
        self.requests = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, to_upstream = await asyncio.open_connection(*self._address)

        async def answers() -> None:
            while data := await upstream.read(65_536):
                if self.lose > 0:
                    self.lose -= 1
                    continue
                writer.write(data)

        passing = asyncio.create_task(answers())
        while data := await reader.read(65_536):
            self.requests += 1
            if self.lose_requests > 0:
                self.lose_requests -= 1
                continue
            to_upstream.write(data)
        to_upstream.close()
        passing.cancel()


@asynccontextmanager
async def tcp_server(
    handler: Handler, *, tls: ssl.SSLContext | None = None, path: str = ""
) -> AsyncIterator[int]:
    """Serve ``handler`` on a free port, which is given (or on the Unix socket ``path``); every
    connection is closed at its end."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await handler(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(handle(reader, writer)))

    if path:
        server = await asyncio.start_unix_server(connected, path)
    else:
        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        yield 0 if path else int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        if tasks:
            _, hanging = await asyncio.wait(tasks, timeout=5)
            assert not hanging, "a client did not close its connection"
