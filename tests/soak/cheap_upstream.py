"""A provider that costs next to nothing: one fixed answer to every request, no journal.

``python -m tests.soak.cheap_upstream --port N`` says "listening" when it is up.
"""

import argparse
import asyncio
from typing import cast

from tests.bench.traffic import answer_body

_HEAD_END = b"\r\n\r\n"


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            return int(value)
    return 0


class _Connection(asyncio.Protocol):
    """Requests have a content-length, as those of the soak have behind Envoy's buffer."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods, and are no asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(_HEAD_END)) >= 0:
            whole = end + len(_HEAD_END) + _length(self._data[:end])
            if len(self._data) < whole:
                return
            self._data = self._data[whole:]
            assert self._transport is not None
            self._transport.write(self._answer)


async def _serve(port: int) -> None:
    body = answer_body()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    answer = head.encode() + _HEAD_END + body
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(answer), "127.0.0.1", port)
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    parser = argparse.ArgumentParser(prog="python -m tests.soak.cheap_upstream")
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(_serve(parser.parse_args().port))
