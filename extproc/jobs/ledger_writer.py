"""The ledger writer: moves usage events from Redis into SQL, each exactly once.

An event is dropped from its stream only after the commit of its row. A writer that dies in between
leaves both; the event comes again, to another writer, and the ledger finds that it has it. Any
number of writers may run at once. One that cannot reach SQL waits with what it has read. While one
batch is written the next is read: one ahead, never more.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from extproc.core.errors import StoreUnavailableError
from extproc.core.ledger import (
    DeadEvent,
    EventSource,
    Ledger,
    LedgerEntry,
    UsageEvent,
    Written,
)
from extproc.core.ledger_event import LedgerEventError, entry_of

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


@dataclass(frozen=True, slots=True)
class _Batch:
    """What one transaction is to hold."""

    events: list[UsageEvent]
    entries: list[tuple[LedgerEntry, UsageEvent]]
    dead: list[DeadEvent]


class _Read(Protocol):
    async def __call__(self, root: str, *, at_most: int) -> list[UsageEvent]: ...


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
        stop, failures = stop or asyncio.Event(), list[StoreUnavailableError]()
        moved = 0
        if reclaims:
            # One after the other: what is being written must not be taken for a dead writer's.
            moved += await self._drain(
                list(waiting), self._source.claim, stop, failures, ahead=False
            )
        moved += await self._drain(list(waiting), self._source.read, stop, failures, ahead=True)
        if failures:
            raise failures[0]
        return moved

    async def _drain(
        self,
        roots: list[str],
        read: _Read,
        stop: asyncio.Event,
        failures: list[StoreUnavailableError],
        *,
        ahead: bool,
    ) -> int:
        """Until nothing comes any more. ``ahead``: the next batch is read while one is written; if
        that one cannot be written, the next stays with this reader, as if he had died with it."""
        ready: _Batch | None = None
        moved = 0
        while True:
            reads = bool(roots) and not stop.is_set() and (ahead or ready is None)
            if ready is None and not reads:
                return moved
            following, is_moved = await _both(
                self._next(roots, read, failures) if reads else _nothing(),
                self._move(ready, stop) if ready is not None else _nothing(),
            )
            if is_moved is False:
                return moved
            moved += 0 if ready is None else len(ready.events)
            ready = following

    async def _next(
        self, roots: list[str], read: _Read, failures: list[StoreUnavailableError]
    ) -> _Batch | None:
        """One batch of the first roots, which leave ``roots`` or go to its end."""
        # No more are read than fit: of each root a fair share, of the last ones what is left.
        share = max(1, self._batch // min(len(roots), _ROOTS_AT_ONCE))
        some = roots[: min(_ROOTS_AT_ONCE, self._batch)]
        del roots[: len(some)]
        results = await asyncio.gather(
            *(read(root, at_most=share) for root in some), return_exceptions=True
        )
        events: list[UsageEvent] = []
        for root, result in zip(some, results, strict=True):
            if isinstance(result, StoreUnavailableError):
                failures.append(result)
            elif isinstance(result, BaseException):
                raise result
            else:
                events += result
                if len(result) == share:
                    roots.append(root)  # it has more
        return self._batch_of(events) if events else None

    async def _move(self, batch: _Batch, stop: asyncio.Event) -> bool:
        """Into SQL, however long that takes, and then out of Redis; False when stopped before."""
        entries = batch.entries
        pause = _FIRST_PAUSE_SECONDS
        while True:
            started = time.perf_counter()
            try:
                written = await self._ledger.write(entries, batch.dead)
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
        for event in batch.events:
            by_root.setdefault(event.root, []).append(event.event_id)
        await asyncio.gather(*(self._source.drop(root, ids) for root, ids in by_root.items()))
        return True

    def _batch_of(self, events: list[UsageEvent]) -> _Batch:
        batch = _Batch(events, [], [])
        for event in events:
            try:
                batch.entries.append((entry_of(event, provider_of=self._provider_of), event))
            except LedgerEventError as error:
                batch.dead.append(DeadEvent(event, str(error)))
                log.error(
                    "usage_event_is_dead",
                    extra={"root": event.root, "event_id": event.event_id, "reason": str(error)},
                )
        return batch


async def _sleep(seconds: float, stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


async def _nothing() -> None:
    return None


async def _both(
    reading: Coroutine[Any, Any, _Batch | None], moving: Coroutine[Any, Any, bool | None]
) -> tuple[_Batch | None, bool | None]:
    """Side by side; neither is left running when the other fails."""
    batch, moved = await asyncio.gather(reading, moving, return_exceptions=True)
    for result in (moved, batch):
        if isinstance(result, BaseException):
            raise result
    assert not isinstance(batch, BaseException)
    assert not isinstance(moved, BaseException)
    return batch, moved
