"""The sweep of executions: writes the end of those whose worker did not live to write it.

A worker that is killed leaves executions open in SQL. What became of each is told by the record of
its reservation, which somebody ends in any case, at last the reaper. Nothing is ever sent again:
where nobody knows how a request ended, people have to look (REVIEW).
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from extproc.core.durability import TRANSITIONS, ExecutionState, state_of_record
from extproc.core.errors import StoreUnavailableError
from extproc.core.executions import OpenExecution

log = logging.getLogger("tokenweir.sweep")

_PAGE = 200


class ExecutionRows(Protocol):
    """Executions in SQL. Every method raises StoreUnavailableError."""

    async def open(self, *, after: int, most: int, unmoved_seconds: float) -> list[OpenExecution]:
        """Those whose state is that old, in the order of their numbers."""
        ...

    async def move(self, reservation_id: str, state: ExecutionState) -> bool:
        """Whether the state then allowed it."""
        ...


class Records(Protocol):
    """Records of reservations."""

    async def states(self, executions: Sequence[OpenExecution]) -> list[tuple[str, str] | None]:
        """State and outcome of each; None where there is no record. Raises
        StoreUnavailableError."""
        ...


class ExecutionSweep:
    """Looks every ``interval`` seconds at executions that nothing has moved for
    ``unmoved_seconds``. Several may run at once: a move is conditional."""

    def __init__(
        self,
        rows: ExecutionRows,
        records: Records,
        *,
        interval: float,
        unmoved_seconds: float,
    ) -> None:
        self._rows = rows
        self._records = records
        self._interval = interval
        self._unmoved_seconds = unmoved_seconds

    async def run(self, stop: asyncio.Event) -> None:
        """Sweep until ``stop`` is set. An outage of a store is logged and waited out."""
        while not stop.is_set():
            try:
                await self.sweep()
            except StoreUnavailableError as error:
                log.warning("execution_sweep_failed", extra={"error": str(error)})
            try:
                async with asyncio.timeout(self._interval):
                    await stop.wait()
            except TimeoutError:
                continue

    async def sweep(self) -> int:
        """Move what has ended; how many executions this call moved."""
        moved = after = 0
        while True:
            page = await self._rows.open(
                after=after, most=_PAGE, unmoved_seconds=self._unmoved_seconds
            )
            found = await self._records.states(page)
            for row, record in zip(page, found, strict=True):
                moved += await self._resolve(row, record)
            if len(page) < _PAGE:
                return moved
            after = page[-1].number

    async def _resolve(self, row: OpenExecution, record: tuple[str, str] | None) -> int:
        state = _end_of(row, record)
        if state is None or not await self._rows.move(row.reservation_id, state):
            return 0
        needs_people = state is ExecutionState.REVIEW
        log.log(
            logging.WARNING if needs_people else logging.INFO,
            "execution_needs_review" if needs_people else "execution_ended",
            extra={
                "reservation_id": row.reservation_id,
                "service_id": row.root,
                "before": row.state.value,
                "state": state.value,
                "record": "none" if record is None else " ".join(record),
            },
        )
        return 1


def _end_of(row: OpenExecution, record: tuple[str, str] | None) -> ExecutionState | None:
    if record is None:
        return ExecutionState.REVIEW if row.is_overdue else None
    state = state_of_record(*record)
    if state is None or state in TRANSITIONS[row.state]:
        return state
    return ExecutionState.REVIEW  # the record says what cannot be
