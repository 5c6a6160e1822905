"""States of executions, written in the background: one transaction for all that came meanwhile.

Nobody waits for these. A state that only tells how far a request is gives way to a later one that
comes before it was written. What could not be written is tried again; what is lost with the process
is found by the sweep (``jobs.execution_sweep``).
"""

import asyncio
import logging
from contextlib import suppress
from functools import partial

from sqlalchemy import Connection

from extproc.core.durability import PROGRESS, TRANSITIONS, ExecutionState
from extproc.core.errors import StoreUnavailableError
from extproc.stores.execution_table import move_all
from extproc.stores.sql import Database

log = logging.getLogger("tokenweir.durability")

_LINGER_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
# With a database that stays away they must not eat the memory.
_MOST_PENDING = 50_000
# In one statement.
_MOST_ROWS = 1000


class ExecutionMoves:
    """Implements ``core.executions.Moves``. The database is closed by its owner, after this."""

    def __init__(self, database: Database, *, linger_seconds: float = _LINGER_SECONDS) -> None:
        self._database = database
        self._linger_seconds = linger_seconds
        self._pending: dict[str, list[ExecutionState]] = {}
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._dropped = 0

    def move(self, reservation_id: str, state: ExecutionState) -> None:
        """As the port says. To be called in the event loop."""
        steps = self._pending.get(reservation_id)
        if steps is None:
            if len(self._pending) >= _MOST_PENDING:
                self._dropped += 1
                if self._dropped == 1:
                    log.error("states of executions are left to the sweep")
                return
            self._pending[reservation_id] = [state]
        else:
            add_step(steps, state)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write())

    async def close(self, *, timeout_seconds: float) -> int:
        """Write what is left, in one try; how many executions were not moved."""
        self._closing.set()
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=timeout_seconds)
        return len(self._pending)

    async def _write(self) -> None:
        """Until nothing is left."""
        pause = self._linger_seconds
        try:
            while self._pending:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._closing.wait()
                taken, self._pending = self._pending, {}
                try:
                    await self._database.run(partial(_apply, moves=taken))
                except StoreUnavailableError as error:
                    self._put_back(taken)
                    log.warning("states_not_written", extra={"error": str(error)})
                    if self._closing.is_set():
                        return
                    pause = min(max(pause, _LINGER_SECONDS) * 2, _LONGEST_PAUSE_SECONDS)
                else:
                    pause = self._linger_seconds
        finally:
            self._task = None

    def _put_back(self, taken: dict[str, list[ExecutionState]]) -> None:
        """Before what came meanwhile."""
        for reservation_id, newer in self._pending.items():
            steps = taken.setdefault(reservation_id, newer)
            if steps is not newer:
                for state in newer:
                    add_step(steps, state)
        self._pending = taken


def add_step(steps: list[ExecutionState], state: ExecutionState) -> None:
    """``state`` comes after ``steps``: instead of the last one where that tells only progress, not
    at all where it cannot follow it."""
    if state not in TRANSITIONS[steps[-1]]:
        return
    if steps[-1] in PROGRESS:
        steps[-1] = state
    else:
        steps.append(state)


def _apply(connection: Connection, moves: dict[str, list[ExecutionState]]) -> None:
    """The first step of all, then the second: few have one."""
    # In one order everywhere, so that two workers do not wait for each other's rows.
    ids = sorted(moves)
    for number in range(max(map(len, moves.values()))):
        for state in ExecutionState:
            there = [each for each in ids if moves[each][number : number + 1] == [state]]
            for start in range(0, len(there), _MOST_ROWS):
                move_all(connection, there[start : start + _MOST_ROWS], state)
