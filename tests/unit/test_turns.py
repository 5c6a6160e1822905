"""Beside a thread that reads a large body, the event loop soon gets the interpreter."""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles

import pytest

from extproc.app import serve
from extproc.core.errors import SettingsError
from extproc.settings import DatabaseSettings, ServerSettings, Settings

TURNS = 60
PAUSE_SECONDS = 0.001


@pytest.fixture
def restored() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


async def set_by_serve(directory: Path) -> None:
    """Let ``serve`` set the interval; it cannot listen, so it ends at once."""
    settings = Settings(
        server=ServerSettings(
            listen=f"unix:{directory}/no/such/folder/x.sock", metrics_listen="127.0.0.1:0"
        ),
        database=DatabaseSettings(url=f"sqlite:///{directory}/x.db"),
    )
    with pytest.raises(SettingsError):
        await serve(settings)


def turn_seconds() -> float:
    """How long one waits for the interpreter beside a thread that runs Python: the lower quartile,
    because what else the machine does only ever adds to it."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            pass

    thread = threading.Thread(target=work)
    thread.start()
    turns = []
    for _ in range(TURNS):
        started = time.perf_counter()
        time.sleep(PAUSE_SECONDS)  # as the loop, which wakes up for a message
        turns.append(time.perf_counter() - started - PAUSE_SECONDS)
    stop.set()
    thread.join()
    return quantiles(turns, n=4)[0]


@pytest.mark.usefixtures("restored")
async def test_a_thread_that_reads_a_body_does_not_keep_the_loop_waiting(tmp_path: Path) -> None:
    await set_by_serve(tmp_path)
    interval = sys.getswitchinterval()

    def is_better() -> bool:
        sys.setswitchinterval(interval)
        ours = turn_seconds()
        sys.setswitchinterval(0.005)  # Python's own
        return ours < turn_seconds() / 2

    # Other tests may have the machine for a moment.
    assert any(is_better() for _ in range(5))
