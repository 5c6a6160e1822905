"""A time-out for very many short things: one timer for all instead of one each.

``asyncio.timeout`` sets and cancels a timer every time, which is what a request can be spared.
"""

import asyncio
from collections import deque
from types import TracebackType
from typing import Any, Self


class Deadline:
    """One block that may take so long; TimeoutError is raised in its place when it takes longer."""

    __slots__ = ("_all", "_cancelling", "_is_late", "at", "task")

    def __init__(self, all_of_them: "Deadlines") -> None:
        self._all = all_of_them
        self._is_late = False
        self._cancelling = 0
        self.at = 0.0
        self.task: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        task = self.task = asyncio.current_task()
        assert task is not None
        self._cancelling = task.cancelling()
        self._all.watch(self)
        return self

    def cancel(self) -> None:
        """The time is over."""
        if self.task is not None:
            self._is_late = True
            self.task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task, self.task = self.task, None
        if not self._is_late:
            return
        assert task is not None
        # As in asyncio.timeout: who else cancels this task meanwhile is not to be deceived.
        if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error


class Deadlines:
    """Of blocks that all may take ``seconds``; of one event loop."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._watched: deque[Deadline] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def one(self) -> Deadline:
        """For a ``with`` around what is awaited."""
        return Deadline(self)

    def watch(self, deadline: Deadline) -> None:
        """From now on. Those that end earlier stay in the queue until their time, without task."""
        loop = asyncio.get_running_loop()
        deadline.at = loop.time() + self._seconds
        self._watched.append(deadline)
        if self._timer is None:
            self._timer = loop.call_at(deadline.at, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        watched = self._watched
        while watched and (watched[0].task is None or watched[0].at <= now):
            watched.popleft().cancel()
        self._timer = loop.call_at(watched[0].at, self._look) if watched else None
