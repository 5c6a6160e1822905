"""What tokenweir adds to the time of an answer: open-loop load at shares of its saturation.

At each rate bare Envoy is measured at the same rate, and what is added is the difference of the
same percentile of both. The server has a core of its own meanwhile (see ``placing``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.load import LoadResult, percentile
from tests.bench.measure import Sample
from tests.bench.placing import server_apart
from tests.bench.rounds import Kind, median_of
from tests.bench.steady import Answered, Seen
from tests.bench.steady_process import measure_steady
from tests.bench.systems import System

# Per cent of saturation, and each one's part of the time: few requests come at the lowest.
LEVELS: Mapping[int, float] = {10: 2.0, 50: 1.0, 90: 1.0}
HALF = 50
PERCENTILES: Mapping[str, float] = {"p50": 50, "p90": 90, "p99": 99, "p999": 99.9}
MOST_PASSES = 2
_CONNECTIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One rate, and by system what was seen at it. ``is_apart``: the server had its own core."""

    rate: float
    seen: Mapping[str, Seen]
    is_apart: bool = False


def full_rate(most: LoadResult, samples: list[Sample]) -> float:
    """Answers a second at which the system is full: as many as it gave to clients that wait, and no
    more than fill a core of the server or of Envoy, one thread each in the main.

    Of streams a full system gives more: what waits is coalesced, and a chunk then costs less. That
    is no load of which one could ask how long a chunk takes. ``samples`` are of few clients.
    """
    busiest_us = max(
        median_of(samples, lambda sample: sample.python_us),
        median_of(samples, lambda sample: sample.envoy_cpu_us),
    )
    return min(most.per_second, 1e6 / busiest_us)


def measure_level(
    kind: Kind,
    systems: Mapping[str, System],
    directory: Path,
    *,
    rate: float,
    seconds: float,
    passes: int,
) -> Level:
    """Each system for ``seconds`` in all, in turns: ``passes`` times."""
    seen = {name: Seen() for name in systems}
    length = max(seconds / passes, 1.01 / rate)  # at least two requests
    servers = [each.python_pid for each in systems.values() if each.python_pid is not None]
    with server_apart(servers) as is_apart:
        for _ in range(passes):
            for name, system in systems.items():
                part = measure_steady(
                    kind.request,
                    system,
                    directory,
                    rate=rate,
                    seconds=length,
                    connections=_CONNECTIONS,
                )
                seen[name].requests.extend(part.requests)
                seen[name].transits.extend(part.transits)
    return Level(rate=rate, seen=seen, is_apart=is_apart)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """By name, in milliseconds of values in seconds."""
    ordered = sorted(values)
    return {name: percentile(ordered, at) * 1000 for name, at in PERCENTILES.items()}


def latencies(requests: Sequence[Answered]) -> list[float]:
    """Seconds until the whole answer was there. A request without an answer took at least as long
    as was waited for it."""
    return [each.latency for each in requests if each.status]


def first_tokens(requests: Sequence[Answered]) -> list[float]:
    """Seconds until the first event was there."""
    return [each.first for each in requests if each.status]
