"""A master changes, by order or by death, while requests come: nothing is charged twice."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis

from extproc.core.errors import StoreUnavailableError
from extproc.core.reservations import Admitted
from extproc.stores.batcher import RedisBatcher
from extproc.stores.cluster import RedisCluster
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.scripts import SETTLE, load_script
from tests.support.cluster import ValkeyCluster, wait_until
from tests.support.cluster_load import CHARGE, Load, cache_limits, counted
from tests.support.reservations import Inspector, request, settlement
from tests.support.tcp import tcp_server
from tests.support.valkey import valkey_server

# As in production, but for a machine that is busy with six servers and the tests of others.
TIMEOUT_MS = 250


@asynccontextmanager
async def load_on(cluster: ValkeyCluster, roots: list[str]) -> AsyncIterator[Load]:
    client = RedisCluster(url=cluster.url, timeout_ms=TIMEOUT_MS)
    store = RedisReservationStore(client)
    await store.ping()
    cache_limits(cluster, roots)
    load = Load(store, roots)
    try:
        yield load
    finally:
        await load.abandon()
        await client.close()


async def test_an_orderly_failover_under_load_loses_and_doubles_nothing(
    cluster: ValkeyCluster,
) -> None:
    roots = cluster.roots()
    old = cluster.owner(f"{{{roots[0]}}}")
    # A replica is not told of scripts.
    settle = load_script(SETTLE).sha
    replica = cluster.replica_of(old)
    replica.call("SCRIPT", "FLUSH")
    assert replica.call("SCRIPT", "EXISTS", settle) == [0]
    async with load_on(cluster, roots) as load:
        await load.run_for_answers(100)
        new = await asyncio.to_thread(cluster.failover, old)
        assert new is replica
        await load.run_for_answers(100)
        await load.stop()
    for root, ledger in load.ledgers.items():
        told = len(ledger.admitted)
        assert told >= 200
        assert counted(cluster, root) == (told, CHARGE * told, 0)
        assert ledger.longest_gap < 5
    assert new.call("SCRIPT", "EXISTS", settle) == [1]


async def test_a_killed_master_is_replaced_in_seconds_and_nothing_is_charged_twice(
    cluster: ValkeyCluster,
) -> None:
    """Replication is asynchronous: what the dead master had acknowledged last may be lost, and is
    counted here. Nothing else may differ, and nothing at all at the other masters."""
    roots = cluster.roots()
    dead = cluster.owner(f"{{{roots[0]}}}")
    async with load_on(cluster, roots) as load:
        await load.run_for_answers(100)
        killed_at = time.monotonic()
        await asyncio.to_thread(dead.process.kill)
        # Meanwhile the roots of the others are served (until the cluster says that it is down).
        await load.run_for_answers(100)
        await load.stop()
        recovered = {root: ledger.longest_gap for root, ledger in load.ledgers.items()}
        assert cluster.owner(f"{{{roots[0]}}}") is not dead
        for root, ledger in load.ledgers.items():
            told = len(ledger.admitted)
            lost = await load.settle_again(root)
            late = [at for at in ledger.admitted.values() if killed_at - 1 <= at <= killed_at]
            assert lost <= (len(late) if root == roots[0] else 0)
            kept = told - lost
            assert counted(cluster, root) == (kept, CHARGE * kept, 0)
    assert recovered[roots[0]] < 15
    assert load.ledgers[roots[0]].failures > 0
    cluster.heal()


async def test_a_new_worker_is_not_ready_while_a_master_is_away(cluster: ValkeyCluster) -> None:
    dead = cluster.masters()[0]
    client = RedisCluster(url=cluster.url, timeout_ms=TIMEOUT_MS)
    store = RedisReservationStore(client)
    try:
        dead.process.kill()
        with pytest.raises(StoreUnavailableError) as caught:
            await store.ping()
        assert caught.value.transient
        deadline = time.monotonic() + 20
        while True:  # as the server does at its start
            try:
                await store.ping()
                break
            except StoreUnavailableError:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
        cluster.heal()
    finally:
        await client.close()


async def test_a_demoted_master_is_left_at_the_next_call(cluster: ValkeyCluster) -> None:
    """Its sockets stay open, so nobody else says that it is a replica now."""
    first, second, *_ = cluster.roots()
    root, start = first, cluster.owner(f"{{{second}}}").port
    cache_limits(cluster, [root])
    client = RedisCluster(url=f"redis://127.0.0.1:{start}", timeout_ms=2000)
    store = RedisReservationStore(client)
    try:
        assert isinstance(await store.reserve(request(rid="r1", root=root)), Admitted)
        old = cluster.owner(f"{{{root}}}")
        cluster.failover(old)
        assert (await store.settle(settlement("r1", root=root))).charged_tokens == CHARGE
        assert client.redirections == 1
        assert counted(cluster, root) == (1, CHARGE, 0)
        # What owns nothing is not kept.
        async with asyncio.timeout(5):
            while any(node.port == old.port for node in client._topology._nodes):
                await asyncio.sleep(0.01)
    finally:
        await client.close()


async def test_a_master_that_was_shut_down_after_an_orderly_failover_is_not_missed(
    cluster: ValkeyCluster,
) -> None:
    """A rolling restart, without traffic: the first call finds nobody there, asks and goes on."""
    (root, *_) = cluster.roots()
    cache_limits(cluster, [root])
    client = RedisCluster(url=cluster.url, timeout_ms=2000)
    store = RedisReservationStore(client)
    try:
        await store.ping()
        old = cluster.owner(f"{{{root}}}")
        cluster.failover(old)
        old.process.kill()
        # The map may be asked for again: it is not so young any more.
        loop, topology = asyncio.get_running_loop(), client._topology
        while loop.time() < topology._not_before:
            await asyncio.sleep(0.01)
        assert isinstance(await store.reserve(request(root=root)), Admitted)
        cluster.heal()
    finally:
        await client.close()


async def test_one_name_that_leads_to_another_server_recovers_in_seconds(
    redis_url: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    """Without a cluster: a name (here a forwarder) moves to the new primary, and the connections to
    the demoted one stay open. READONLY must not be for ever."""
    with valkey_server(tmp_path) as other_url, redis.Redis.from_url(other_url) as other:
        ports = {
            name: int(url.rpartition(":")[2].removesuffix("/0"))
            for name, url in (
                ("old", redis_url),
                ("new", other_url),
            )
        }
        leads_to = "old"

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            back, there = await asyncio.open_connection("127.0.0.1", ports[leads_to])

            async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                while data := await source.read(1 << 16):
                    sink.write(data)
                sink.close()

            await asyncio.gather(pump(reader, there), pump(back, writer))

        async with tcp_server(forward) as port:
            client = RedisBatcher(url=f"redis://127.0.0.1:{port}/0", timeout_ms=2000)
            store = RedisReservationStore(client)
            try:
                Inspector(redis_client).cache(rpm=10, tpm=1000)
                redis_client.config_set("repl-diskless-sync-delay", 0)
                other.replicaof("127.0.0.1", str(ports["old"]))
                wait_until(lambda: other.info("replication")["master_link_status"] == "up")
                assert isinstance(await store.reserve(request(rid="r1")), Admitted)
                wait_until(lambda: other.exists("resv:{svc-1}:r1"))
                other.replicaof("NO", "ONE")
                redis_client.replicaof("127.0.0.1", str(ports["new"]))
                with pytest.raises(StoreUnavailableError) as caught:
                    await store.settle(settlement("r1"))
                assert (caught.value.transient, caught.value.maybe_applied) == (True, False)
                leads_to = "new"
                started = time.monotonic()
                while True:
                    try:
                        result = await store.settle(settlement("r1"))
                        break
                    except StoreUnavailableError:
                        assert time.monotonic() - started < 5
                assert result.charged_tokens == CHARGE
            finally:
                await client.close()
                redis_client.replicaof("NO", "ONE")
