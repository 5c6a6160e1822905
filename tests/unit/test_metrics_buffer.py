"""Metrics that are written in batches, where one of them cannot be written."""

from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram

from extproc.control.children import Buffer, counts, observations


class _FullDiskError(OSError):
    pass


def test_what_could_not_be_written_stops_nothing_from_being_counted_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry, buffer = CollectorRegistry(), Buffer()
    first = Histogram("first", "-", registry=registry, buckets=(1.0,))
    second = Counter("second", "-", registry=registry)
    third = Counter("third", "-", registry=registry)
    seen = observations(first, buffer)()
    others = [counts(metric, buffer)() for metric in (second, third)]
    buffer.delay()

    def count_all() -> None:
        seen.observe(0.5)
        for other in others:
            other.inc()

    count_all()
    with monkeypatch.context() as disk:

        def refuse(amount: float = 1) -> None:
            raise _FullDiskError

        for child in (first._sum, second._value):
            disk.setattr(child, "inc", refuse)
        for _ in range(3):  # as the timer does
            with suppress(_FullDiskError):
                buffer.flush()
    count_all()
    buffer.flush()
    names = "first_count", "first_sum", "third_total"
    assert [registry.get_sample_value(name) for name in names] == [2, 1.0, 2]
