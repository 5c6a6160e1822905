"""Keeps the slices of one worker: takes them, gives records to what was admitted, returns the rest.

Each slice has a task of its own, which ends with the slice. Nothing here is awaited by a request.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Protocol

from extproc.core.errors import StoreUnavailableError
from extproc.core.slices import Drawing, SlicePlan, SliceRequest, SliceStore, SliceTaken

log = logging.getLogger("tokenweir.slices")

# What is admitted within this time gets its records by one call, of so many at most.
_GATHER_SECONDS = 0.01
_MOST_DRAWN = 50
# As the settler's: a store that is away is asked again for so long; then the ends of the requests
# draw for themselves, and the reaper returns what is left.
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0
_GIVE_UP_SECONDS = 60.0
# The minute ends by Redis' clock, and is measured by ours from before the call.
_EDGE_SECONDS = 0.005


class SliceTelemetry(Protocol):
    """What is told of slices."""

    def slices_held(self, tokens: int) -> None:
        """Tokens that this worker has taken ahead, and neither used nor given back."""
        ...


@dataclass(eq=False, slots=True, kw_only=True)
class Slice:
    """What may still be admitted. ``ends`` and ``minute_ends`` are of the monotonic clock."""

    asked: SliceRequest
    taken: SliceTaken
    ends: float
    minute_ends: float
    requests: int
    tokens: int
    is_open: bool = True
    waiting: dict[str, Drawing] = field(default_factory=dict)
    admitted: set[str] = field(default_factory=set)
    has_news: asyncio.Event = field(default_factory=asyncio.Event)

    def admit(self, drawing: Drawing, now: float) -> bool:
        """Whether it fits, and then it is taken. An id is admitted once."""
        if (
            not self.is_open
            or now >= self.ends
            or self.requests < 1
            or drawing.reserved_tokens > self.tokens
            or drawing.reservation_id in self.admitted
        ):
            return False
        self.requests -= 1
        self.tokens -= drawing.reserved_tokens
        self.admitted.add(drawing.reservation_id)
        self.waiting[drawing.reservation_id] = drawing
        self.has_news.set()
        return True

    def close(self) -> None:
        """Admit no more; what is left will be given back."""
        self.is_open = False
        self.has_news.set()


class SliceKeeper:
    """Owns the slices of one worker. To be used from one event loop."""

    def __init__(self, store: SliceStore, plan: SlicePlan, telemetry: SliceTelemetry) -> None:
        self._store = store
        self._plan = plan
        self._telemetry = telemetry
        self._slices: set[Slice] = set()
        # By root: slices that are held, or asked for.
        self._roots: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def has_room(self, root: str) -> bool:
        """Whether one more slice of ``root`` may be taken."""
        return not self._is_closed and self._roots[root] < self._plan.most_slices

    def take_soon(self, request: SliceRequest, then: Callable[[Slice | None], None]) -> None:
        """Take a slice, which ends by itself; ``then`` gets None where there is none to have."""
        self._roots[request.root] += 1
        self._spawn(self._take(request, then))

    async def _take(self, request: SliceRequest, then: Callable[[Slice | None], None]) -> None:
        started = time.monotonic()
        found: Slice | None = None
        # It may have been taken all the same, or will be: a return that comes first stops it.
        is_doubtful = True
        try:
            taken = await self._store.take_slice(request, self._plan)
            is_doubtful = False
            found = None if taken is None else self._slice(request, taken, started)
        except StoreUnavailableError as error:
            is_doubtful = error.maybe_applied
        finally:
            if is_doubtful:
                self._spawn(self._return(request))
            elif found is None:
                self._forget(request.root)
            then(found)

    def _slice(self, request: SliceRequest, taken: SliceTaken, started: float) -> Slice:
        minute_ends = started + taken.minute_left_ms / 1000
        found = Slice(
            asked=request,
            taken=taken,
            ends=min(started + self._plan.life_seconds, minute_ends - _EDGE_SECONDS),
            minute_ends=minute_ends,
            requests=taken.requests,
            tokens=taken.tokens,
            is_open=not self._is_closed,
        )
        self._slices.add(found)
        self._tell()
        self._spawn(self._keep(found))
        return found

    async def close(self, *, timeout_seconds: float) -> int:
        """Return all slices; how many were left to the reaper."""
        self._is_closed = True
        for one in self._slices:
            one.close()
        until = time.monotonic() + timeout_seconds
        while self._tasks and (left := until - time.monotonic()) > 0:
            await asyncio.wait(set(self._tasks), timeout=left)
        for task in self._tasks:
            task.cancel()
        return len(self._slices)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep(self, kept: Slice) -> None:
        """The life of a slice, to its return."""
        try:
            while kept.is_open and (left := kept.ends - time.monotonic()) > 0:
                try:
                    async with asyncio.timeout(min(left, self._plan.idle_seconds)):
                        await kept.has_news.wait()
                except TimeoutError:
                    break  # idle, or over
                kept.has_news.clear()
                if kept.is_open:
                    await asyncio.sleep(_GATHER_SECONDS)
                if not await self._draw(kept):
                    break
        except StoreUnavailableError:
            pass  # its last words are said again below
        finally:
            kept.close()
        await self._end(kept)

    async def _draw(self, kept: Slice) -> bool:
        """Give records to what waits for one; whether the slice may go on."""
        while kept.waiting:
            some = list(kept.waiting.values())[:_MOST_DRAWN]
            goes_on = await self._store.draw(kept.asked.root, kept.asked.slice_id, some)
            for one in some:
                del kept.waiting[one.reservation_id]
            self._tell()
            if not goes_on:
                return False
        return True

    async def _end(self, kept: Slice) -> None:
        """Draw what is left to be drawn, and only then return the rest."""

        async def draw_all() -> None:
            while kept.waiting:
                await self._draw(kept)

        try:
            if await _again(draw_all):
                await self._return(kept.asked)
                return
            self._forget(kept.asked.root)
            log.error(
                "slice left to the reaper",
                extra={
                    "service_id": kept.asked.root,
                    "slice_id": kept.asked.slice_id,
                    "undrawn": len(kept.waiting),
                },
            )
        finally:
            self._slices.discard(kept)
            self._tell()

    async def _return(self, request: SliceRequest) -> None:
        try:
            await _again(lambda: self._store.return_slice(request.root, request.slice_id))
        finally:
            self._forget(request.root)

    def _forget(self, root: str) -> None:
        self._roots[root] -= 1
        if self._roots[root] <= 0:
            del self._roots[root]

    def _tell(self) -> None:
        self._telemetry.slices_held(sum(one.tokens for one in self._slices))


async def _again(call: Callable[[], Awaitable[None]]) -> bool:
    """Make a call that may be repeated until the store takes it; False when it was given up."""
    pause, until = _FIRST_PAUSE_SECONDS, time.monotonic() + _GIVE_UP_SECONDS
    while True:
        try:
            await call()
        except StoreUnavailableError:
            if time.monotonic() > until:
                return False
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        else:
            return True
