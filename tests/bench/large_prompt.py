"""What prompts of 1 MB do to all other requests, through the whole chain.

Small requests come at a constant rate all the time. In every second window large ones come too:
in turns one long text, and a conversation of thousands of short messages, which is the harder case
because it is Python that walks it.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from extproc.demo.processes import clean_environment
from tests.bench.load import percentile
from tests.bench.steady import READY
from tests.bench.systems import SERVICE, System
from tests.bench.traffic import MODEL, chat_body, raw_request

TARGET_RATIO = 2.0
LARGE_BYTES = 1_000_000
SMALL_PER_SECOND, LARGE_PER_SECOND = 50.0, 4.0
KINDS = ("one_text", "many_messages")
# Without, one text, without, many messages; the begin of a window still feels the one before.
_WINDOWS = 2 * len(KINDS)
_SKIPPED_SHARE = 0.15
_START_SECONDS = 0.2  # from "ready" to the first request
_SLACK_SECONDS = 60.0

# What JSON adds to a line: around a message of its own, and by escaping within it.
_MESSAGE_BYTES, _ESCAPES = 45, 4

_Result = tuple[float, float, int]  # due after the start and latency in seconds, status


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeKind:
    """One kind of large prompts: latency of the small requests beside them, and their own."""

    p50_ms: float
    p99_ms: float
    p99_ratio: float  # by that of small requests alone
    own_p50_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LargePrompts:
    """``p50_ms`` and ``p99_ms`` are of small requests alone."""

    p50_ms: float
    p99_ms: float
    kinds: dict[str, LargeKind]
    requests: int
    not_200: int


def large_body(kind: str) -> bytes:
    """A chat of about a megabyte."""
    lines: list[str] = []
    size = 0
    while size < LARGE_BYTES:
        number = len(lines)
        line = f'Line {number}: order {number * 7919} of 3 "lamps" was sent,\nand came on Friday.\n'
        lines.append(line)
        size += len(line) + (_MESSAGE_BYTES if kind == "many_messages" else _ESCAPES)
    texts = lines if kind == "many_messages" else ["".join(lines)]
    messages = [
        {"role": "assistant" if at % 2 else "user", "content": text}
        for at, text in enumerate(texts)
    ]
    return json.dumps({"model": MODEL, "messages": messages, "max_tokens": 256}).encode()


def measure_large_prompts(
    system: System, directory: Path, *, seconds: float, cycles: int
) -> LargePrompts:
    """Takes ``seconds``. Raises RuntimeError when a generator fails."""
    window = seconds / (cycles * _WINDOWS)
    small = _Generator(system, directory, "small", chat_body(), begins=0.0)
    small.start(rate=SMALL_PER_SECOND, on=seconds, off=0.0, total=seconds)
    large = {}
    for at, kind in enumerate(KINDS):
        begins = (2 * at + 1) * window
        large[kind] = _Generator(system, directory, kind, large_body(kind), begins=begins)
        large[kind].start(
            rate=LARGE_PER_SECOND,
            on=window,
            off=(_WINDOWS - 1) * window,
            total=seconds - begins,
        )
    generators = [small, *large.values()]
    for generator in generators:
        generator.wait_ready()
    started = time.monotonic() + _START_SECONDS
    for generator in generators:
        generator.go(started)
    beside = small.results()
    own = {kind: generator.results() for kind, generator in large.items()}
    everything = [*beside, *(one for results in own.values() for one in results)]
    alone = _of_windows(beside, window, range(0, _WINDOWS, 2))
    p99 = _ms(alone, 99)
    kinds = {}
    for at, kind in enumerate(KINDS):
        mixed = _of_windows(beside, window, (2 * at + 1,))
        kinds[kind] = LargeKind(
            p50_ms=_ms(mixed, 50),
            p99_ms=_ms(mixed, 99),
            p99_ratio=_ms(mixed, 99) / p99,
            own_p50_ms=_ms(sorted(latency for _, latency, _ in own[kind]), 50),
        )
    return LargePrompts(
        p50_ms=_ms(alone, 50),
        p99_ms=p99,
        kinds=kinds,
        requests=len(everything),
        not_200=sum(status != 200 for *_, status in everything),
    )


class _Generator:
    """One process of tests.bench.steady, whose first request is due ``begins`` seconds after the
    start of all."""

    def __init__(
        self, system: System, directory: Path, name: str, body: bytes, *, begins: float
    ) -> None:
        self._port = system.port
        self._name = name
        self._begins = begins
        self._path = directory / f"{name}.bin"
        self._path.write_bytes(raw_request(SERVICE, body))
        self._total = 0.0
        self._process: subprocess.Popen[str] | None = None

    def start(self, *, rate: float, on: float, off: float, total: float) -> None:
        self._total = total
        command = [sys.executable, "-m", "tests.bench.steady", "--port", str(self._port)]
        command += ["--request", str(self._path), "--rate", str(rate), "--on", str(on)]
        command += ["--off", str(off), "--total", str(total)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )

    def wait_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != READY:
            raise self._failure("does not start")

    def go(self, started: float) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{started + self._begins}\n")
        self._process.stdin.flush()

    def results(self) -> list[_Result]:
        assert self._process is not None
        try:
            output, _ = self._process.communicate(timeout=self._total + _SLACK_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._failure("does not end") from None
        if self._process.returncode:
            raise self._failure(f"ended with status {self._process.returncode}")
        return [(due, latency, status) for due, latency, status in json.loads(output)]

    def _failure(self, what: str) -> RuntimeError:
        if self._process is not None:
            self._process.kill()
        return RuntimeError(f"the generator of {self._name} requests {what}")


def _of_windows(results: Sequence[_Result], window: float, which: Sequence[int]) -> list[float]:
    """Latencies in ascending order of what was due in these windows of each cycle."""
    return sorted(
        latency
        for due, latency, _ in results
        if int(due / window) % _WINDOWS in which and due % window >= _SKIPPED_SHARE * window
    )


def _ms(ordered: Sequence[float], percent: float) -> float:
    if not ordered:
        raise RuntimeError("large prompts: a window without any request; measure longer")
    return percentile(ordered, percent) * 1000
