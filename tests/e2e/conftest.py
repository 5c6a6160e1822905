"""One real stack (Envoy, Valkey, MariaDB, tokenweir, fake provider) shared by the tests that do not
break it; each test gets services of its own, so counters never mix."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from extproc.demo.stack import Stack
from tests.support import mariadb
from tests.support.client import StackClient

_SERVICES = tuple(f"e2e-{number}" for number in range(300))
_free = itertools.count()


@pytest.fixture(scope="session")
def shared_stack(
    mariadb_server_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """A stack whose limits live in MariaDB."""
    run_dir: Path = tmp_path_factory.mktemp("stack")
    with (
        mariadb.fresh_database(mariadb_server_url) as url,
        Stack(run_dir=run_dir, services=_SERVICES, database_url=url) as stack,
    ):
        yield stack


@pytest.fixture
def client(shared_stack: Stack) -> Iterator[StackClient]:
    """A client of the shared stack under a service id that no other test uses."""
    yield from _client(shared_stack)


@pytest.fixture(scope="session")
def sdk_root(shared_stack: Stack) -> Iterator[StackClient]:
    """The root of all calls in ``tests.support.sdk_calls``, whose windows are compared with the
    provider's journal: nothing else is charged here."""
    yield from _with_limits(shared_stack)


@pytest.fixture(scope="session")
def loose_root(shared_stack: Stack) -> Iterator[StackClient]:
    """A root for tests that look at their own reservations only."""
    yield from _with_limits(shared_stack)


def _with_limits(shared_stack: Stack) -> Iterator[StackClient]:
    for client in _client(shared_stack):
        client.limit()
        yield client


def _client(shared_stack: Stack) -> Iterator[StackClient]:
    with redis.Redis.from_url(shared_stack.redis_url, decode_responses=True) as connection:
        client = StackClient(shared_stack, _SERVICES[next(_free)], connection)
        yield client
        client.close()
