"""What tokenweir adds to the time of an answer: open-loop load at shares of its saturation.

At each rate bare Envoy is measured at the same rate, and what is added is the difference of the
same percentile of both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.load import percentile
from tests.bench.rounds import Kind
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
    """One rate, and by system what was seen at it."""

    rate: float
    seen: Mapping[str, Seen]


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
    return Level(rate=rate, seen=seen)


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
