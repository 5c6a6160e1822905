"""Many requests at once, while the provider holds every answer back until all are decided."""

import asyncio
import resource
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp

from tests.bench.load import Client, connect

_POLL_SECONDS = 0.05
_GIVE_UP_SECONDS = 60.0
# What a process opens beside the connections of a burst.
_OTHER_FILES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstResult:
    """``decided_seconds``: from the first request sent until, with a gate, the last one was refused
    or had reached the provider. ``failed`` connections were lost, or had no answer in time."""

    statuses: Counter[int]
    failed: int
    decided_seconds: float

    @property
    def admitted(self) -> int:
        """Answers of the provider."""
        return self.statuses[HTTPStatus.OK]

    @property
    def refused(self) -> int:
        """Answers 429."""
        return self.statuses[HTTPStatus.TOO_MANY_REQUESTS]


def allow_connections(count: int) -> None:
    """Let this process, and the servers that it will start, open so many. A proxy needs two files
    for a request. Raises RuntimeError where the system's own limit is lower."""
    wanted = 2 * count + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise RuntimeError(f"{count} connections need {wanted} open files; allowed are {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate of the fake provider; scripts of requests that wait for it say
    ``label=NAME;gate=NAME``."""

    provider_url: str
    name: str


async def send_at_once(
    port: int, requests: Sequence[bytes], *, gate: Gate | None = None
) -> BurstResult:
    """Send each request on a connection of its own, all of which are open before the first.

    The gate is opened when all are decided. Raises TimeoutError when they are not in time.
    """
    clients = await connect(port, requests)
    started = time.perf_counter()
    for client in clients:
        client.start(until=started, each=1)
    if gate is not None:
        await _open_when_decided(gate, clients)
    decided_seconds = time.perf_counter() - started
    await asyncio.wait([client.done for client in clients], timeout=_GIVE_UP_SECONDS)
    failed = sum(not c.done.done() or c.done.exception() is not None for c in clients)
    for client in clients:
        client.done.cancel()
        client.close()
    return BurstResult(
        statuses=sum((client.statuses for client in clients), Counter()),
        failed=failed,
        decided_seconds=decided_seconds,
    )


async def _open_when_decided(gate: Gate, clients: Sequence[Client]) -> None:
    """Answers are held back, so whoever is done was refused; the others are at the provider."""
    give_up = time.monotonic() + _GIVE_UP_SECONDS
    async with aiohttp.ClientSession(gate.provider_url) as session:

        async def arrived() -> int:
            async with session.get("/_fake/journal") as response:
                return sum(entry["label"] == gate.name for entry in await response.json())

        while await arrived() + sum(client.done.done() for client in clients) < len(clients):
            if time.monotonic() > give_up:
                raise TimeoutError(f"not all decided within {_GIVE_UP_SECONDS:g} s")
            await asyncio.sleep(_POLL_SECONDS)
        async with session.post(f"/_fake/gates/{gate.name}"):
            pass
