"""A server that is stopped in order, behind a real Envoy with two of them."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import redis

from extproc.demo.stack import Stack
from tests.support.client import StackClient, eventually

_CLIENTS = 4
_DRAIN_SECONDS = 3.0


@pytest.fixture
def stack() -> Iterator[Stack]:
    drain = {"TOKENWEIR_SERVER__DRAIN_SECONDS": str(_DRAIN_SECONDS)}
    with Stack(services=("c",), servers=2, serve_env=drain) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[StackClient]:
    with redis.Redis.from_url(stack.redis_url, decode_responses=True) as connection:
        client = StackClient(stack, "c", connection)
        client.limit(rpm=1_000_000, tpm=1_000_000_000)
        yield client
        client.close()


class Load:
    """Requests one after the other from each of some clients, until the end of the block."""

    def __init__(self, client: StackClient) -> None:
        self.statuses: list[int] = []
        self._client = client
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(_CLIENTS)]

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.statuses.append(self._client.post(fake="output=5").status)
            except OSError:
                self.statuses.append(0)

    def more(self, count: int) -> None:
        """Wait for so many more answers."""
        wanted = len(self.statuses) + count
        eventually(lambda: len(self.statuses) >= wanted)

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_no_request_fails_while_one_of_two_servers_is_stopped(
    stack: Stack, client: StackClient
) -> None:
    with Load(client) as load:
        load.more(40)
        began = time.monotonic()
        stack.stop_one("serve-2")
        assert time.monotonic() - began >= _DRAIN_SECONDS
        load.more(40)
    assert set(load.statuses) == {200}, sum(status != 200 for status in load.statuses)


def test_a_second_signal_ends_the_drain() -> None:
    drain = {"TOKENWEIR_SERVER__DRAIN_SECONDS": "60"}
    with Stack(services=("c",), serve_env=drain, with_work=False) as stack:
        child = stack.child("serve")
        assert child.pid is not None
        os.kill(child.pid, signal.SIGTERM)
        eventually(lambda: '"stopping"' in stack.log("serve"))
        os.kill(child.pid, signal.SIGINT)
        eventually(lambda: not child.running)
        assert child.exit_status == 0
