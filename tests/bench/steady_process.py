"""The open-loop generator as a process of its own, started before it is told when to begin."""

import json
import subprocess
import sys
import time
from pathlib import Path

from extproc.demo.processes import clean_environment
from tests.bench.steady import OPEN_AT_FIRST, READY, Answered, Seen
from tests.bench.systems import System

START_SECONDS = 0.2  # from "ready" to the first request
_ALONE_START_SECONDS = 0.05  # the same where no other generator begins at that moment
_SLACK_SECONDS = 60.0


class SteadyProcess:
    """One process of tests.bench.steady. Raises RuntimeError when it fails."""

    def __init__(self, port: int, request: bytes, directory: Path, name: str) -> None:
        self._port = port
        self._name = name
        self._path = directory / f"{name}.bin"
        self._path.write_bytes(request)
        self._total = 0.0
        self._process: subprocess.Popen[str] | None = None

    def start(
        self,
        *,
        rate: float,
        total: float,
        on: float | None = None,
        off: float = 0.0,
        connections: int = OPEN_AT_FIRST,
    ) -> None:
        """``rate`` a second for ``total`` seconds, or in windows of them (see ``due_times``)."""
        self._total = total
        command = [sys.executable, "-m", "tests.bench.steady", "--port", str(self._port)]
        command += ["--request", str(self._path), "--rate", str(rate), "--off", str(off)]
        command += ["--on", str(total if on is None else on), "--total", str(total)]
        command += ["--connections", str(connections)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )

    def wait_ready(self) -> None:
        """Until it only waits for the time at which to begin."""
        assert self._process is not None
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != READY:
            raise self._failure("does not start")

    def go(self, started: float) -> None:
        """``started`` is of time.monotonic()."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{started}\n")
        self._process.stdin.flush()

    def results(self) -> Seen:
        """Waits for the end."""
        assert self._process is not None
        try:
            output, _ = self._process.communicate(timeout=self._total + _SLACK_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._failure("does not end") from None
        if self._process.returncode:
            raise self._failure(f"ended with status {self._process.returncode}")
        seen = json.loads(output)
        return Seen([Answered(**each) for each in seen["requests"]], seen["transits"])

    def _failure(self, what: str) -> RuntimeError:
        if self._process is not None:
            self._process.kill()
        return RuntimeError(f"the generator of {self._name} requests {what}")


def measure_steady(
    request: bytes,
    system: System,
    directory: Path,
    *,
    rate: float,
    seconds: float,
    connections: int = OPEN_AT_FIRST,
) -> Seen:
    """One constant rate on one system, at least one request."""
    process = SteadyProcess(system.port, request, directory, "steady")
    process.start(rate=rate, total=seconds, connections=connections)
    process.wait_ready()
    process.go(time.monotonic() + _ALONE_START_SECONDS)
    return process.results()
