"""Several server processes of one host: started, watched, exchanged one by one, stopped together.

SIGHUP exchanges them: each says that it is going, is left by Envoy, ends, and is up again under its
old address before the next one goes; it starts from the files that are installed then, so this is
also how a new release or new settings come in. SIGTERM and SIGINT stop all, a second one at once.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from extproc.core.errors import SettingsError
from extproc.core.worker_addresses import worker_addresses
from extproc.envoy_io.health_probe import is_serving
from extproc.settings import Settings

log = logging.getLogger("tokenweir.workers")

# A worker watches the other end of this pipe, so that none outlives its supervisor.
LIFELINE_VARIABLE = "TOKENWEIR_WORKER_LIFELINE_FD"
_WRONG_SETTING = 2  # exit status
_READY_SECONDS, _POLL_SECONDS = 60.0, 0.05
# A worker that has just ended is started again after this; doubled each time until it stays up.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 10.0
_STAYED_UP_SECONDS = 30.0
_CUT_MARGIN_SECONDS = 5.0


@dataclass
class _Worker:
    address: str
    process: asyncio.subprocess.Process | None = None
    pause: float = _FIRST_PAUSE_SECONDS
    expected: bool = False  # its end is our doing
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """Runs ``count`` servers with ``command`` until it is told to stop.

    ``reload`` reads the settings again; it raises SettingsError when they are wrong.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        count: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        reload: Callable[[], Settings],
    ) -> None:
        self._settings = settings
        self._command = command
        self._environment = environment
        self._reload = reload
        addresses = worker_addresses("server.listen", settings.server.listen, count)
        port = _port(settings.server.metrics_listen)
        if port is not None and port in map(_port, addresses):
            raise SettingsError("server.metrics_listen", "is the address of one of the workers")
        self._workers = [_Worker(address) for address in addresses]
        self._stop, self._hurry, self._exchange = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._status = 0

    async def run(self) -> int:
        """Until SIGTERM, SIGINT, or until a worker cannot even start; returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        loop.add_signal_handler(signal.SIGHUP, self._exchange.set)
        with _lifeline() as (theirs, ours), self._metrics():
            self._lifeline = theirs
            watchers = [asyncio.create_task(self._watch(worker)) for worker in self._workers]
            exchanger = asyncio.create_task(self._exchange_when_told())
            try:
                log.info("workers", extra={"addresses": [each.address for each in self._workers]})
                await self._stop.wait()
            finally:
                exchanger.cancel()
                await self._stop_all()
                await asyncio.gather(*watchers)
                os.close(ours)
        return self._status

    def _signalled(self) -> None:
        (self._hurry if self._stop.is_set() else self._stop).set()

    @contextlib.contextmanager
    def _metrics(self) -> Iterator[None]:
        """One endpoint that sums up what all workers write."""
        # It chooses how values are kept at its import, by a variable that is set by then.
        from extproc.control.metrics import Metrics, start_metrics_server  # noqa: PLC0415

        listen = self._settings.server.metrics_listen
        try:
            stop = start_metrics_server(listen, Metrics())
        except OSError as error:
            raise SettingsError("server.metrics_listen", f"{listen}: {error}") from error
        try:
            yield
        finally:
            stop()

    @staticmethod
    def _forget_gauges(pid: int) -> None:
        from extproc.control.vitals import forget_gauges  # noqa: PLC0415 - as above

        forget_gauges(pid)

    async def _watch(self, worker: _Worker) -> None:
        """Keep one worker running. Only at the very start is a wrong setting the end of all: the
        others serve on with those that they have."""
        is_first = True
        while not self._stop.is_set():
            started = asyncio.get_running_loop().time()
            await self._start(worker)
            assert worker.process is not None
            if self._stop.is_set():  # told so while it was being started
                worker.process.terminate()
            status = await worker.process.wait()
            self._forget_gauges(worker.process.pid)
            worker.ended.set()
            if self._stop.is_set():
                return
            if worker.expected:
                worker.expected = is_first = False
                continue
            if status == _WRONG_SETTING and is_first:
                # It has said which one, and the next would say the same.
                self._status = status
                self._stop.set()
                return
            is_first = False
            seconds = asyncio.get_running_loop().time() - started
            log.error(
                "worker ended",
                extra={"address": worker.address, "status": status, "seconds": round(seconds, 1)},
            )
            if seconds > _STAYED_UP_SECONDS:
                worker.pause = _FIRST_PAUSE_SECONDS
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), worker.pause)
            worker.pause = min(2 * worker.pause, _LONGEST_PAUSE_SECONDS)

    async def _start(self, worker: _Worker) -> None:
        worker.ended.clear()
        worker.process = await asyncio.create_subprocess_exec(
            *self._command,
            env={
                **self._environment,
                "TOKENWEIR_SERVER__WORKERS": "1",
                "TOKENWEIR_SERVER__LISTEN": worker.address,
                "TOKENWEIR_SERVER__METRICS_LISTEN": "127.0.0.1:0",
                LIFELINE_VARIABLE: str(self._lifeline),
            },
            pass_fds=(self._lifeline,),
            # Ctrl-C in a terminal reaches us alone, and we pass it on.
            start_new_session=True,
        )

    async def _exchange_when_told(self) -> None:
        while True:
            await self._exchange.wait()
            self._exchange.clear()
            try:
                self._settings = self._reload()
            except SettingsError as error:
                log.error("settings are wrong: nothing exchanged", extra={"reason": str(error)})
                continue
            log.info("exchanging workers")
            for worker in self._workers:
                if not await self._exchange_one(worker):
                    log.error("exchange given up", extra={"address": worker.address})
                    break
            else:
                log.info("workers exchanged")

    async def _exchange_one(self, worker: _Worker) -> bool:
        """False when the new one does not get ready: then the others stay as they are."""
        if worker.process is not None and worker.process.returncode is None:
            worker.expected = True
            await self._end(worker)
        deadline = asyncio.get_running_loop().time() + _READY_SECONDS
        while not await asyncio.to_thread(is_serving, worker.address):
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        # Envoy has to find it again before the next one goes.
        await asyncio.sleep(self._settings.server.drain_seconds)
        return True

    async def _end(self, worker: _Worker) -> None:
        """SIGTERM: it drains and stops by itself, or is killed when it does not."""
        assert worker.process is not None
        with contextlib.suppress(ProcessLookupError):
            worker.process.terminate()
        server = self._settings.server
        patience = server.drain_seconds + 2 * server.shutdown_grace_seconds + _CUT_MARGIN_SECONDS
        try:
            await asyncio.wait_for(worker.ended.wait(), patience)
        except TimeoutError:
            log.error("worker does not end: killed", extra={"address": worker.address})
            with contextlib.suppress(ProcessLookupError):
                worker.process.kill()

    async def _stop_all(self) -> None:
        running = [
            worker
            for worker in self._workers
            if worker.process is not None and worker.process.returncode is None
        ]
        hurrying = asyncio.create_task(self._hurry_them(running))
        await asyncio.gather(*(self._end(worker) for worker in running))
        hurrying.cancel()

    async def _hurry_them(self, running: Sequence[_Worker]) -> None:
        await self._hurry.wait()
        for worker in running:
            if worker.process is not None and worker.process.returncode is None:
                worker.process.terminate()


def _port(address: str) -> str | None:
    """Of a TCP address, whatever its host: names and wildcards mean each other."""
    port = address.rpartition(":")[2]
    return None if address.startswith("unix:") or port == "0" else port


@contextlib.contextmanager
def _lifeline() -> Iterator[tuple[int, int]]:
    """A pipe: the workers hold the reading end, which ends when we do, in whatever way."""
    theirs, ours = os.pipe()
    try:
        yield theirs, ours
    finally:
        os.close(theirs)


def end_with_supervisor(stop: asyncio.Event) -> None:
    """In a worker: set ``stop`` when the supervisor is gone. Nothing without one."""
    number = os.environ.get(LIFELINE_VARIABLE)
    if number is not None:
        asyncio.get_running_loop().add_reader(int(number), stop.set)


@contextlib.contextmanager
def shared_metrics(settings: Settings) -> Iterator[str]:
    """The directory where all workers write their metrics, made for this run when none is set."""
    if settings.server.metrics_dir is not None:
        yield str(settings.server.metrics_dir)
        return
    with tempfile.TemporaryDirectory(prefix="tokenweir-metrics-") as folder:
        yield folder


def serve_command(config: Path | None) -> list[str]:
    """What runs one worker."""
    named = [] if config is None else ["--config", str(config)]
    return [sys.executable, "-m", "extproc.cli", *named, "serve"]
