"""An in-memory gRPC stream: the handlers' `context`, fed and read by a test."""

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc


class MemoryContext:
    """Hands over messages as Envoy would, and keeps what the handler writes.

    Without ``half_close`` a read after the last message waits, like a stream that stays open, until
    the test cancels the handler. ``write_error`` is raised by the first write.
    """

    def __init__(
        self,
        messages: Iterable[Any] = (),
        *,
        half_close: bool = True,
        write_error: BaseException | None = None,
    ) -> None:
        self.messages = list(messages)
        self.written: list[Any] = []
        self.aborted: tuple[grpc.StatusCode, str] | None = None
        self._half_close = half_close
        self._write_error = write_error
        self.idle = asyncio.Event()

    async def read(self) -> Any:
        if self.messages:
            return self.messages.pop(0)
        if self._half_close:
            return grpc.aio.EOF
        self.idle.set()
        return await asyncio.get_running_loop().create_future()

    async def write(self, message: Any) -> None:
        if self._write_error is not None:
            raise self._write_error
        self.written.append(message)

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.aborted = (code, details)
        raise grpc.aio.AbortError
