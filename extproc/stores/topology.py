"""The nodes of a Redis Cluster: a map of the slots, kept true, and one client a node."""

import asyncio
import logging

from extproc.core.errors import StoreUnavailableError
from extproc.stores.batcher import RedisBatcher
from extproc.stores.redis_url import Address, ClusterUrl
from extproc.stores.slots import MOST_NODES, SLOTS, read_owners

log = logging.getLogger("tokenweir.redis_cluster")

# The map is not asked for more often; until then a call that goes astray is redirected by itself.
_PAUSE_SECONDS = 0.1
# So many nodes are asked for a map at once, one after the other.
_MOST_ASKED = 8


class Topology:
    """Who owns which slot. A map is asked for when somebody finds that the last one is wrong."""

    def __init__(self, url: ClusterUrl, *, timeout_ms: int, max_connections: int) -> None:
        self._url = url
        self._timeout_ms = timeout_ms
        self._max_connections = max_connections
        self.owners: list[Address | None] = [None] * SLOTS
        self.masters: tuple[Address, ...] = ()
        self._nodes: dict[Address, RedisBatcher] = {}
        self._flight: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._not_before = 0.0
        self._turn = 0
        self._failure: StoreUnavailableError | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False
        for start in url.start_nodes:
            self.node(start)  # a malformed URL is found now

    def node(self, address: Address) -> RedisBatcher:
        """The client of a node. To be used at once: a node that owns nothing any more is closed.

        Raises StoreUnavailableError when there are too many. An address is a ``usable`` one.
        """
        known = self._nodes.get(address)
        if known is None:
            if len(self._nodes) >= 2 * MOST_NODES:
                raise StoreUnavailableError("redis", "too many nodes", transient=True)
            known = self._nodes[address] = RedisBatcher(
                url=self._url.of(address),
                timeout_ms=self._timeout_ms,
                max_connections=self._max_connections,
            )
        return known

    def owner(self, slot: int) -> Address:
        """Raises StoreUnavailableError when nobody is known to own the slot."""
        owner = self.owners[slot]
        if owner is None:
            if self._failure is not None:
                text, transient = str(self._failure), self._failure.transient
                raise StoreUnavailableError(
                    "redis", text.removeprefix("redis: "), transient=transient
                ) from self._failure
            raise StoreUnavailableError("redis", f"slot {slot} has no master", transient=True)
        return owner

    def refresh_soon(self, first: Address | None = None) -> None:
        """Ask for the map; when it was asked for a moment ago, a little later. ``first`` is asked
        before others: it is said to know better."""
        if self._closed or self._flight is not None or self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= self._not_before:
            self._begin(first)
        else:
            self._timer = loop.call_at(self._not_before, self._begin, first)

    def _begin(self, first: Address | None) -> None:
        self._timer = None
        self._flight = asyncio.create_task(self._refresh(first))
        self._flight.add_done_callback(self._landed)

    async def refresh(self, *, seconds: float) -> None:
        """The same, and wait so long at most; not at all when it is to be a little later."""
        self.refresh_soon()
        if self._flight is not None:
            await asyncio.wait((self._flight,), timeout=max(0.0, seconds))

    async def close(self) -> None:
        """Let running calls end, then close all connections."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._flight is not None:
            self._flight.cancel()
            await asyncio.wait((self._flight,))
        await asyncio.gather(*(node.close() for node in self._nodes.values()), *self._leaving)

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._flight = None
        self._not_before = asyncio.get_running_loop().time() + _PAUSE_SECONDS
        if not flight.cancelled():
            flight.result()

    async def _refresh(self, first: Address | None) -> None:
        failure: StoreUnavailableError | None = None
        for address in self._advisers(first):
            try:
                reply = await self.node(address).send(("CLUSTER", "SLOTS"))
                owners = read_owners(reply, asked=address)
            except StoreUnavailableError as error:
                failure = error
            except ValueError as error:
                failure = StoreUnavailableError("redis", str(error), transient=True)
            else:
                self._adopt(owners)
                return
        if failure is not None and self._failure is None:
            log.warning("redis_cluster_map_unknown", extra={"reason": str(failure)})
        self._failure = failure

    def _advisers(self, first: Address | None) -> list[Address]:
        """Masters and start nodes, another one first each time: one that is cut off from the others
        does not know it, and must not lead us for ever."""
        known = list(dict.fromkeys((*self.masters, *self._url.start_nodes)))
        self._turn += 1
        turn = self._turn % len(known)
        turned = [*known[turn:], *known[:turn]]
        if first is not None:
            turned = [first, *(address for address in turned if address != first)]
        return turned[:_MOST_ASKED]

    def _adopt(self, owners: list[Address | None]) -> None:
        self._failure = None
        self.owners = owners
        masters = tuple(sorted({owner for owner in owners if owner is not None}))
        if masters != self.masters:
            self.masters = masters
            log.info(
                "redis_cluster_masters",
                extra={
                    "masters": [str(master) for master in masters],
                    "slots_without_master": owners.count(None),
                },
            )
        for address in self._nodes.keys() - {*masters, *self._url.start_nodes}:
            leaving = asyncio.create_task(self._nodes.pop(address).close())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
