"""Ways to reach Redis, of which redis-py knows the beginning and we read the rest: TLS, Unix
sockets, passwords and database numbers, replies in any pieces."""

import asyncio
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from extproc.core.errors import StoreUnavailableError
from extproc.stores.batcher import RedisBatcher
from extproc.stores.scripts import Script
from tests.support.tcp import Handler, tcp_server
from tests.support.tls import server_tls

_PATIENCE_MS = 5000


async def _check(url: str) -> None:
    """Many calls at once, a script that is not known yet, and text that is none."""
    batcher = RedisBatcher(url=url, timeout_ms=_PATIENCE_MS)
    try:
        texts = [f"{number} " * (number % 40) for number in range(300)]
        echoes = await asyncio.gather(*(batcher.command("ECHO", text) for text in texts))
        assert echoes == texts
        script = Script("once", f"return {{ARGV[1], 7}} -- {url}", "0" * 40)
        assert await batcher.run(script, ("k",), ("a",)) == ["a", 7]
    finally:
        await batcher.close()


def _pipe_url(url: str, port: int, scheme: str = "redis") -> str:
    return f"{scheme}://127.0.0.1:{port}{urlsplit(url).path}"


def _proxy(url: str, *, piece: int = 1 << 16) -> Handler:
    """Passes everything between a client and the Redis at ``url``, replies in small pieces."""
    target = urlsplit(url)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        replies, commands = await asyncio.open_connection(target.hostname, target.port)

        async def answers() -> None:
            while data := await replies.read(1 << 16):
                for at in range(0, len(data), piece):
                    writer.write(data[at : at + piece])
                    await asyncio.sleep(0)

        passing = asyncio.create_task(answers())
        while data := await reader.read(1 << 16):
            commands.write(data)
        passing.cancel()
        commands.close()
        await asyncio.gather(passing, commands.wait_closed(), return_exceptions=True)

    return handle


async def test_tls(redis_url: str, tmp_path: Path) -> None:
    tls, certificate = server_tls(tmp_path)
    async with tcp_server(_proxy(redis_url), tls=tls) as port:
        url = _pipe_url(redis_url, port, "rediss")
        await _check(f"{url}?ssl_ca_certs={certificate}")


async def test_a_unix_socket(redis_url: str, tmp_path: Path) -> None:
    path = str(tmp_path / "r.sock")
    async with tcp_server(_proxy(redis_url), path=path):
        await _check(f"unix://{path}?db=0")


@pytest.mark.parametrize("piece", [1, 2, 7, 1000])
async def test_replies_in_pieces(redis_url: str, piece: int) -> None:
    async with tcp_server(_proxy(redis_url, piece=piece)) as port:
        await _check(_pipe_url(redis_url, port))


async def test_a_password_and_a_database(redis_url: str, redis_client: "redis.Redis") -> None:
    redis_client.acl_setuser(
        "linked", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all"]
    )
    try:
        url = redis_url.replace("://", "://linked:pw@").rsplit("/", 1)[0]
        batcher = RedisBatcher(url=f"{url}/3", timeout_ms=_PATIENCE_MS)
        await batcher.command("SET", "where", "three")
        await batcher.close()
        with redis.Redis.from_url(f"{url}/3", decode_responses=True) as there:
            assert there.get("where") == "three"
            there.delete("where")
    finally:
        redis_client.acl_deluser("linked")


async def test_a_redis_that_stops_reading_costs_one_timeout() -> None:
    """What cannot be sent waits in memory no longer than the calls that it belongs to."""

    over = asyncio.Event()

    async def deaf(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await over.wait()

    async with tcp_server(deaf) as port:
        batcher = RedisBatcher(url=f"redis://127.0.0.1:{port}/0", timeout_ms=300)
        calls = [batcher.command("ECHO", "x" * 1_000_000) for _ in range(20)]
        async with asyncio.timeout(10):
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(answer, StoreUnavailableError) for answer in answers)
            await batcher.close()
        over.set()


async def test_a_connection_that_was_closed_while_the_loop_was_busy_is_not_used(
    redis_url: str, redis_client: redis.Redis
) -> None:
    """A call that is sent into it would be one that may have run."""
    batcher = RedisBatcher(url=redis_url, timeout_ms=_PATIENCE_MS)
    number = await batcher.command("CLIENT", "ID")
    (link,) = batcher._idle
    redis_client.client_kill_filter(_id=number)
    deadline = time.monotonic() + 5
    while not link._has_news():  # the loop does not run meanwhile, and so hears nothing
        assert time.monotonic() < deadline
    assert await batcher.command("CLIENT", "ID") != number
    await batcher.close()
