"""Profile ``observe``: the access log is often a little faster than the copies of the answer.

An ending that would settle at once by a guess costs one more call for nearly every request. So it
waits for metering's word in this process, which makes it superfluous.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

# Envoy keeps the copies' stream for a second after the answer.
HOLD_SECONDS = 1.5
# With so many that wait, the oldest waits no longer.
_MOST_HELD = 20_000


class HeldEndings:
    """Actions in the order of their time; of one event loop."""

    def __init__(self, seconds: float = HOLD_SECONDS) -> None:
        self._seconds = seconds
        self._held: deque[tuple[float, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, act: Callable[[], None]) -> None:
        """``act`` when the time is over, or earlier when there are too many. Never awaits."""
        if self._seconds <= 0:
            act()
            return
        self._held.append((time.monotonic() + self._seconds, act))
        if len(self._held) > _MOST_HELD:
            self._held.popleft()[1]()
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds, self._look)

    def flush(self) -> None:
        """All of them now: the process stops."""
        while self._held:
            self._held.popleft()[1]()

    def _look(self) -> None:
        self._timer = None
        now = time.monotonic()
        try:
            while self._held and self._held[0][0] <= now:
                self._held.popleft()[1]()
        finally:
            # Whatever an action did, the others have their time.
            if self._held:
                left = max(0.0, self._held[0][0] - now)
                self._timer = asyncio.get_running_loop().call_later(left, self._look)
