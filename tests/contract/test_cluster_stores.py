"""The stores on a real cluster: every verb, all keys of a root in one slot."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import redis

from extproc.core.buckets import Bucket
from extproc.core.errors import StoreUnavailableError
from extproc.core.explain import ReservationReport
from extproc.core.limits import ServiceLimit
from extproc.core.policies import Block, Descriptor, Dimension, LimitPolicy, Rule, Scope
from extproc.core.policy_plan import EPOCH, PolicyDraft, PolicyFile
from extproc.core.reservations import (
    Admitted,
    Knowledge,
    LimitsMissing,
    Rejected,
    SettleStatus,
    State,
)
from extproc.core.reserving import Attempt, Reserver
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.cluster import RedisCluster
from extproc.stores.explain import explain_subject
from extproc.stores.explain_records import explain_reservation
from extproc.stores.limit_admin import LimitAdmin, PolicyAdmin
from extproc.stores.limit_lookup import CachedLimitSource
from extproc.stores.limit_table import LimitTable
from extproc.stores.migrate import upgrade
from extproc.stores.policy_table import PolicyTable
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.scripts import SETTLE, load_script
from extproc.stores.slots import slot_of
from extproc.stores.sql import Database
from extproc.stores.views import Views
from tests.support.cluster import Node, ValkeyCluster, wait_until
from tests.support.engine import STRICT, VERSION, cache_view, twelve_limits
from tests.support.engine import asking as asking_for
from tests.support.policies import policy
from tests.support.reservations import ROOT, Inspector, request, settlement
from tests.support.valkey import wait_for_quiet_minute

ACROSS = "across:provider:openai"


@pytest.fixture
async def database(sqlite_url: str) -> Database:
    upgrade(sqlite_url)
    return Database(url=sqlite_url, timeout_ms=10_000)


@pytest.fixture
def roots(cluster: ValkeyCluster) -> list[str]:
    """One in each master, in a minute that does not end soon."""
    wait_for_quiet_minute(cluster.nodes[0].client)
    return cluster.roots()


def inspector(cluster: ValkeyCluster, root: str) -> Inspector:
    return Inspector(cluster.owner(f"{{{root}}}").client, root)


def slots_of_keys(cluster: ValkeyCluster) -> dict[str, int]:
    """The slot of each key, by the server's own word."""
    node = cluster.nodes[0]
    return {key: int(node.call("CLUSTER", "KEYSLOT", key)) for key in cluster.all_keys()}


def assert_each_root_has_one_slot(cluster: ValkeyCluster, *roots: str) -> None:
    found = slots_of_keys(cluster)
    for root in roots:
        own = [key for key in found if f"{{{root}}}" in key]
        assert len(own) >= 3, own
        assert {found.pop(key) for key in own} == {slot_of(f"{{{root}}}")}
    assert set(found) <= {keys.ROOTS, keys.ROOTS_ACROSS}


async def test_every_verb_works_in_every_master(
    cluster: ValkeyCluster,
    redis_cluster: RedisCluster,
    cluster_store: RedisReservationStore,
    database: Database,
    roots: list[str],
) -> None:
    admin = LimitAdmin(redis_cluster, LimitTable(database))
    source = CachedLimitSource(redis_cluster, PolicyTable(database))
    await cluster_store.ping()
    for root in roots:
        await admin.set(root, rpm=3, tpm=1000)
        assert await cluster_store.reserve(request(root=root)) == LimitsMissing()
        assert (await source.load(root)).cached
        admitted = await cluster_store.reserve(request(rid="r1", root=root))
        assert isinstance(admitted, Admitted)
        again = await cluster_store.reserve(request(rid="r1", root=root))
        assert isinstance(again, Admitted)
        assert again.minute == admitted.minute
        settled = await cluster_store.settle(settlement("r1", root=root, history=True))
        assert (settled.status, settled.charged_tokens) == (SettleStatus.APPLIED, 30)
        assert isinstance(await cluster_store.reserve(request(rid="r2", root=root)), Admitted)
        assert await cluster_store.renew(root, "r2", deadline_ms=120_000)
        released = await cluster_store.release(settlement("r2", root=root))
        assert released.status is SettleStatus.APPLIED
        late = request(rid="r3", root=root, deadline_ms=0)
        assert isinstance(await cluster_store.reserve(late), Admitted)
        (overdue,) = await cluster_store.overdue(root, at_most=10)
        assert overdue.reservation_id == "r3"
        assert await cluster_store.open_count(root) == 1
        refused = await cluster_store.reserve(request(root=root))
        assert isinstance(refused, Rejected)
        assert refused.refused_by == "rpm"
        # What the first used, and what the third still holds.
        assert inspector(cluster, root).used() == (3, 30 + 110)
    assert await cluster_store.roots() == sorted(roots)
    assert redis_cluster.redirections == 0
    assert_each_root_has_one_slot(cluster, *roots)
    homes = {cluster.owner(f"{{{root}}}").port for root in roots}
    assert len(homes) == 3
    await source.close()
    await database.close()


