"""RedisBatcher while connections are being closed, by Redis or by itself."""

import asyncio

import pytest

from extproc.stores.batcher import RedisBatcher
from tests.support.tcp import tcp_server

# Its clients have little patience.
pytestmark = pytest.mark.alone


async def _answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1 << 16)
    writer.write(b"+PONG\r\n")


@pytest.mark.parametrize("turns", range(4))
async def test_a_call_in_the_turn_in_which_redis_closes_is_answered(turns: int) -> None:
    """The end of the old connection is told to us after the new one has begun to open."""
    async with tcp_server(_answer_once) as port:
        batcher = RedisBatcher(url=f"redis://127.0.0.1:{port}/0", timeout_ms=1000)

        async def ask_twice() -> None:
            await batcher.ping()
            for _ in range(turns):
                await asyncio.sleep(0)
            await batcher.ping()

        async with asyncio.timeout(5):
            await ask_twice()
            await batcher.close()
