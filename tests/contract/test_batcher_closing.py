"""RedisBatcher while connections are being closed, by Redis or by itself."""

import asyncio

import pytest

from extproc.core.errors import StoreUnavailableError
from extproc.stores.batcher import RedisBatcher
from tests.support.tcp import silent, tcp_server

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


async def test_closing_ends_though_those_who_still_waited_have_left() -> None:
    async with tcp_server(silent) as port:
        url = f"redis://127.0.0.1:{port}/0"
        batcher = RedisBatcher(url=url, timeout_ms=200, max_connections=1)
        sent = asyncio.create_task(batcher.ping())
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # its batch is under way
        waiting = asyncio.create_task(batcher.ping())
        await asyncio.sleep(0)
        waiting.cancel()
        async with asyncio.timeout(5):
            await batcher.close()
        with pytest.raises(StoreUnavailableError):
            await sent


async def test_an_opening_that_is_cancelled_at_once_answers_its_calls() -> None:
    async with tcp_server(silent) as port:
        batcher = RedisBatcher(url=f"redis://127.0.0.1:{port}/0", timeout_ms=60_000)
        asked = asyncio.create_task(batcher.ping())
        await asyncio.sleep(0)
        batcher._flush()
        (link,) = batcher._busy
        link.close()
        async with asyncio.timeout(5):
            with pytest.raises(StoreUnavailableError, match="stopped"):
                await asked
            await batcher.close()
