"""Slots that move, or are just moving, on a real cluster; and nodes that misbehave."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest

from extproc.core.errors import StoreUnavailableError
from extproc.core.reservations import Admitted
from extproc.stores import keys
from extproc.stores.cluster import RedisCluster
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.scripts import LEASE, RENEW, Script, load_script
from extproc.stores.slots import slot_of
from tests.support.cluster import Node, ValkeyCluster
from tests.support.engine import asking, cache_view, slots
from tests.support.reservations import Inspector, request, settlement
from tests.support.tcp import Handler, tcp_server

ROOT = "moving"
SLOT = slot_of(f"{{{ROOT}}}")


@asynccontextmanager
async def impatient(url: str, *, timeout_ms: int = 100) -> AsyncIterator[RedisCluster]:
    client = RedisCluster(url=url, timeout_ms=timeout_ms)
    try:
        yield client
    finally:
        await client.close()


async def failure(call: Awaitable[object]) -> StoreUnavailableError:
    with pytest.raises(StoreUnavailableError) as caught:
        await call
    return caught.value


async def until(look: object, *, seconds: float = 5) -> None:
    """Let the client work until ``look`` is true."""
    assert callable(look)
    async with asyncio.timeout(seconds):
        while not look():
            await asyncio.sleep(0.005)


def target_of(cluster: ValkeyCluster) -> Node:
    """A master that does not own the slot."""
    owner = cluster.slot_owner(SLOT)
    return next(node for node in cluster.masters() if node is not owner)


def inspector(cluster: ValkeyCluster) -> Inspector:
    return Inspector(cluster.slot_owner(SLOT).client, ROOT)


# --- MOVED ---------------------------------------------------------------------------------------


async def test_a_slot_that_moved_is_followed_once(
    cluster: ValkeyCluster, redis_cluster: RedisCluster, cluster_store: RedisReservationStore
) -> None:
    inspector(cluster).cache(rpm=100, tpm=10_000)
    assert isinstance(await cluster_store.reserve(request(rid="r1", root=ROOT)), Admitted)
    cluster.move_slot(SLOT, target_of(cluster))
    settled = await cluster_store.settle(settlement("r1", root=ROOT))
    assert settled.charged_tokens == 30
    assert redis_cluster.redirections == 1
    assert isinstance(await cluster_store.reserve(request(root=ROOT)), Admitted)
    assert redis_cluster.redirections == 1
    assert inspector(cluster).used() == (2, 140)


async def test_one_redirection_is_enough_for_all_slots_that_moved(
    cluster: ValkeyCluster, redis_cluster: RedisCluster
) -> None:
    await redis_cluster.ping()
    target = target_of(cluster)
    moved = [SLOT, *cluster.slots_of(cluster.slot_owner(SLOT))[:2]]
    for slot in moved:
        cluster.move_slot(slot, target)
    calls = (redis_cluster.command("GET", f"{{{ROOT}}}:{i}") for i in range(20))
    assert await asyncio.gather(*calls) == [None] * 20
    assert redis_cluster.redirections == 20  # they were under way together
    topology = redis_cluster._topology
    # The other two were not asked for; a new map has them too.
    await until(lambda: {topology.owner(slot).port for slot in moved} == {target.port})


# --- ASK and TRYAGAIN ----------------------------------------------------------------------------


async def test_during_a_migration_a_key_is_found_where_it_is(
    cluster: ValkeyCluster, redis_cluster: RedisCluster
) -> None:
    """The lease script, whose one key is there first and then has moved; and one that is new."""
    inspector(cluster).cache(rpm=7, tpm=70)
    await redis_cluster.ping()
    target = target_of(cluster)
    source = cluster.open_migration(SLOT, target)
    try:
        lease, names = load_script(LEASE), (keys.config(ROOT),)
        held = ["limits", "1", "7", "70", ""]
        assert await redis_cluster.run(lease, names, ("t", 1000)) == held
        assert redis_cluster.redirections == 0

        cluster.move_keys(source, target, *names)
        target.call("SCRIPT", "FLUSH")
        # ASKING is needed again for the source of a script that the target does not know.
        assert await redis_cluster.run(lease, names, ("t", 1000)) == held
        assert redis_cluster.redirections == 1
        # It holds for one call only, so the map still says the source.
        assert redis_cluster._topology.owner(SLOT).port == source.port

        new = (keys.config(ROOT) + ":new",)
        assert await redis_cluster.run(lease, new, ("t", 1000)) == ["lease", "t"]
        assert target.call("CLUSTER", "GETKEYSINSLOT", SLOT, 9) == [*names, *new]
    finally:
        cluster.end_migration(SLOT, source, target)
    assert await redis_cluster.run(lease, names, ("t", 1000)) == held


async def test_asking_never_mixes_up_replies(
    cluster: ValkeyCluster, redis_cluster: RedisCluster
) -> None:
    target = target_of(cluster)
    await redis_cluster.ping()
    own = next(root for root in cluster.roots() if cluster.owner(f"{{{root}}}") is target)
    names = [f"{{{root}}}:{i}" for i in range(100) for root in (ROOT, own)]
    for name in names:
        cluster.owner(name).client.set(name, f"is {name}")
    source = cluster.open_migration(SLOT, target)
    try:
        cluster.move_keys(source, target, *(name for name in names if ROOT in name))
        found = await asyncio.gather(*(redis_cluster.command("GET", name) for name in names))
        assert found == [f"is {name}" for name in names]
        assert redis_cluster.redirections == 100
    finally:
        cluster.end_migration(SLOT, source, target)


async def test_what_needs_keys_of_both_sides_takes_nothing_and_says_so(
    cluster: ValkeyCluster,
) -> None:
    inspector(cluster).cache(rpm=100, tpm=10_000)
    target = target_of(cluster)
    async with impatient(cluster.url) as client:
        store = RedisReservationStore(client)
        assert isinstance(await store.reserve(request(rid="r1", root=ROOT)), Admitted)
        source = cluster.open_migration(SLOT, target)
        try:
            for moved in ((), (keys.config(ROOT),), (keys.pending(ROOT),)):
                if moved:
                    cluster.move_keys(source, target, *moved)
                for call in (
                    store.reserve(request(root=ROOT)),
                    store.settle(settlement("r1", root=ROOT)),
                    store.release(settlement("r1", root=ROOT)),
                    store.renew(ROOT, "r1", deadline_ms=1000),
                ):
                    started = time.monotonic()
                    error = await failure(call)
                    # Whichever reply was the last when the time was over.
                    words = ("TRYAGAIN", "rehashing", "moves")
                    assert any(word in str(error) for word in words)
                    assert (error.transient, error.maybe_applied) == (True, False)
                    assert time.monotonic() - started < 1
        finally:
            cluster.end_migration(SLOT, source, target)
        assert inspector(cluster).used() == (1, 110)
        assert (await store.settle(settlement("r1", root=ROOT))).charged_tokens == 30
        assert inspector(cluster).used() == (1, 30)


async def test_a_call_waits_for_the_end_of_a_migration_while_it_has_time(
    cluster: ValkeyCluster, redis_cluster: RedisCluster, cluster_store: RedisReservationStore
) -> None:
    inspector(cluster).cache(rpm=100, tpm=10_000)
    target = target_of(cluster)
    await cluster_store.ping()
    source = cluster.open_migration(SLOT, target)
    reserve = asyncio.create_task(cluster_store.reserve(request(root=ROOT)))
    try:
        await until(lambda: redis_cluster.redirections > 1)
        assert not reserve.done()
    finally:
        await asyncio.to_thread(cluster.end_migration, SLOT, source, target)
    assert isinstance(await reserve, Admitted)
    assert inspector(cluster).used() == (1, 110)


async def test_renew_fails_at_the_door_and_not_in_the_middle(cluster: ValkeyCluster) -> None:
    """Both of its keys may be there while the lease that it prolongs has moved."""
    cache_view(cluster.slot_owner(SLOT).client, root=ROOT)
    place = slots("p.concurrent.user:alice", 5, root=ROOT)
    target = target_of(cluster)
    async with impatient(cluster.url) as client:
        store = RedisReservationStore(client)
        wanted = asking(place, root=ROOT, rid="r1", deadline_ms=1000)
        assert isinstance(await store.reserve(wanted), Admitted)
        before = cluster.slot_owner(SLOT).client.zscore(keys.pending(ROOT), "r1")
        source = cluster.open_migration(SLOT, target)
        try:
            cluster.move_keys(source, target, place.key)
            error = await failure(store.renew(ROOT, "r1", deadline_ms=60_000))
            assert (error.transient, error.maybe_applied) == (True, False)
            assert source.client.zscore(keys.pending(ROOT), "r1") == before
        finally:
            cluster.end_migration(SLOT, source, target)
        assert await store.renew(ROOT, "r1", deadline_ms=60_000)
        after = target.client.zscore(keys.pending(ROOT), "r1")
        assert after is not None
        assert before is not None
        assert after > before
        assert target.client.zscore(place.key, "r1") == after


# --- Nodes that misbehave ------------------------------------------------------------------------


def map_of_one(port: int) -> bytes:
    """CLUSTER SLOTS where one node owns everything."""
    return b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % port


def a_cluster_of_one(answer: bytes, seen: list[bytes]) -> Handler:
    """Owns all slots by its own word, and gives one answer to everything else."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("sockname")[1]
        while data := await reader.read(1 << 20):
            seen.append(data)
            if b"SLOTS" in data:
                writer.write(map_of_one(port))
            elif answer:
                writer.write(answer.replace(b"PORT", b"%d" % port))

    return handle


