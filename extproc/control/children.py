"""Metrics' children by label values, looked up without the library's lock."""

from collections.abc import Callable
from typing import TypeVar

from prometheus_client import Counter, Gauge, Histogram

# Models of which one process may begin series, for each metric.
_MOST_MODELS = 512

M = TypeVar("M", Counter, Gauge, Histogram)


def children(metric: M) -> Callable[..., M]:
    """The metric's children by label values; looking one up in the library takes a lock each time.

    As many are kept as the library keeps itself: labels come from small sets.
    """
    known: dict[tuple[str, ...], M] = {}

    def child(*values: str) -> M:
        found = known.get(values)
        if found is None:
            found = known[values] = metric.labels(*values)
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
