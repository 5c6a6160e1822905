"""Fixtures for all tests: real servers, started when first asked for."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from extproc.demo.processes import choose_ports_with
from tests.support import mariadb
from tests.support.cluster import ValkeyCluster, valkey_cluster
from tests.support.ports import own_free_ports
from tests.support.valkey import valkey_server

choose_ports_with(own_free_ports)

# Each keeps a worker of pytest-xdist busy for a minute or more: they begin first, so that none of
# them is what all others wait for at the end. The name of a module begins so.
_LONG = (
    "test_soak",
    "test_bench_smoke",
    "test_engine_machine",
    "test_cluster",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long modules first, each in its own order."""
    items.sort(key=lambda item: not item.path.name.startswith(_LONG))


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real Valkey, one for the whole run."""
    with valkey_server(tmp_path_factory.mktemp("valkey")) as url:
        yield url


@pytest.fixture
def redis_url(valkey_url: str) -> str:
    """URL of that Valkey, empty."""
    with redis.Redis.from_url(valkey_url) as client:
        client.flushall()
    return valkey_url


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """A plain client for looking into Redis; answers are strings."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture(scope="session")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyCluster]:
    """A real cluster of three masters and three replicas, one for the whole run."""
    with valkey_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: ValkeyCluster) -> ValkeyCluster:
    """That cluster, whole and empty."""
    running_cluster.heal()
    running_cluster.empty()
    return running_cluster


@pytest.fixture(scope="session")
def mariadb_server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real MariaDB or MySQL, one for the whole run; names no database."""
    if not mariadb.is_available():
        pytest.fail(f"neither mariadbd is installed nor {mariadb.URL_VARIABLE} set: make services")
    with mariadb.mariadb_server(tmp_path_factory.mktemp("mariadb")) as url:
        yield url


@pytest.fixture
def mariadb_url(mariadb_server_url: str) -> Iterator[str]:
    """URL of a fresh, empty database on that server."""
    with mariadb.fresh_database(mariadb_server_url) as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'tokenweir.db'}"


@pytest.fixture(params=["sqlite", "mariadb"])
def sql_url(request: pytest.FixtureRequest) -> str:
    """The same test over every SQL store: URL of an empty database."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url