def at_root(root: str) -> tuple[Bucket, ...]:
    return tuple(
        replace(bucket, key=bucket.key.replace(f"{{{ROOT}}}", f"{{{root}}}"))
        for bucket in twelve_limits(limit=10**9)
    )


async def test_twelve_limits_of_every_kind_decide_in_one_slot(
    cluster: ValkeyCluster, cluster_store: RedisReservationStore, roots: list[str]
) -> None:
    for root in roots:
        cache_view(cluster.owner(f"{{{root}}}").client, root=root)
        for rid in ("r1", "r2"):
            wanted = asking_for(
                *at_root(root), rid=rid, root=root, input_price=10**6, output_price=10**6
            )
            verdict = await cluster_store.reserve(wanted)
            assert isinstance(verdict, Admitted)
            assert len(verdict.buckets) == 12
        assert await cluster_store.renew(root, "r1", deadline_ms=120_000)
        assert (await cluster_store.settle(settlement("r1", root=root))).charged_tokens == 30
        assert (await cluster_store.release(settlement("r2", root=root))).charged_tokens == 0
        client = cluster.owner(f"{{{root}}}").client
        assert client.zcard(keys.slots(root, "agent.concurrent.agent:crawler")) == 0
        (day,) = client.scan_iter(keys.quota_prefix(root, "user.tokens_per_day.user:alice") + "*")
        assert client.hget(day, "used") == "30"
    assert_each_root_has_one_slot(cluster, *roots)


async def apply(admin: PolicyAdmin, *of: LimitPolicy, root: str | None) -> None:
    drafts = (PolicyDraft(policy=replace(one, root=root, effective_from=EPOCH)) for one in of)
    file = PolicyFile(root=root, drafts=tuple(drafts))
    await admin.apply(file, await admin.plan(file))


async def test_a_limit_across_roots_is_a_second_call_in_another_slot(
    cluster: ValkeyCluster,
    redis_cluster: RedisCluster,
    cluster_store: RedisReservationStore,
    database: Database,
    roots: list[str],
) -> None:
    policies = PolicyTable(database)
    admin, source = PolicyAdmin(redis_cluster, policies), CachedLimitSource(redis_cluster, policies)
    ceiling = policy(
        "ceiling",
        scope=Scope.PROVIDER,
        value="openai",
        across_roots=True,
        rules=(Rule(dimension=Dimension.RPM, limit=3),),
    )
    await apply(admin, ceiling, root=None)
    reserver = Reserver(
        store=cluster_store,
        limits=source,
        views=Views(),
        estimate=STRICT,
        clock=lambda: datetime.now(UTC),
    )

    async def ask(root: str, rid: str) -> object:
        await LimitTable(database).put(root, rpm=10, tpm=1000)
        values = {Scope.SERVICE: root, Scope.PROVIDER: "openai"}
        descriptor = Descriptor(root=root, values=values, requested_model="gpt-4o")
        return await reserver.reserve(Attempt(request(rid=rid, root=root, cap=20), descriptor))

    assert len({cluster.owner(f"{{{root}}}").port for root in (*roots, ACROSS)}) == 3
    for root in roots:
        assert isinstance(await ask(root, f"{root}.1"), Admitted)
        settled = await cluster_store.settle(settlement(f"{root}.1", root=root))
        assert (settled.status, settled.other_roots) == (SettleStatus.APPLIED, (ACROSS,))
        assert inspector(cluster, ACROSS).record(f"{root}.1")["state"] == State.SETTLED
    shared = keys.minute_prefix(ACROSS, "ceiling.rpm.provider:openai")
    minute = inspector(cluster, ACROSS).minute()
    assert cluster.owner(f"{{{ACROSS}}}").client.get(shared + minute) == "3"
    refused = await ask(roots[0], "late")
    assert isinstance(refused, Rejected)
    assert refused.refused_by == "ceiling/rpm"
    # What the own root had taken is given back.
    assert inspector(cluster, roots[0]).used() == (1, 30)
    assert_each_root_has_one_slot(cluster, *roots, ACROSS)

    # A change of what concerns all roots clears the cache of each, wherever it is.
    await apply(admin, root=None)
    assert not [key for key in cluster.all_keys() if key.startswith("config:")]
    await source.close()
    await database.close()