@pytest.mark.parametrize("answer", [b"-MOVED 1 :PORT\r\n", b"-MOVED 1 127.0.0.1:PORT\r\n"])
async def test_a_circle_of_redirections_ends(answer: bytes) -> None:
    seen: list[bytes] = []
    async with (
        tcp_server(a_cluster_of_one(answer, seen)) as port,
        impatient(f"redis://127.0.0.1:{port}", timeout_ms=5000) as client,
    ):
        error = await failure(client.run(load_script(RENEW), ("{a}", "b{a}"), ()))
    assert (error.transient, error.maybe_applied) == (True, False)
    assert len([data for data in seen if b"EVALSHA" in data]) == 8


@pytest.mark.parametrize(
    "place", ["127.0.0.1:99999", "127.0.0.1:0", "[::1:PORT", "a/b:PORT", "a@b:PORT", "a#b:PORT"]
)
@pytest.mark.parametrize("word", ["MOVED", "ASK"])
async def test_a_redirection_to_no_place_leaves_the_slot_where_it_is(word: str, place: str) -> None:
    seen: list[bytes] = []
    answer = f"-{word} 1 {place}\r\n".encode()
    async with (
        tcp_server(a_cluster_of_one(answer, seen)) as port,
        impatient(f"redis://127.0.0.1:{port}", timeout_ms=5000) as client,
    ):
        for _ in range(2):
            error = await failure(client.command("GET", "{a}"))
            assert (error.transient, error.maybe_applied) == (True, False)
            assert client._topology.owner(slot_of("{a}")).port == port
        assert len([data for data in seen if b"GET" in data]) == 2


