"""One stack with an Envoy of each release and profile beside its own, one after the other: every
test of this folder that takes ``client`` runs on each. What differs by profile says ``promise``."""

from collections.abc import Iterator

import pytest
import redis

from extproc.demo.stack import Stack, demo_key
from tests.support import mariadb
from tests.support.client import StackClient, early_in_minute
from tests.support.envoys import another_envoy
from tests.support.targets import TARGETS, Promise, Target

# One a test; more is a fault of this number.
_SERVICES = 100
# An Envoy is started again for each module; its services are used up by all of them.
_free = {
    target: iter([f"t{number}-{one}" for one in range(_SERVICES)])
    for number, target in enumerate(TARGETS)
}


@pytest.fixture(scope="session")
def stack(mariadb_server_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack whose limits live in MariaDB."""
    with (
        mariadb.fresh_database(mariadb_server_url) as url,
        Stack(run_dir=tmp_path_factory.mktemp("profiles"), database_url=url) as running,
    ):
        yield running


@pytest.fixture(scope="session", params=TARGETS, ids=str)
def target(request: pytest.FixtureRequest) -> Target:
    """A profile and a release. Tests are ordered by it, so that one Envoy runs at a time."""
    found: Target = request.param
    return found


@pytest.fixture(scope="session")
def gateway(target: Target, stack: Stack) -> Iterator[tuple[Stack, Iterator[str]]]:
    """The stack as seen through that Envoy, and services that nobody has used."""
    services = [f"t{TARGETS.index(target)}-{number}" for number in range(_SERVICES)]
    keys = {demo_key(service): service for service in services}
    with another_envoy(stack, target.profile, target.version, api_keys=keys) as seen:
        yield seen, _free[target]


@pytest.fixture
def promise(target: Target) -> Promise:
    return target.promise


@pytest.fixture
def client(gateway: tuple[Stack, Iterator[str]]) -> Iterator[StackClient]:
    """A client under a service id that no other test uses."""
    seen, services = gateway
    with redis.Redis.from_url(seen.redis_url, decode_responses=True) as connection:
        early_in_minute(connection)
        client = StackClient(seen, next(services), connection)
        yield client
        client.close()
