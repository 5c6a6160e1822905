"""Clients of the soak: keep-alive HTTP/1.1 over raw sockets, some of which leave too early."""

import asyncio
from collections import deque
from dataclasses import dataclass

from tests.bench.load import ResponseReader

LEFT, LOST = "left", "lost"
_READ_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is sent. ``leave_after_bytes``: hang up when so much of the answer has come; 0 with
    ``leave_after_seconds``: hang up before it. None: stay to the end."""

    kind: str
    raw: bytes
    leave_after_bytes: int | None = None
    leave_after_seconds: float = 0.0


class Pool:
    """Connections to one port of loopback that are free; a new one when there is none."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = deque()

    async def send(self, request: Request, *, give_up_seconds: float) -> str:
        """The status of the whole answer as text, "left" when we hung up as planned, "lost" when
        the connection ended early or the time passed."""
        reader, writer = await self._take()
        is_clean = False
        try:
            async with asyncio.timeout(give_up_seconds):
                writer.write(request.raw)
                if request.leave_after_bytes is not None:
                    await asyncio.sleep(request.leave_after_seconds)
                    if request.leave_after_bytes:
                        await reader.readexactly(request.leave_after_bytes)
                    return LEFT
                response = ResponseReader()
                while not response.feed(data := await reader.read(_READ_BYTES)):
                    if not data:
                        return LOST
                # Envoy closes behind refusals of bodies that it has not read.
                is_clean = response.status < 400
                return str(response.status)
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            return LOST
        finally:
            if is_clean:
                self._free.append((reader, writer))
            else:
                writer.transport.abort()

    async def _take(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._free:
            reader, writer = self._free.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.transport.abort()
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def close(self) -> None:
        """Close those that are free."""
        for _, writer in self._free:
            writer.transport.abort()
        self._free.clear()
        await asyncio.sleep(0)  # transports close in the loop's next turn
