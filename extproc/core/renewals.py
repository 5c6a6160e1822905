"""Heartbeats of long streams: a request that still runs keeps its deadline and its leases ahead.

Only a heartbeat: one that fails is made good by the next, so none is tried again. They are bounded
apart from settlements, which must never wait behind them.
"""

import asyncio
from time import monotonic

from extproc.core.errors import StoreUnavailableError
from extproc.core.ports import ReservationStore, Telemetry

# More often than this in one deadline a reservation is not renewed, however often Envoy reports.
_MOST_IN_A_DEADLINE = 30
_MOST_UNDER_WAY = 5_000
# Ids remembered of one pause; beyond, some are renewed once more than needed.
_MOST_REMEMBERED = 50_000


class Renewals:
    """Renews reservations in the background; a deadline is ``deadline_ms`` from each renewal."""

    def __init__(self, store: ReservationStore, telemetry: Telemetry, *, deadline_ms: int) -> None:
        self._store = store
        self._telemetry = telemetry
        self._deadline_ms = deadline_ms
        self._pause_seconds = deadline_ms / 1000 / _MOST_IN_A_DEADLINE
        self._pause_ends = 0.0
        self._renewed: set[tuple[str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def renew(self, root: str, reservation_id: str) -> None:
        """Renew soon what a reservation holds at ``root``. Never awaits, never raises."""
        now = monotonic()
        if now >= self._pause_ends or len(self._renewed) >= _MOST_REMEMBERED:
            self._renewed.clear()
            self._pause_ends = now + self._pause_seconds
        if (root, reservation_id) in self._renewed:
            return
        if len(self._tasks) >= _MOST_UNDER_WAY:
            self._telemetry.renewed("dropped")
            return
        self._renewed.add((root, reservation_id))
        task = asyncio.get_running_loop().create_task(self._run(root, reservation_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Give up what is under way; the stores are about to close."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, root: str, reservation_id: str) -> None:
        try:
            is_open = await self._store.renew(root, reservation_id, deadline_ms=self._deadline_ms)
        except StoreUnavailableError:
            self._telemetry.renewed("failed")
            return
        self._telemetry.renewed("renewed" if is_open else "ended")
