"""A real Valkey for tests."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from extproc.demo.valkey import valkey_command
from tests.support.processes import free_port, running


@contextmanager
def valkey_server(directory: Path, *, port: int | None = None) -> Iterator[str]:
    """A Valkey of its own, in memory only; gives its URL."""
    port = port or free_port()
    url = f"redis://127.0.0.1:{port}/0"
    command = valkey_command(port, directory)
    with (
        redis.Redis.from_url(url) as client,
        running(command, log=directory / "valkey.log", is_ready=lambda: _answers(client)),
    ):
        yield url


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def wait_for_quiet_minute(client: redis.Redis, *, seconds: int = 5) -> None:
    """Return when the current minute of Redis' clock has ``seconds`` left or more.

    A test that counts within one minute window must not run across its edge.
    """
    while 60 - client.time()[0] % 60 < seconds:
        time.sleep(0.05)
