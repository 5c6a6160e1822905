"""RedisBatcher while connections are being closed, by Redis or by itself."""

import asyncio
import socket
from collections import deque
from pathlib import Path

import pytest

from extproc.core.errors import StoreUnavailableError
from extproc.stores.batcher import RedisBatcher
from extproc.stores.redis_link import Call, RedisLink, pack
from tests.support.tcp import silent, tcp_server
from tests.support.tls import server_tls

# Its clients have little patience.
pytestmark = pytest.mark.alone


async def _answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1 << 16)
    writer.write(b"+PONG\r\n")


async def _ask_twice(url: str, *, turns: int) -> None:
    batcher = RedisBatcher(url=url, timeout_ms=1000)
    async with asyncio.timeout(5):
        await batcher.ping()
        for _ in range(turns):
            await asyncio.sleep(0)
        await batcher.ping()
        await batcher.close()


@pytest.mark.parametrize("turns", range(4))
async def test_a_call_in_the_turn_in_which_redis_closes_is_answered(turns: int) -> None:
    """The end of the old connection is told to us after the new one has begun to open."""
    async with tcp_server(_answer_once) as port:
        await _ask_twice(f"redis://127.0.0.1:{port}/0", turns=turns)


@pytest.mark.parametrize("turns", range(4))
async def test_with_tls_too(tmp_path: Path, turns: int) -> None:
    """There the end is told to whom it was meant for, though another was put in its place."""
    tls, certificate = server_tls(tmp_path)
    async with tcp_server(_answer_once, tls=tls) as port:
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}"
        await _ask_twice(url, turns=turns)


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


@pytest.mark.parametrize("turns", range(4))
async def test_a_link_that_is_closed_while_it_opens_answers(turns: int) -> None:
    freed: list[RedisLink] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        batcher = RedisBatcher(url=f"redis://127.0.0.1:{server.getsockname()[1]}/0")
        link = RedisLink(
            batcher._make_connection, timeout=5, on_free=freed.append, on_moved=lambda: None
        )
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        packed = pack(("PING",), asking=False)
        link.start(deque([Call(("PING",), packed, loop.time(), future)]))
        for _ in range(turns):
            await asyncio.sleep(0)
        link.close()
        async with asyncio.timeout(5):
            with pytest.raises(StoreUnavailableError):
                await future
        assert freed == [link]
        await asyncio.sleep(0)  # for the transport, which closes in the loop's next turn
