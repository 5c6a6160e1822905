"""The stores on real servers."""

from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from extproc.stores.batcher import RedisBatcher
from extproc.stores.cluster import RedisCluster
from extproc.stores.limit_table import LimitTable
from extproc.stores.migrate import upgrade
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.reviews import Reviews
from extproc.stores.sql import Database
from tests.support.cluster import ValkeyCluster
from tests.support.engine import Counters, cache_view
from tests.support.explain import World
from tests.support.gateway import Gateway
from tests.support.reservations import Inspector
from tests.support.valkey import wait_for_quiet_minute


@pytest.fixture
async def batcher(redis_url: str) -> AsyncIterator[RedisBatcher]:
    """A patient client: these tests are about answers, on a machine that may be busy."""
    client = RedisBatcher(url=redis_url, timeout_ms=5000)
    yield client
    await client.close()


@pytest.fixture
def store(batcher: RedisBatcher) -> RedisReservationStore:
    """The store under test."""
    return RedisReservationStore(batcher)


@pytest.fixture
async def redis_cluster(cluster: ValkeyCluster) -> AsyncIterator[RedisCluster]:
    """A patient client of the cluster."""
    client = RedisCluster(url=cluster.url, timeout_ms=5000)
    yield client
    await client.close()


@pytest.fixture
def cluster_store(redis_cluster: RedisCluster) -> RedisReservationStore:
    """The store on the cluster."""
    return RedisReservationStore(redis_cluster)


@pytest.fixture
def reviews(batcher: RedisBatcher) -> Reviews:
    """What people say of reservations in review."""
    return Reviews(batcher)


@pytest.fixture
def inspect(redis_client: redis.Redis) -> Inspector:
    """A look at the keys of the usual root, in a minute that does not end soon."""
    wait_for_quiet_minute(redis_client)
    return Inspector(redis_client)


@pytest.fixture
def counters(redis_client: redis.Redis, inspect: Inspector) -> Counters:
    """A look at the counters of a root whose view is cached."""
    cache_view(redis_client)
    return Counters(redis_client)


@pytest.fixture
async def database(sql_url: str) -> AsyncIterator[Database]:
    """An empty database with the newest schema; SQLite and MariaDB in turn."""
    upgrade(sql_url)
    opened = Database(url=sql_url, timeout_ms=10_000)
    yield opened
    await opened.close()


@pytest.fixture
def table(database: Database) -> LimitTable:
    """``service_limit`` in it."""
    return LimitTable(database)


@pytest.fixture
async def world(
    redis_url: str, sqlite_url: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    """An empty one, in a minute that does not end soon; the command finds it too."""
    monkeypatch.setenv("TOKENWEIR_DATABASE__URL", sqlite_url)
    monkeypatch.setenv("TOKENWEIR_REDIS__URL", redis_url)
    upgrade(sqlite_url)
    wait_for_quiet_minute(redis_client, seconds=12)
    made = World(redis_url, sqlite_url, redis_client)
    yield made
    await made.close()


@pytest.fixture
def gateway(store: RedisReservationStore) -> Iterator[Gateway]:
    """Metering in front of the store, with answers in memory."""
    made = Gateway(store)
    yield made
    made.close()
