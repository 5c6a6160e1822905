"""The supervisor of several server processes, with small programs in the servers' place."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from extproc.app import _stop_on_signals
from extproc.core.errors import SettingsError
from extproc.core.worker_addresses import worker_addresses
from extproc.settings import ServerSettings, Settings
from extproc.workers import Supervisor

# At its first start it stays; later ones end as those of a wrong setting do.
PROGRAM = """
import os, pathlib, signal, sys
name = os.environ["TOKENWEIR_SERVER__LISTEN"].rpartition(":")[2]
file = pathlib.Path(sys.argv[1]) / name
if file.exists():
    (file.parent / (name + "-again")).touch()
    sys.exit(2)
file.write_text(str(os.getpid()))
signal.pause()
"""
SETTINGS = Settings(
    server=ServerSettings(
        listen="127.0.0.1:18900", metrics_listen="127.0.0.1:0", shutdown_grace_seconds=1
    )
)


async def until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not look():
            await asyncio.sleep(0.02)


def has_pid(file: Path) -> bool:
    return file.exists() and file.read_text() != ""


async def test_a_setting_that_got_wrong_later_does_not_stop_the_other_workers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = Supervisor(
        SETTINGS,
        count=2,
        command=[sys.executable, "-c", PROGRAM, str(tmp_path)],
        environment=os.environ,
        reload=lambda: SETTINGS,
    )
    running = asyncio.create_task(supervisor.run())
    first, second = tmp_path / "18900", tmp_path / "18901"
    await until(lambda: has_pid(first) and has_pid(second))
    os.kill(int(first.read_text()), signal.SIGKILL)
    await until(lambda: caplog.messages.count("worker ended") >= 2)
    assert (tmp_path / "18900-again").exists()
    assert not running.done()
    os.kill(int(second.read_text()), 0)  # it runs
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, 30) == 0


@pytest.mark.parametrize(
    ("listen", "count", "expected"),
    [
        ("127.0.0.1:0", 1, ("127.0.0.1:0",)),
        ("127.0.0.1:9", 3, ("127.0.0.1:9", "127.0.0.1:10", "127.0.0.1:11")),
        ("[::1]:9", 2, ("[::1]:9", "[::1]:10")),
        ("unix:/run/t.sock", 2, ("unix:/run/t.sock", "unix:/run/t-2.sock")),
        ("unix:/run.d/t", 2, ("unix:/run.d/t", "unix:/run.d/t-2")),
    ],
)
def test_each_worker_has_an_address_of_its_own(
    listen: str, count: int, expected: tuple[str, ...]
) -> None:
    assert worker_addresses("server.listen", listen, count) == expected


@pytest.mark.parametrize(
    ("listen", "count", "key"),
    [
        ("127.0.0.1:9", 0, "server.workers"),
        ("127.0.0.1:9", 65, "server.workers"),
        ("127.0.0.1:0", 2, "server.listen"),
        ("127.0.0.1:65535", 2, "server.listen"),
    ],
)
def test_an_address_without_room_is_named(listen: str, count: int, key: str) -> None:
    with pytest.raises(SettingsError, match=key):
        worker_addresses("server.listen", listen, count)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_server_stops_in_order_when_its_terminal_closes_too(number: signal.Signals) -> None:
    stop, hurry = _stop_on_signals()
    os.kill(os.getpid(), number)
    await asyncio.wait_for(stop.wait(), 5)
    assert not hurry.is_set()
    os.kill(os.getpid(), number)
    await asyncio.wait_for(hurry.wait(), 5)
