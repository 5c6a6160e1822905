"""A real Valkey cluster for tests: three masters and three replicas on loopback, in memory only."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot

from extproc.demo.processes import Child, clean_environment, free_ports
from extproc.demo.valkey import valkey_command

MASTERS = 3
SLOTS = 16384
# A master that says nothing for so long is taken to be dead by the others.
NODE_TIMEOUT_MS = 1500
_READY_SECONDS = 60.0
_POLL_SECONDS = 0.02


class Node:
    """One process of the cluster, and a plain client of it."""

    def __init__(self, port: int, bus_port: int, directory: Path) -> None:
        directory.mkdir()
        self.port = port
        self.bus_port = bus_port
        command = [
            *valkey_command(port, directory),
            *("--cluster-enabled", "yes", "--cluster-port", str(bus_port)),
            *("--cluster-node-timeout", str(NODE_TIMEOUT_MS)),
            *("--cluster-replica-validity-factor", "0", "--cluster-allow-replica-migration", "no"),
            *("--repl-diskless-sync-delay", "0"),
        ]
        log_path = directory / "valkey.log"
        self.process = Child(f"node {port}", command, log_path=log_path, env=clean_environment())
        self.client: redis.Redis = redis.Redis(
            port=port, decode_responses=True, socket_timeout=10, protocol=2
        )

    def start(self) -> None:
        """Start it, or start it again with what it remembers of the cluster."""
        self.process.start()
        self.process.wait_ready(self.answers, deadline_s=_READY_SECONDS)

    def answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def call(self, *words: object) -> Any:
        """One command; its reply as it is in the protocol."""
        client: Any = self.client
        return client.execute_command(*words)

    def info(self, section: str, field: str) -> str:
        found: Any = self.client.info(section)
        return str(found.get(field, ""))

    @property
    def id(self) -> str:
        return str(self.call("CLUSTER", "MYID"))

    @property
    def is_master(self) -> bool:
        return self.info("replication", "role") == "master"


class ValkeyCluster:
    """Six nodes. Which are masters changes by failovers: ask ``owner``."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    @property
    def url(self) -> str:
        """All nodes, for ``redis.url``."""
        return f"redis://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}/0"

    def form(self) -> None:
        """Make one cluster of fresh nodes; each of the first three gets a third of the slots."""
        masters, replicas = self.nodes[:MASTERS], self.nodes[MASTERS:]
        for index, node in enumerate(self.nodes):
            node.call("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        for index, node in enumerate(masters):
            first, end = SLOTS * index // MASTERS, SLOTS * (index + 1) // MASTERS
            node.call("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
        for node in self.nodes[1:]:
            self.nodes[0].call("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus_port)
        everybody = {node.id for node in self.nodes}
        wait_until(lambda: all(self._known(node) == everybody for node in self.nodes))
        for master, replica in zip(masters, replicas, strict=True):
            replica.call("CLUSTER", "REPLICATE", master.id)
        self.heal()

    def _known(self, node: Node) -> set[str]:
        """Ids of the nodes that have shaken hands with ``node``."""
        lines = [line.split() for line in node.call("CLUSTER", "NODES").splitlines()]
        return {words[0] for words in lines if "handshake" not in words[2]}

    def heal(self) -> None:
        """Start what was killed, and wait until all agree and each replica follows its master."""
        for node in self.nodes:
            if not node.process.running:
                node.start()
        wait_until(self._is_well)

    def _is_well(self) -> bool:
        views = []
        for node in self.nodes:
            if "cluster_state:ok" not in node.call("CLUSTER", "INFO"):
                return False
            if not node.is_master and node.info("replication", "master_link_status") != "up":
                return False
            views.append(sorted(self._map(node)))
        masters = {node.port for node in self.nodes if node.is_master}
        return (
            all(view == views[0] for view in views)
            and {port for _, _, port in views[0]} <= masters
            and len(masters) == MASTERS
        )

    def _map(self, node: Node) -> list[tuple[int, int, int]]:
        """First slot, last slot and the master's port, as ``node`` sees them."""
        reply = node.call("CLUSTER", "SLOTS")
        return [(first, last, master[1]) for first, last, master, *_ in reply]

    def empty(self) -> None:
        """Forget all data."""
        for node in self.masters():
            node.client.flushall()

    def masters(self) -> list[Node]:
        return [node for node in self.nodes if node.process.running and node.is_master]

    def owner(self, key: str) -> Node:
        """The master of a key."""
        return self.slot_owner(key_slot(key.encode()))

    def slot_owner(self, slot: int) -> Node:
        some = next(node for node in self.nodes if node.process.running)
        for first, last, port in self._map(some):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError(f"nobody owns slot {slot}")

    def slots_of(self, master: Node) -> list[int]:
        found = [(first, last) for first, last, port in self._map(master) if port == master.port]
        return [slot for first, last in found for slot in range(first, last + 1)]

    def replica_of(self, master: Node) -> Node:
        wanted = str(master.port)
        return next(
            node
            for node in self.nodes
            if not node.is_master and node.info("replication", "master_port") == wanted
        )

    def roots(self, name: str = "svc") -> list[str]:
        """A root in each of the three masters."""
        found: dict[int, str] = {}
        for number in range(1000):
            root = f"{name}-{number}"
            found.setdefault(self.owner(f"{{{root}}}").port, root)
            if len(found) == MASTERS:
                return list(found.values())
        raise AssertionError("no such names")

    def all_keys(self) -> list[str]:
        """Every key of every master."""
        found: list[str] = []
        for node in self.masters():
            found.extend(node.client.scan_iter(count=1000))
        return sorted(found)

    def failover(self, master: Node) -> Node:
        """An orderly one; returns the new master when all know of it."""
        replica = self.replica_of(master)
        replica.call("CLUSTER", "FAILOVER")
        wait_until(lambda: replica.is_master)
        self.heal()
        return replica

    def open_migration(self, slot: int, target: Node) -> Node:
        """Begin to move ``slot`` to ``target``, key by key; returns who has it."""
        source = self.slot_owner(slot)
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
        return source

    def move_keys(self, source: Node, target: Node, *keys: str) -> None:
        source.call("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)

    def end_migration(self, slot: int, source: Node, target: Node) -> None:
        """Move what is left, and let everybody know."""
        while left := source.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
            self.move_keys(source, target, *left)
        others = [node for node in self.masters() if node not in (source, target)]
        for node in (target, source, *others):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", target.id)
        self.heal()

    def move_slot(self, slot: int, target: Node) -> None:
        """Move a slot with all that is in it."""
        source = self.open_migration(slot, target)
        self.end_migration(slot, source, target)


def wait_until(look: Callable[[], object], *, seconds: float = _READY_SECONDS) -> None:
    """Return when ``look`` is true; errors of nodes that are just changing do not count."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if look():
                return
        except redis.RedisError:
            pass
        assert time.monotonic() < deadline, f"not within {seconds} s: {look}"
        time.sleep(_POLL_SECONDS)


@contextmanager
def valkey_cluster(directory: Path) -> Iterator[ValkeyCluster]:
    """A cluster of its own, ready for use."""
    ports = free_ports(4 * MASTERS)
    nodes = [
        Node(ports[2 * index], ports[2 * index + 1], directory / f"node-{index}")
        for index in range(2 * MASTERS)
    ]
    with ExitStack() as stack:
        for node in nodes:
            stack.callback(node.client.close)
            stack.callback(node.process.kill)
            node.start()
        cluster = ValkeyCluster(nodes)
        cluster.form()
        yield cluster