async def test_what_may_have_run_is_never_sent_again() -> None:
    seen: list[bytes] = []
    async with (
        tcp_server(a_cluster_of_one(b"", seen)) as port,
        impatient(f"redis://127.0.0.1:{port}") as client,
    ):
        error = await failure(client.run(Script("s", "return 1", "f" * 40), ("{a}",), ()))
        assert (error.transient, error.maybe_applied) == (True, True)
        await until(lambda: len([data for data in seen if b"SLOTS" in data]) == 2)
    assert len([data for data in seen if b"EVALSHA" in data]) == 1


async def test_a_call_that_was_under_way_is_not_sent_to_the_new_master() -> None:
    """The old one hung up without an answer; it may have done it, and replicated it."""
    seen: list[bytes] = []
    asked: list[bytes] = []
    async with tcp_server(a_cluster_of_one(b"+OK\r\n", seen)) as new:

        async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            own = writer.get_extra_info("sockname")[1]
            while b"SLOTS" in (data := await reader.read(1 << 20)):
                writer.write(map_of_one(new if asked else own))
                asked.append(data)

        async with (
            tcp_server(dies) as old,
            impatient(f"redis://127.0.0.1:{old}", timeout_ms=5000) as client,
        ):
            script = Script("s", "return 1", "f" * 40)
            loop, topology = asyncio.get_running_loop(), client._topology
            await topology.refresh(seconds=5)
            # Were it sent again, then with a map that may be asked for at once.
            await until(lambda: loop.time() > topology._not_before)
            error = await failure(client.run(script, ("{a}",), ()))
            assert (error.transient, error.maybe_applied) == (True, True)
            await until(lambda: topology.owner(0).port == new)
            assert not [data for data in seen if b"EVALSHA" in data]
            # The next call, which may be the same by its id, goes there.
            assert await client.run(script, ("{a}",), ()) == "OK"


async def test_the_map_is_not_asked_for_by_every_call_that_fails() -> None:
    seen: list[bytes] = []
    async with (
        tcp_server(a_cluster_of_one(b"-CLUSTERDOWN Hash slot not served\r\n", seen)) as port,
        impatient(f"redis://127.0.0.1:{port}", timeout_ms=5000) as client,
    ):
        started = time.monotonic()
        for _ in range(200):
            error = await failure(client.command("GET", "{a}"))
            assert (error.transient, error.maybe_applied) == (True, False)
        spent = time.monotonic() - started
    asked = len([data for data in seen if b"SLOTS" in data])
    assert asked <= 2 + spent / 0.1


async def test_a_node_without_an_answer_does_not_keep_others_from_being_asked(
    cluster: ValkeyCluster,
) -> None:
    seen: list[bytes] = []
    inspector(cluster).cache(rpm=100, tpm=10_000)
    async with tcp_server(a_cluster_of_one(b"", seen)) as port:
        # It says that it owns everything; the others are asked when it does not answer.
        alone, true_ports = f"127.0.0.1:{port}", cluster.url.removeprefix("redis://")
        async with impatient(f"redis://{alone},{true_ports}") as client:
            store = RedisReservationStore(client)
            deadline = time.monotonic() + 5
            verdict: object = None
            while not isinstance(verdict, Admitted):
                assert time.monotonic() < deadline
                try:
                    verdict = await store.reserve(request(root=ROOT))
                except StoreUnavailableError:
                    await asyncio.sleep(0.01)
