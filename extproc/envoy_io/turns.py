"""Long work on the event loop, a little at a time: beside it every other stream goes on."""

import asyncio
import time
from collections.abc import Callable, Generator
from typing import TypeVar

# A step that has begun is not interrupted, so a turn takes this and one step more.
TURN_SECONDS = 0.001
# What every chunk gets at once while others wait for a turn: enough for usual ones.
_AT_ONCE_SECONDS = 0.0003

T = TypeVar("T")


class Turns:
    """The loop's share of all streams that have long work: one turn of one of them in each round
    of the loop. Usual work, which fits into its first turn, waits for nobody."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, steps: Generator[None, None, T], spent: Callable[[float], None]) -> T:
        """Take all steps and give what they return. ``spent`` is told the CPU seconds of each turn
        but the last. Interrupted, it may be called again with the same steps."""
        first = _AT_ONCE_SECONDS if self._lock.locked() else TURN_SECONDS
        if (done := _turn(steps, spent, first)) is not None:
            return done[0]
        while True:
            async with self._lock:
                await asyncio.sleep(0)
                if (done := _turn(steps, spent, TURN_SECONDS)) is not None:
                    return done[0]


def _turn(
    steps: Generator[None, None, T], spent: Callable[[float], None], seconds: float
) -> tuple[T] | None:
    """What the steps return, in a tuple; None when there are more."""
    started, until = time.thread_time(), time.perf_counter() + seconds
    try:
        while True:
            next(steps)
            if time.perf_counter() >= until:
                break
    except StopIteration as end:
        return (end.value,)
    spent(time.thread_time() - started)
    return None