async def test_a_set_of_roots_that_was_lost_alone_hides_nobody(
    cluster: ValkeyCluster,
    redis_cluster: RedisCluster,
    cluster_store: RedisReservationStore,
    database: Database,
    roots: list[str],
) -> None:
    """Its master came back empty; those of the services have everything."""
    policies = PolicyTable(database)
    admin, source = PolicyAdmin(redis_cluster, policies), CachedLimitSource(redis_cluster, policies)
    for root in roots:
        await LimitTable(database).put(root, rpm=10, tpm=1000)
        await source.load(root)
    # Of the other services too, such as one whose row is gone.
    gone = [f"{root}-gone" for root in roots]
    for root in gone:
        cluster.owner(keys.config(root)).client.hset(keys.config(root), "status", "1")
    registry = cluster.owner(keys.ROOTS).client
    registry.delete(keys.ROOTS)
    assert isinstance(await cluster_store.reserve(request(root=roots[0])), Admitted)
    await asyncio.to_thread(wait_until, lambda: registry.smembers(keys.ROOTS) == {roots[0]})
    await admin.block(Block(scope=Scope.USER, value="eve"))
    assert not [key for key in cluster.all_keys() if key.startswith("config:")]
    await source.close()
    await database.close()


async def test_explain_looks_into_every_master(
    cluster: ValkeyCluster,
    redis_cluster: RedisCluster,
    cluster_store: RedisReservationStore,
    database: Database,
    roots: list[str],
) -> None:
    for root in roots:
        await LimitTable(database).put(root, rpm=10, tpm=1000)
        inspector(cluster, root).cache(rpm=10, tpm=1000)
        await cluster_store.reserve(replace(request(rid="r1", root=root), request_id=f"of-{root}"))
        (found,) = await explain_reservation(
            redis_cluster, database, root=root, wanted_id=f"of-{root}"
        )
        assert isinstance(found, ReservationReport)
        assert (found.reservation_id, found.reserved_tokens) == ("r1", 110)
        descriptor = Descriptor(root=root, values={Scope.SERVICE: root}, requested_model="gpt-4o")
        report = await explain_subject(redis_cluster, database, descriptor=descriptor)
        assert [(limit.label, limit.used) for limit in report.limits] == [
            ("service_limit/rpm", 1),
            ("service_limit/total_tpm", 110),
        ]
        assert report.holds[0].open == 1
    pages = [page async for page in redis_cluster.scan("resv:*")]
    assert sorted(name for page in pages for name in page) == sorted(
        keys.reservation(root, "r1") for root in roots
    )
    await database.close()


async def test_scripts_are_known_to_every_master_and_forgotten_ones_are_sent_once_more(
    cluster: ValkeyCluster,
    redis_cluster: RedisCluster,
    cluster_store: RedisReservationStore,
    roots: list[str],
) -> None:
    sha = load_script(SETTLE).sha
    for node in cluster.masters():
        node.call("SCRIPT", "FLUSH")
    await cluster_store.ping()
    assert [node.call("SCRIPT", "EXISTS", sha) for node in cluster.masters()] == [[1]] * 3
    for root in roots:
        inspector(cluster, root).cache(rpm=10, tpm=1000)
        assert isinstance(await cluster_store.reserve(request(rid="r1", root=root)), Admitted)
    for node in cluster.masters():
        node.call("SCRIPT", "FLUSH")
    for root in roots:
        await cluster_store.settle(settlement("r1", root=root))
        assert inspector(cluster, root).used() == (1, 30)
    assert redis_cluster.redirections == 0


