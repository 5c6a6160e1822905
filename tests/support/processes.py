"""Starting and ending server processes for tests."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from extproc.demo.processes import free_ports

START_SECONDS = 60.0


def free_port() -> int:
    """A port of loopback that nobody listens on right now."""
    return free_ports(1)[0]


@contextmanager
def running(
    command: list[str], *, log: Path, is_ready: Callable[[], bool]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``command`` until the block ends; when it does not get ready, its log is shown."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"{command[0]} did not start:\n{log.read_text(errors='replace')}"
                )
            time.sleep(0.02)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
