"""One worker and two, and what a worker costs that does nothing, and holds in memory."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.bench.measure import cpu_seconds
from tests.bench.rounds import JSON, Rounds, measure_rounds, median_ratio
from tests.bench.systems import System

WORKERS = 2
# One of two workers that did less than this part of the work did not share it.
LEAST_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """``rounds`` have the systems "one" and "two". ``shares``: each worker's part of the CPU that
    all of them used."""

    rounds: Rounds
    shares: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """How many times the requests of one worker two can carry, each with a core of its own: a
        worker's capacity is what it needs for one request of a core's second."""
        return WORKERS * median_ratio(self.rounds, "one", "two", lambda sample: sample.python_us)


def measure_scaling(
    one: System, two: System, directory: Path, *, rounds: int, seconds: float
) -> Scaling:
    """``two`` is a system whose Python process supervises its workers. It has twice the clients, so
    that a worker of it has as much to do at once: with less, each request costs more."""
    pids = [worker.pid for worker in psutil.Process(two.python_pid).children()]
    before = [cpu_seconds(pid) for pid in pids]
    measured = measure_rounds(
        JSON,
        {"one": one, "two": two},
        directory,
        rounds=rounds,
        seconds=seconds,
        times={"two": WORKERS},
    )
    used = [cpu_seconds(pid) - then for pid, then in zip(pids, before, strict=True)]
    return Scaling(rounds=measured, shares=tuple(each / sum(used) for each in used))


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Of one worker, in MB of a million bytes: resident, its own part of that (what it shares with
    others divided among them), and resident before the first request."""

    resident_mb: float
    proportional_mb: float
    before_mb: float
    requests: int


def resident_mb(pid: int) -> float:
    """Resident memory of one process."""
    return float(psutil.Process(pid).memory_info().rss) / 1e6


def memory_of(pid: int, *, before_mb: float, requests: int) -> Memory:
    """What it holds now, after so many requests."""
    info = psutil.Process(pid).memory_full_info()
    return Memory(
        resident_mb=info.rss / 1e6,
        proportional_mb=info.pss / 1e6,
        before_mb=before_mb,
        requests=requests,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Per cent of one core that is used while nobody asks: by all systems together, and by our
    server alone, which the Envoys of all profiles ask whether it is well."""

    all_percent: float
    worker_percent: float


def measure_idle(systems: Iterable[System], worker_pid: int, *, seconds: float) -> Idle:
    """Takes ``seconds``."""
    pids = {pid for each in systems for pid in (each.envoy_pid, each.python_pid) if pid is not None}
    before = {pid: cpu_seconds(pid) for pid in pids}
    time.sleep(seconds)
    used = {pid: (cpu_seconds(pid) - then) / seconds * 100 for pid, then in before.items()}
    return Idle(all_percent=sum(used.values()), worker_percent=used[worker_pid])


def scaling_faults(scaling: Scaling | None) -> list[str]:
    """A worker that had next to nothing to do."""
    if scaling is None or min(scaling.shares) >= LEAST_SHARE:
        return []
    return [f"two workers: the work was shared as {[round(each, 2) for each in scaling.shares]}"]
