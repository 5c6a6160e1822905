"""Closed-loop load on several systems in turns, in short rounds.

A machine that others use too is faster at one moment than at the next. Systems that are to be
compared are therefore measured one right after the other, again and again, and what counts is the
median of the ratios within a round.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench.load import LoadResult, percentile
from tests.bench.measure import Sample, generate_load, measure, measure_during, settle
from tests.bench.steady import Seen
from tests.bench.steady_process import measure_steady
from tests.bench.systems import SERVICE, System
from tests.bench.traffic import STREAM_SCRIPT, chat_body, raw_request

# By name of the system: bare, empty, ours.
Rounds = dict[str, list[Sample]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of answer. ``connections``: so many clients wait for answers while CPU is counted;
    ``saturating``: so many use all that the machine has."""

    name: str
    request: bytes
    connections: int
    saturating: int


JSON = Kind(
    name="json",
    request=raw_request(SERVICE, chat_body()),
    connections=32,
    saturating=32,
)
# Eight do not keep two cores busy, so that chunks really come one by one.
STREAMS = Kind(
    name="stream200",
    request=raw_request(SERVICE, chat_body(stream=True), script=STREAM_SCRIPT),
    connections=8,
    saturating=48,
)
KINDS = (JSON, STREAMS)


def measure_rounds(
    kind: Kind,
    systems: Mapping[str, System],
    directory: Path,
    *,
    rounds: int,
    seconds: float,
    after_each: Callable[[Mapping[str, Sample]], None] | None = None,
    times: Mapping[str, int] | None = None,
) -> Rounds:
    """``seconds`` is of one round of one system; who comes first changes from round to round.
    ``after_each`` is called with the samples of each round. ``times``: so many times the clients
    of the kind, by system."""
    connections = {name: kind.connections * (times or {}).get(name, 1) for name in systems}
    samples: Rounds = {name: [] for name in systems}
    names = list(systems)
    for name, system in systems.items() if rounds > 1 else ():  # warm-up
        _load(system, kind, directory, connections=connections[name], seconds=seconds / 2)
    settle()
    for number in range(rounds):
        at = number % len(names)
        for name in names[at:] + names[:at]:
            samples[name].append(
                measure(
                    systems[name],
                    kind.request,
                    directory,
                    connections=connections[name],
                    seconds=seconds,
                )
            )
        if after_each is not None:
            after_each({name: samples[name][-1] for name in names})
    return samples


def measure_saturation(
    kind: Kind, system: System, directory: Path, *, seconds: float
) -> LoadResult:
    """As many answers a second as the system gives on this machine."""
    return _load(system, kind, directory, connections=kind.saturating, seconds=seconds)


def measure_at_rate(
    kind: Kind, system: System, directory: Path, *, rate: float, seconds: float
) -> Sample:
    """CPU of requests that come at a constant rate."""

    def load() -> LoadResult:
        return _result(measure_steady(kind.request, system, directory, rate=rate, seconds=seconds))

    return measure_during(system, load)


def _load(
    system: System, kind: Kind, directory: Path, *, connections: int, seconds: float
) -> LoadResult:
    return generate_load(
        system.port, kind.request, directory, connections=connections, seconds=seconds
    )


def _result(seen: Seen) -> LoadResult:
    latencies = sorted(each.latency for each in seen.requests)
    good = sum(each.status == 200 for each in seen.requests)
    return LoadResult(
        requests=len(seen.requests),
        seconds=max(each.due + each.latency for each in seen.requests),
        statuses={"200": good},
        failed=0,
        p50_ms=percentile(latencies, 50) * 1000,
        p99_ms=percentile(latencies, 99) * 1000,
    )


def median_of(samples: list[Sample], value: Callable[[Sample], float]) -> float:
    """The median of a figure of all rounds."""
    return median(map(value, samples))


def median_ratio(rounds: Rounds, ours: str, theirs: str, value: Callable[[Sample], float]) -> float:
    """The median over the rounds of a figure of one system by that of another."""
    pairs = zip(rounds[ours], rounds[theirs], strict=True)
    return median(value(mine) / value(other) for mine, other in pairs)
