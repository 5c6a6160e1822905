"""Metrics' children by label values, looked up without the library's lock, and written in batches.

With several processes the library writes each change into a file that it maps, behind a lock: some
25 microseconds for all that one request counts. Once ``Buffer.delay`` was called, changes are added
up here, and written together by ``Buffer.flush``.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol, TypeVar

from prometheus_client import Counter, Gauge, Histogram

# Models of which one process may begin series, for each metric.
_MOST_MODELS = 512


class _Changed(Protocol):
    def flush(self) -> None: ...


class Buffer:
    """What has changed since the last flush. Of one thread, apart from reading metrics."""

    def __init__(self) -> None:
        self.delays = False
        self.changed: list[_Changed] = []

    def delay(self) -> None:
        """From now on changes wait for ``flush``, which somebody calls now and then."""
        self.delays = True

    def flush(self) -> None:
        """Write what has changed. What comes after one that cannot be written waits for the next
        flush."""
        while self.changed:
            self.changed.pop().flush()


class Count:
    """A counter's child."""

    __slots__ = ("_buffer", "_child", "_more")

    def __init__(self, child: Counter, buffer: Buffer) -> None:
        self._child, self._buffer, self._more = child, buffer, 0.0

    def inc(self, amount: float = 1) -> None:
        if not self._buffer.delays:
            self._child.inc(amount)
            return
        if amount and not self._more:
            self._buffer.changed.append(self)
        self._more += amount

    def flush(self) -> None:
        more, self._more = self._more, 0.0
        self._child.inc(more)


class Level:
    """A gauge's child."""

    __slots__ = ("_buffer", "_child", "_is_new", "_value")

    def __init__(self, child: Gauge, buffer: Buffer) -> None:
        self._child, self._buffer = child, buffer
        self._value, self._is_new = 0.0, False

    def set(self, value: float) -> None:
        if not self._buffer.delays:
            self._child.set(value)
            return
        self._value = value
        if not self._is_new:
            self._is_new = True
            self._buffer.changed.append(self)

    def flush(self) -> None:
        self._is_new = False
        self._child.set(self._value)


class Observations:
    """A histogram's child."""

    __slots__ = ("_bounds", "_buffer", "_child", "_counts", "_is_new", "_sum")

    def __init__(self, child: Histogram, buffer: Buffer) -> None:
        self._child, self._buffer = child, buffer
        self._bounds: list[float] = list(child._upper_bounds)
        self._counts = [0] * len(self._bounds)
        self._sum, self._is_new = 0.0, False

    def observe(self, value: float) -> None:
        if not self._buffer.delays:
            self._child.observe(value)
            return
        # The last bound is infinite.
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value
        if not self._is_new:
            self._is_new = True
            self._buffer.changed.append(self)

    def flush(self) -> None:
        # The library offers no way to observe many at once.
        child = self._child
        self._is_new = False
        child._sum.inc(self._sum)
        self._sum = 0.0
        for number, count in enumerate(self._counts):
            if count:
                child._buckets[number].inc(count)
                self._counts[number] = 0


M = TypeVar("M", Counter, Gauge, Histogram)
C = TypeVar("C", Count, Level, Observations)


def counts(metric: Counter, buffer: Buffer) -> Callable[..., Count]:
    """The children of a counter by label values.

    As many are kept as the library keeps itself: labels come from small sets.
    """
    return _children(metric, Count, buffer)


def levels(metric: Gauge, buffer: Buffer) -> Callable[..., Level]:
    """The children of a gauge."""
    return _children(metric, Level, buffer)


def observations(metric: Histogram, buffer: Buffer) -> Callable[..., Observations]:
    """The children of a histogram."""
    return _children(metric, Observations, buffer)


def _children(metric: M, kind: Callable[[M, Buffer], C], buffer: Buffer) -> Callable[..., C]:
    known: dict[tuple[str, ...], C] = {}

    def child(*values: str) -> C:
        found = known.get(values)
        if found is None:
            found = known[values] = kind(metric.labels(*values) if values else metric, buffer)
        return found

    return child


class FewModels:
    """The first pairs of provider and model; later ones get no series."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()

    def takes(self, provider: str, model: str) -> bool:
        if (provider, model) not in self._known:
            if len(self._known) >= _MOST_MODELS:
                return False
            self._known.add((provider, model))
        return True