async def test_eval_works_where_script_load_is_forbidden(
    cluster: ValkeyCluster, roots: list[str]
) -> None:
    """The user and its password hold for nodes that only the cluster names, too."""
    for node in cluster.nodes:
        node.call("ACL", "SETUSER", "limited", "on", ">pw", "~*", "+@all", "-script")
        node.call("SCRIPT", "FLUSH")
    first = cluster.nodes[0].port
    client = RedisCluster(url=f"redis://limited:pw@127.0.0.1:{first}", timeout_ms=5000)
    try:
        store = RedisReservationStore(client)
        await store.ping()
        for root in roots:
            inspector(cluster, root).cache(rpm=10, tpm=1000)
            assert isinstance(await store.reserve(request(root=root)), Admitted)
        for node in cluster.masters():
            assert "user=limited" in node.call("CLIENT", "LIST")
    finally:
        await client.close()
        for node in cluster.nodes:
            node.call("ACL", "DELUSER", "limited")


@pytest.mark.parametrize("kind", ["hostname", "unknown-endpoint"])
async def test_nodes_may_go_by_names_or_know_no_address(
    cluster: ValkeyCluster, roots: list[str], kind: str
) -> None:
    """A name that they announce, or nothing, which means where they were asked."""

    def announce(node: Node, name: str, how: str) -> None:
        node.call("CONFIG", "SET", "cluster-announce-hostname", name)
        node.call("CONFIG", "SET", "cluster-preferred-endpoint-type", how)

    for node in cluster.nodes:
        announce(node, "localhost" if kind == "hostname" else "", kind)
    # Names travel by gossip.
    wait_until(lambda: all("?" not in str(node.call("CLUSTER", "SLOTS")) for node in cluster.nodes))
    client = RedisCluster(url=cluster.url, timeout_ms=5000)
    try:
        store = RedisReservationStore(client)
        for root in roots:
            inspector(cluster, root).cache(rpm=10, tpm=1000)
            assert isinstance(await store.reserve(request(root=root)), Admitted)
        hosts = {master.host for master in client._topology.masters}
        assert hosts == {"localhost" if kind == "hostname" else "127.0.0.1"}
    finally:
        await client.close()
        for node in cluster.nodes:
            announce(node, "", "ip")


async def test_a_server_that_is_no_cluster_says_so_and_so_does_a_cluster(
    cluster: ValkeyCluster, redis_url: str
) -> None:
    client = RedisCluster(url=redis_url, timeout_ms=5000)
    with pytest.raises(StoreUnavailableError, match="cluster support disabled"):
        await client.ping()
    await client.close()
    single = RedisBatcher(url=f"redis://127.0.0.1:{cluster.nodes[0].port}", timeout_ms=5000)
    foreign = next(
        root for root in cluster.roots() if cluster.owner(f"{{{root}}}") != cluster.nodes[0]
    )
    with pytest.raises(StoreUnavailableError, match=r"redis\.cluster = true") as caught:
        await single.command("GET", f"{{{foreign}}}")
    assert not caught.value.maybe_applied
    await single.close()


async def test_one_endpoint_that_enforces_slots_has_nothing_to_refuse(
    redis_client: redis.Redis, store: RedisReservationStore
) -> None:
    """Hash tags are always on: with one server, too, a root's keys share a slot."""
    root, limit = "tagged", ServiceLimit(service_id="tagged", rpm=10, tpm=10_000)
    assert isinstance(await store.reserve(request(root=root, rid="r1", limit=limit)), Admitted)
    wanted = asking_for(*at_root(root), root=root, rid="r2", version=VERSION, is_pinned=True)
    assert isinstance(await store.reserve(wanted), Admitted)
    await store.settle(settlement("r1", root=root, history=True))
    await store.settle(settlement("r2", root=root, history=True, knowledge=Knowledge.COUNTED))
    found = {key for key in redis_client.scan_iter() if key != keys.ROOTS}
    assert len(found) > 10
    assert {slot_of(key) for key in found} == {slot_of(f"{{{root}}}")}
