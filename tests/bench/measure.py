"""One measurement: load from the generator, and what the processes and Redis did meanwhile."""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import redis

from extproc.demo.processes import clean_environment, run_to_end
from tests.bench.load import LoadResult
from tests.bench.systems import System, envoy_messages

# Envoy sends access log entries within 0.2 s, and the last settlements take milliseconds: both
# belong to the requests that were measured.
_SETTLE_SECONDS = 0.3
# Answers under way at the end, and the generator's own start.
_SLACK_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisCounts:
    """Redis' own counters: scripts run (EVALSHA and EVAL), and reads from its clients' sockets."""

    scripts: int
    reads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one phase of load cost, each per complete answer. None: the system has no such part."""

    load: LoadResult
    envoy_cpu_us: float
    python_cpu_us: float | None
    messages: float
    redis_scripts: float | None
    redis_reads: float | None

    @property
    def python_us(self) -> float:
        """Python's CPU; 0 where there is none."""
        return self.python_cpu_us or 0.0

    @property
    def chain_us(self) -> float:
        """Python's CPU and Envoy's."""
        return self.python_us + self.envoy_cpu_us


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of its children, in seconds: of those that run now to
    the nanosecond (the kernel's CPU clock of a process), of those that have ended in its ticks."""
    root = psutil.Process(pid)
    living = sum(_cpu_clock(process.pid) for process in (root, *root.children(recursive=True)))
    ended = root.cpu_times()
    return living + ended.children_user + ended.children_system


def _cpu_clock(pid: int) -> float:
    try:
        # The number of that clock, after CPUCLOCK_SCHED of Linux.
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:  # no such clock, or the process has just ended
        return _cpu_ticks(pid)


def _cpu_ticks(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0  # its parent counts it from now on
    return times.user + times.system


class Machine:
    """How much of the machine other programs used since this object was made.

    Ours are this process and all its children. Where others are busy, the numbers are worse and
    less comparable, so a run says it.
    """

    def __init__(self) -> None:
        self._wall, self._busy, self._own = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        return time.monotonic(), sum(times[:8]) - idle, cpu_seconds(os.getpid())

    def others_percent(self) -> float:
        """Per cent of all cores."""
        wall, busy, own = self._now()
        used = (busy - self._busy) - (own - self._own)
        cores = os.cpu_count() or 1
        return max(0.0, used / ((wall - self._wall) * cores) * 100)


def redis_counts(url: str) -> RedisCounts:
    """Read the counters; doing so is itself one read, and no script."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        commands = client.info("commandstats")
        stats = client.info("stats")
    scripts = sum(
        commands.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval")
    )
    return RedisCounts(scripts=scripts, reads=stats["total_reads_processed"])


def generate_load(
    port: int,
    request: bytes,
    directory: Path,
    *,
    connections: int,
    seconds: float,
) -> LoadResult:
    """Run the generator in its own process."""
    path = directory / "request.bin"
    path.write_bytes(request)
    command = [sys.executable, "-m", "tests.bench.load", "--port", str(port)]
    command += ["--request", str(path), "--connections", str(connections)]
    command += ["--seconds", str(seconds)]
    output = run_to_end(
        "load generator", command, env=clean_environment(), deadline_s=seconds + _SLACK_SECONDS
    )
    return LoadResult(**json.loads(output))


@dataclass(frozen=True, slots=True)
class _Snapshot:
    envoy: float
    python: float | None
    messages: int
    redis: RedisCounts | None


def _snapshot(system: System) -> _Snapshot:
    return _Snapshot(
        cpu_seconds(system.envoy_pid),
        None if system.python_pid is None else cpu_seconds(system.python_pid),
        envoy_messages(system),
        None if system.redis_url is None else redis_counts(system.redis_url),
    )


def settle() -> None:
    """Wait for what belongs to requests that have ended: it is none of the next ones' cost."""
    time.sleep(_SETTLE_SECONDS)


def measure(
    system: System, request: bytes, directory: Path, *, connections: int, seconds: float
) -> Sample:
    """Load the system by clients that wait for their answers, and divide what it cost by these."""
    return measure_during(
        system,
        lambda: generate_load(
            system.port, request, directory, connections=connections, seconds=seconds
        ),
    )


def measure_during(system: System, load: Callable[[], LoadResult]) -> Sample:
    """The same for any load."""
    before = _snapshot(system)
    result = load()
    settle()
    after = _snapshot(system)
    count = result.requests
    python_us = scripts = reads = None
    if before.python is not None and after.python is not None:
        python_us = (after.python - before.python) / count * 1e6
    if before.redis is not None and after.redis is not None:
        scripts = (after.redis.scripts - before.redis.scripts) / count
        reads = (after.redis.reads - before.redis.reads) / count
    return Sample(
        load=result,
        envoy_cpu_us=(after.envoy - before.envoy) / count * 1e6,
        python_cpu_us=python_us,
        messages=(after.messages - before.messages) / count,
        redis_scripts=scripts,
        redis_reads=reads,
    )
