"""Settlements in the background: handed over without awaiting, owned by the application.

A handler's own clean-up is killed at its first await when Envoy drops the stream, so handlers never
settle themselves: they submit here. A settlement that the store did not take is tried again for a
while; after that the reaper finds the reservation by its deadline, so nothing stays open for ever.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine

from extproc.core.durability import ExecutionState
from extproc.core.errors import StoreUnavailableError
from extproc.core.executions import Executions
from extproc.core.ports import ReservationStore, Telemetry
from extproc.core.reservations import (
    Outcome,
    Settlement,
    SettleResult,
    SettleStatus,
    Source,
    State,
)

log = logging.getLogger("tokenweir.settle")

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0
# One settlement waits at most this long for a store that is away.
_GIVE_UP_SECONDS = 60.0
# With a store that stays away the backlog must not eat the memory; the reaper settles the rest.
_MOST_PENDING = 50_000

_PLAIN = (Outcome.COMPLETE,)


class Settler:
    """Runs settlements as application-owned tasks and flushes them at shutdown.

    ``executions`` is told of them, for the roots that are strict.
    """

    def __init__(
        self,
        store: ReservationStore,
        telemetry: Telemetry,
        *,
        executions: Executions | None = None,
    ) -> None:
        self._store = store
        self._telemetry = telemetry
        self._executions = executions
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def pending(self) -> int:
        """How many settlements are under way."""
        return len(self._tasks)

    def submit(self, settlement: Settlement) -> None:
        """Settle (or release, by its state) soon. Never awaits, never raises."""
        if len(self._tasks) >= _MOST_PENDING:
            self._lost(settlement, "backlog full")
            return
        task = asyncio.get_running_loop().create_task(self._run(settlement))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def answer_began(self, root: str, reservation_id: str) -> None:
        """The upstream has begun to answer. Never awaits, never raises."""
        if self._executions is not None:
            self._executions.reached(root, reservation_id, ExecutionState.STREAMING)

    def submit_when(self, read: Coroutine[None, None, Settlement]) -> None:
        """Settle what ``read`` finds, which may take a while. Never awaits, never raises."""
        task = asyncio.get_running_loop().create_task(self._run_when(read))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def flush(self, *, timeout_seconds: float) -> int:
        """Wait for what is under way; returns how many settlements were left undone."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout_seconds)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        return len(left)

    async def _run_when(self, read: Coroutine[None, None, Settlement]) -> None:
        try:
            settlement = await read
        except Exception:  # as a handler's fault; the reaper has the reservation
            self._telemetry.settlement_failed(Source.METERING.value)
            log.exception("an answer could not be read to its end")
            return
        await self._run(settlement)

    async def _run(self, settlement: Settlement) -> None:
        call: Callable[[Settlement], Awaitable[SettleResult]]
        call = self._store.release if settlement.state is State.RELEASED else self._store.settle
        if self._executions is not None:
            self._executions.settling(settlement)
        pause = _FIRST_PAUSE_SECONDS
        started = time.monotonic()
        while True:
            attempt = time.perf_counter()
            try:
                result = await call(settlement)
            except StoreUnavailableError as error:
                if time.monotonic() - started > _GIVE_UP_SECONDS:
                    self._lost(settlement, str(error))
                    return
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                continue
            self._telemetry.settled(settlement, result, seconds=time.perf_counter() - attempt)
            if self._executions is not None:
                self._executions.settled(settlement, result)
            self._report(settlement, result)
            return

    def _report(self, settlement: Settlement, result: SettleResult) -> None:
        """One line for a settlement; a plain one's is for debugging."""
        if result.status is SettleStatus.NOOP:
            return
        if result.status is SettleStatus.MISSING and settlement.outcome is Outcome.NOT_FORWARDED:
            return
        is_plain = settlement.outcome in _PLAIN and result.status is SettleStatus.APPLIED
        level = logging.DEBUG if is_plain else logging.INFO
        if result.status is SettleStatus.MISSING:
            level = logging.WARNING  # its record is gone: this was charged nowhere
        if not log.isEnabledFor(level):
            return
        log.log(
            level,
            "settlement",
            extra={
                "reservation_id": settlement.reservation_id,
                "service_id": settlement.root,
                "status": result.status.value,
                "outcome": settlement.outcome.value,
                "source": settlement.source.value,
                "knowledge": settlement.knowledge.name.lower(),
                "reserved_tokens": result.reserved_tokens,
                "charged_before_tokens": result.charged_before_tokens,
                "charged_tokens": result.charged_tokens,
                "usage": {} if settlement.usage is None else settlement.usage.kinds(),
            },
        )

    def _lost(self, settlement: Settlement, reason: str) -> None:
        self._telemetry.settlement_failed(settlement.source.value)
        log.error(
            "settlement left to the reaper",
            extra={
                "reservation_id": settlement.reservation_id,
                "service_id": settlement.root,
                "outcome": settlement.outcome.value,
                "reason": reason,
            },
        )
