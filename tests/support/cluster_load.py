"""Continuous reserve and settle on a cluster, and a ledger of what the callers were told."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from extproc.core.errors import StoreUnavailableError
from extproc.core.ids import new_reservation_id
from extproc.core.reservations import Admitted, SettleStatus
from extproc.stores import keys
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.cluster import ValkeyCluster
from tests.support.reservations import Inspector, request, settlement

T = TypeVar("T")

CHARGE = 30  # of each settlement
_PAUSE_SECONDS = 0.01


@dataclass
class Ledger:
    """Of one root: when each reservation was admitted by what its caller was told."""

    admitted: dict[str, float] = field(default_factory=dict)
    ambiguous: int = 0
    failures: int = 0
    last_answer: float = field(default_factory=time.monotonic)
    longest_gap: float = 0.0

    def answered(self) -> None:
        now = time.monotonic()
        self.longest_gap = max(self.longest_gap, now - self.last_answer)
        self.last_answer = now


class Load:
    """So many tasks a root, each reserving and settling one request after the other.

    As the product does it: a call without an answer is asked again by its id, until there is one.
    """

    def __init__(
        self, store: RedisReservationStore, roots: list[str], *, tasks_each: int = 8
    ) -> None:
        self.ledgers = {root: Ledger() for root in roots}
        self._store = store
        self._stop = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._work(root)) for root in roots for _ in range(tasks_each)
        ]

    async def _work(self, root: str) -> None:
        ledger = self.ledgers[root]
        while not self._stop.is_set():
            rid = new_reservation_id()
            reserve = partial(self._store.reserve, request(rid=rid, root=root))
            verdict = await self._until_answered(ledger, reserve)
            assert isinstance(verdict, Admitted), verdict
            ledger.admitted[rid] = time.monotonic()
            settle = partial(self._store.settle, settlement(rid, root=root))
            await self._until_answered(ledger, settle)

    async def _until_answered(self, ledger: Ledger, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                answer = await call()
            except StoreUnavailableError as error:
                if not error.transient:
                    raise
                ledger.failures += 1
                ledger.ambiguous += error.maybe_applied
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                ledger.answered()
                return answer

    async def run_until(self, look: Callable[[], bool], *, seconds: float = 30) -> None:
        """Let it work until ``look`` is true. A task that failed fails this."""
        deadline = time.monotonic() + seconds
        while not look():
            for task in self._tasks:
                if task.done():
                    task.result()
            assert time.monotonic() < deadline, f"not within {seconds} s: {self.ledgers}"
            await asyncio.sleep(_PAUSE_SECONDS)

    async def run_for_answers(self, count: int) -> None:
        """Let it work until each root has so many more reservations."""
        wanted = {root: len(ledger.admitted) + count for root, ledger in self.ledgers.items()}
        await self.run_until(
            lambda: all(len(self.ledgers[root].admitted) >= many for root, many in wanted.items())
        )

    async def stop(self) -> None:
        """Every request comes to its end."""
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def abandon(self) -> None:
        """After a failure: nothing is left running."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def settle_again(self, root: str) -> int:
        """What the next net does: settle everything once more; how many reservations are lost."""
        ledger, lost = self.ledgers[root], 0
        for rid in ledger.admitted:
            settle = partial(self._store.settle, settlement(rid, root=root))
            result = await self._until_answered(ledger, settle)
            lost += result.status is SettleStatus.MISSING
        return lost


def cache_limits(cluster: ValkeyCluster, roots: list[str]) -> None:
    """Limits that never refuse."""
    for root in roots:
        Inspector(cluster.owner(f"{{{root}}}").client, root).cache(rpm=10**9, tpm=10**12)


def counted(cluster: ValkeyCluster, root: str) -> tuple[int, int, int]:
    """Requests and tokens of all minutes, and how many reservations are open."""
    client = cluster.owner(f"{{{root}}}").client
    sums = []
    for prefix in (keys.rpm_prefix(root), keys.tpm_prefix(root)):
        values = [client.get(name) for name in client.scan_iter(prefix + "*", count=1000)]
        sums.append(sum(int(str(value)) for value in values))
    return sums[0], sums[1], int(client.zcard(keys.pending(root)))
