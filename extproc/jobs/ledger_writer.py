"""The ledger writer: moves usage events from Redis into SQL, each exactly once.

An event is dropped from its stream only after the commit of its row. A writer that dies in between
leaves both; the event comes again, to another writer, and the ledger finds that it has it. Any
number of writers may run at once. One that cannot reach SQL waits with what it has read.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from extproc.core.errors import StoreUnavailableError
from extproc.core.ledger import (
    DeadEvent,
    EventSource,
    Ledger,
    LedgerEntry,
    LedgerEventError,
    UsageEvent,
    Written,
    entry_of,
)

log = logging.getLogger("tokenweir.ledger")

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 10.0
# Roots read side by side.
_ROOTS_AT_ONCE = 50


class LedgerTelemetry(Protocol):
    """What is told of the ledger."""

    def ledger_written(self, written: Written, *, seconds: float, oldest_ms: int) -> None:
        """One transaction; ``oldest_ms`` is how long ago its oldest event happened."""
        ...

    def ledger_waiting(self, events: int) -> None:
        """How many events wait in Redis, or are with a writer."""
        ...

    def ledger_failed(self, store: str) -> None:
        """A store did not answer; it is tried again."""
        ...


class LedgerWriter:
    """``batch`` events at most go into one transaction; ``reclaim_seconds`` is how often the events
    of writers that died are looked for."""

    def __init__(
        self,
        source: EventSource,
        ledger: Ledger,
        telemetry: LedgerTelemetry,
        *,
        provider_of: Callable[[str], str],
        batch: int = 1000,
        interval: float = 0.5,
        reclaim_seconds: float = 60.0,
    ) -> None:
        self._source = source
        self._ledger = ledger
        self._telemetry = telemetry
        self._provider_of = provider_of
        self._batch = batch
        self._interval = interval
        self._reclaim_seconds = reclaim_seconds
        self._reclaims_at = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Write until ``stop`` is set. An outage of either store is logged and waited out."""
        pause = _FIRST_PAUSE_SECONDS
        while not stop.is_set():
            try:
                moved = await self.sweep(stop)
            except StoreUnavailableError as error:
                self._failed(error)
                await _sleep(pause, stop)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            pause = _FIRST_PAUSE_SECONDS
            if not moved:
                await _sleep(self._interval, stop)

    def _failed(self, error: StoreUnavailableError) -> None:
        self._telemetry.ledger_failed(error.store)
        log.warning("ledger_write_failed", extra={"store": error.store, "error": str(error)})

    async def sweep(self, stop: asyncio.Event | None = None) -> int:
        """Once through all roots that have events; how many events were moved.

        A root whose stream cannot be read does not keep the others waiting: the first
        StoreUnavailableError is raised after all were tried. ``stop`` ends it between batches, and
        also the waiting for an SQL that is away; what was read is read again by the next writer.
        """
        waiting = await self._source.waiting()
        self._telemetry.ledger_waiting(sum(waiting.values()))
        now = time.monotonic()
        reclaims = now >= self._reclaims_at
        if reclaims:
            self._reclaims_at = now + self._reclaim_seconds
        stop = stop or asyncio.Event()
        failure: StoreUnavailableError | None = None
        moved, roots = 0, list(waiting)
        while roots and not stop.is_set():
            some, events = roots[:_ROOTS_AT_ONCE], 0
            # No more are read than fit: of each root a fair share, of the last ones what is left.
            share = max(1, self._batch // len(some))
            some = some[: self._batch]
            del roots[: len(some)]
            results = await asyncio.gather(
                *(self._source.read(root, at_most=share, reclaim=reclaims) for root in some),
                return_exceptions=True,
            )
            batch: list[UsageEvent] = []
            for root, result in zip(some, results, strict=True):
                if isinstance(result, StoreUnavailableError):
                    failure = failure or result
                elif isinstance(result, BaseException):
                    raise result
                else:
                    batch += result
                    if len(result) == share:
                        roots.append(root)  # it has more
            events = len(batch)
            if events and not await self._move(batch, stop):
                return moved
            moved += events
        if failure is not None:
            raise failure
        return moved

    async def _move(self, events: list[UsageEvent], stop: asyncio.Event) -> bool:
        """Into SQL, however long that takes, and then out of Redis; False when stopped before."""
        entries, dead = self._read(events)
        pause = _FIRST_PAUSE_SECONDS
        while True:
            started = time.perf_counter()
            try:
                written = await self._ledger.write(entries, dead)
                break
            except StoreUnavailableError as error:
                self._failed(error)
            await _sleep(pause, stop)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            if stop.is_set():
                return False
        oldest = min((entry.settled_at_ms for entry, _ in entries), default=0)
        self._telemetry.ledger_written(
            written,
            seconds=time.perf_counter() - started,
            oldest_ms=max(0, int(time.time() * 1000) - oldest) if entries else 0,
        )
        by_root: dict[str, list[str]] = {}
        for event in events:
            by_root.setdefault(event.root, []).append(event.event_id)
        await asyncio.gather(*(self._source.drop(root, ids) for root, ids in by_root.items()))
        return True

    def _read(
        self, events: list[UsageEvent]
    ) -> tuple[list[tuple[LedgerEntry, UsageEvent]], list[DeadEvent]]:
        entries, dead = [], []
        for event in events:
            try:
                entries.append((entry_of(event, provider_of=self._provider_of), event))
            except LedgerEventError as error:
                dead.append(DeadEvent(event, str(error)))
                log.error(
                    "usage_event_is_dead",
                    extra={"root": event.root, "event_id": event.event_id, "reason": str(error)},
                )
        return entries, dead


async def _sleep(seconds: float, stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
