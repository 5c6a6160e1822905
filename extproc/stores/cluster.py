"""Redis Cluster: the same interface as RedisBatcher, each call at the master of its slot.

A call is sent again only when it certainly did not run: the node said so (MOVED, ASK, TRYAGAIN,
READONLY, CLUSTERDOWN) or could not be connected to. Everything else is the caller's to resolve, as
with one server. Decision 8 says why this is not redis-py's.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from redis import exceptions as redis_errors

from extproc.core.errors import SettingsError, StoreUnavailableError
from extproc.stores.batcher import RedisBatcher
from extproc.stores.failures import is_node_away
from extproc.stores.redis_link import Word
from extproc.stores.redis_url import Address, parse_cluster_url, usable
from extproc.stores.scripts import Script
from extproc.stores.slots import slot_of, slot_of_command
from extproc.stores.topology import Topology

# A call that is sent more often than this meets a cluster that does not agree with itself.
_MOST_ATTEMPTS = 8
# The first pause after TRYAGAIN; each next one is twice as long.
_FIRST_PAUSE_SECONDS = 0.002


class RedisCluster:
    """Sends commands and scripts to the master of their first key.

    ``timeout_ms`` and ``max_connections`` hold for each node; a call is not sent again once
    ``timeout_ms`` have passed since it began. All keys of a script are of one slot: the store sees
    to that, and Redis refuses anything else. To be used from one event loop.
    """

    def __init__(self, *, url: str, timeout_ms: int = 50, max_connections: int = 8) -> None:
        try:
            parsed = parse_cluster_url(url)
        except ValueError as error:
            raise SettingsError("redis.url", str(error)) from error
        self._timeout = timeout_ms / 1000
        self._topology = Topology(parsed, timeout_ms=timeout_ms, max_connections=max_connections)
        # How many calls had to be sent again, to another node or later.
        self.redirections = 0

    async def command(self, *command: Word) -> Any:
        """Send one command that has one key; its decoded reply. Raises ValueError for others."""
        return await self._send(slot_of_command(command), command, None)

    async def run(
        self, script: Script, keys: Sequence[str], args: Iterable[Word], *, lazily: bool = False
    ) -> Any:
        """Run a script by its SHA; its decoded reply. ``lazily`` as with one server."""
        command = ("EVALSHA", script.sha, len(keys), *keys, *args)
        return await self._send(slot_of(keys[0]), command, script, lazily=lazily)

    async def scan(self, pattern: str) -> AsyncIterator[list[str]]:
        """Pages of the keys of all masters that match a pattern; one may come twice."""
        for node in await self._masters():
            async for page in node.scan(pattern):
                yield page

    async def ping(self) -> None:
        """Every slot has a master, and every master answers."""
        nodes = await self._masters()
        for slot, owner in enumerate(self._topology.owners):
            if owner is None:
                self._topology.refresh_soon()
                self._topology.owner(slot)  # raises
        try:
            await asyncio.gather(*(node.ping() for node in nodes))
        except StoreUnavailableError:
            self._topology.refresh_soon()
            raise

    async def load(self, scripts: Iterable[Script]) -> None:
        """Make scripts known to every master; one that comes later learns them by first use."""
        every = tuple(scripts)
        await asyncio.gather(*(node.load(every) for node in await self._masters()))

    async def close(self) -> None:
        """Let running batches end (each is bounded by the time-out), then close all connections."""
        await self._topology.close()

    async def _masters(self) -> list[RedisBatcher]:
        topology = self._topology
        if not topology.masters:
            await topology.refresh(seconds=self._timeout)
        if not topology.masters:
            topology.owner(0)  # raises
        return [topology.node(master) for master in topology.masters]

    async def _send(
        self,
        slot: int,
        command: tuple[Word, ...],
        script: Script | None,
        *,
        lazily: bool = False,
    ) -> Any:
        topology = self._topology
        until = asyncio.get_running_loop().time() + self._timeout
        if topology.owners[slot] is None:
            await topology.refresh(seconds=self._timeout)
        address, asking, attempt = topology.owner(slot), False, 0
        while True:
            try:
                node = topology.node(address)
                return await node.send(command, script=script, asking=asking, lazily=lazily)
            except StoreUnavailableError as error:
                attempt += 1
                address, asking = await self._next(
                    slot, address, error, attempt=attempt, until=until
                )
                self.redirections += 1

    async def _next(
        self,
        slot: int,
        address: Address,
        error: StoreUnavailableError,
        *,
        attempt: int,
        until: float,
    ) -> tuple[Address, bool]:
        """Where to send a call that did not run, and whether with ASKING; or raise ``error``."""
        topology, cause = self._topology, error.__cause__
        left = until - asyncio.get_running_loop().time() if attempt < _MOST_ATTEMPTS else 0.0
        if isinstance(cause, redis_errors.AskError):  # MOVED is one too
            to = usable(cause.host or address.host, cause.port)  # "?" is not
            is_move = isinstance(cause, redis_errors.MovedError)
            if is_move and to is not None:
                topology.owners[slot] = to
            if is_move:
                topology.refresh_soon(first=to)
            if to is None or left <= 0:
                text = f"slot {slot} moves: {cause}"
                raise StoreUnavailableError("redis", text, transient=True) from cause
            return to, not is_move
        if isinstance(cause, redis_errors.TryAgainError):
            pause = _FIRST_PAUSE_SECONDS * 2 ** (attempt - 1)
            if pause >= left:
                raise error
            await asyncio.sleep(pause)
            return topology.owner(slot), False
        if is_node_away(error):
            if error.maybe_applied or left <= 0:
                topology.refresh_soon()
                raise error
            await topology.refresh(seconds=left)
            owner = topology.owners[slot]
            if owner is not None and owner != address:
                return owner, False
        raise error
