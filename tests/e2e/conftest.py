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


@pytest.fixture(scope="module")
def module_client(shared_stack: Stack) -> Iterator[StackClient]:
    """The same for all tests of one module, with room for all of them."""
    for client in _client(shared_stack):
        client.limit()
        yield client


def _client(shared_stack: Stack) -> Iterator[StackClient]:
    with redis.Redis.from_url(shared_stack.redis_url, decode_responses=True) as connection:
        client = StackClient(shared_stack, _SERVICES[next(_free)], connection)
        yield client
        client.close()
