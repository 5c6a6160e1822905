"""Child processes of the demo and of the end-to-end tests: started, awaited, stopped, explained.

A child never shares our process group, so that Ctrl-C reaches only us and we stop the children in
their order. A child that fails shows the end of its log; nothing else is printed.
"""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from extproc.core.errors import SettingsError

_POLL_SECONDS = 0.02
_TAIL_BYTES = 6000


class ChildError(RuntimeError):
    """A child did not start, ended by itself, or did not become ready in time."""


def _ports_of_the_kernel(count: int) -> list[int]:
    with ExitStack() as open_sockets:
        ports = []
        for _ in range(count):
            held = open_sockets.enter_context(socket.socket())
            held.bind(("127.0.0.1", 0))
            ports.append(int(held.getsockname()[1]))
        return ports


_chooser: Callable[[int], list[int]] = _ports_of_the_kernel


def choose_ports_with(chooser: Callable[[int], list[int]]) -> None:
    """From now on ``free_ports`` asks ``chooser``: for many stacks side by side, where the kernel
    could give a port to two of them before the first listens there."""
    global _chooser  # noqa: PLW0603
    _chooser = chooser


def free_ports(count: int) -> list[int]:
    """``count`` different TCP ports that are free on the loopback address now."""
    return _chooser(count)


def check_port(option: str, port: int) -> None:
    """Raise SettingsError that names ``option`` when nobody can listen on ``port`` of loopback.

    Asked before Envoy starts: it shares its port with any other Envoy and says nothing.
    """
    if not 0 < port < 65536:
        raise SettingsError(option, f"{port} is not between 1 and 65535")
    with socket.socket() as probe:
        # As servers do: a port whose last connections are just being forgotten can be had.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise SettingsError(option, f"{port} cannot be had: {error.strerror}") from error


class Child:
    """One child process; its standard output and error go to ``log_path``, appended."""

    def __init__(
        self, name: str, command: Sequence[str], *, log_path: Path, env: Mapping[str, str]
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log_path = log_path
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """Process id while it runs, else None."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        """True from ``start`` until the process has ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """The status with which it ended, -N by signal N; None before that."""
        return None if self._process is None else self._process.poll()

    def start(self, *, env: Mapping[str, str] | None = None) -> None:
        """Start it, with more variables from ``env`` for this time. Raises ChildError when it runs
        already or the program does not exist."""
        if self.running:
            raise ChildError(f"{self.name} is running already")
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            try:
                self._process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**self._env, **(env or {})},
                    start_new_session=True,
                )
            except OSError as error:
                raise ChildError(f"{self.name}: cannot run {self.command[0]}: {error}") from error

    def wait_ready(self, is_ready: Callable[[], bool], *, deadline_s: float) -> None:
        """Poll ``is_ready`` until it is true. Raises ChildError with the end of the child's log
        when the child ends first or the deadline passes."""
        until = time.monotonic() + deadline_s
        while not is_ready():
            if not self.running:
                code = self._process.returncode if self._process is not None else None
                raise ChildError(f"{self.name} ended with status {code}\n{self.tail()}")
            if time.monotonic() > until:
                raise ChildError(f"{self.name} was not ready after {deadline_s:g} s\n{self.tail()}")
            time.sleep(_POLL_SECONDS)

    def stop(self, *, deadline_s: float) -> None:
        """SIGTERM, then SIGKILL when the deadline passes. Nothing to do when it has ended."""
        self._end(signal.SIGTERM, deadline_s)

    def kill(self) -> None:
        """SIGKILL: the child gets no chance to finish anything."""
        self._end(signal.SIGKILL, 10)

    def _end(self, number: signal.Signals, deadline_s: float) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def output(self) -> str:
        """What it wrote since its last start."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def tail(self) -> str:
        """The end of the log, under a line that names it."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
        return f"--- end of {self.log_path.name} ---\n{text}"


def run_to_end(
    name: str, command: Sequence[str], *, env: Mapping[str, str], deadline_s: float = 60
) -> str:
    """Run a command that ends by itself; returns its standard output. Raises ChildError."""
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=dict(env),
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ChildError(f"{name} did not end within {deadline_s:g} s") from error
    if done.returncode != 0:
        output = (done.stdout + done.stderr).decode(errors="replace")
        raise ChildError(f"{name} ended with status {done.returncode}\n{output}")
    return done.stdout.decode()


def stop_on_signals() -> None:
    """SIGINT and SIGTERM raise KeyboardInterrupt, also where whoever started us in the background
    had them ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Inside, SIGINT and SIGTERM are ignored. Only the main thread can say so; elsewhere they do
    not arrive anyway."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def clean_environment() -> dict[str, str]:
    """Our environment without this product's settings, so that a child gets only the given ones."""
    kept = ("TOKENWEIR_ENVOY_", "TOKENWEIR_TEST_", "TOKENWEIR_DEMO_")
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("TOKENWEIR_") or key.startswith(kept)
    }
