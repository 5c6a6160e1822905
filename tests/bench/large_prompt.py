"""What prompts of 1 MB do to all other requests, through the whole chain.

Small requests come at a constant rate all the time. In every second window large ones come too:
in turns one long text, and a conversation of thousands of short messages, which is the harder case
because it is Python that walks it.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.load import percentile
from tests.bench.steady import Answered
from tests.bench.steady_process import START_SECONDS, SteadyProcess
from tests.bench.systems import SERVICE, System
from tests.bench.traffic import MODEL, chat_body, raw_request

TARGET_RATIO = 2.0
LARGE_BYTES = 1_000_000
SMALL_PER_SECOND, LARGE_PER_SECOND = 50.0, 4.0
KINDS = ("one_text", "many_messages")
# Without, one text, without, many messages; the begin of a window still feels the one before.
_WINDOWS = 2 * len(KINDS)
_SKIPPED_SHARE = 0.15

# What JSON adds to a line: around a message of its own, and by escaping within it.
_MESSAGE_BYTES, _ESCAPES = 45, 4


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
    small_request = raw_request(SERVICE, chat_body())
    small = SteadyProcess(system.port, small_request, directory, "small")
    small.start(rate=SMALL_PER_SECOND, total=seconds)
    begins = {kind: (2 * at + 1) * window for at, kind in enumerate(KINDS)}
    large = {}
    for kind in KINDS:
        request = raw_request(SERVICE, large_body(kind))
        large[kind] = SteadyProcess(system.port, request, directory, kind)
        large[kind].start(
            rate=LARGE_PER_SECOND,
            on=window,
            off=(_WINDOWS - 1) * window,
            total=seconds - begins[kind],
        )
    for generator in (small, *large.values()):
        generator.wait_ready()
    started = time.monotonic() + START_SECONDS
    small.go(started)
    for kind, generator in large.items():
        generator.go(started + begins[kind])
    beside = small.results().requests
    own = {kind: generator.results().requests for kind, generator in large.items()}
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
            own_p50_ms=_ms(sorted(each.latency for each in own[kind]), 50),
        )
    return LargePrompts(
        p50_ms=_ms(alone, 50),
        p99_ms=p99,
        kinds=kinds,
        requests=len(everything),
        not_200=sum(each.status != 200 for each in everything),
    )


def _of_windows(results: Sequence[Answered], window: float, which: Sequence[int]) -> list[float]:
    """Latencies in ascending order of what was due in these windows of each cycle."""
    return sorted(
        each.latency
        for each in results
        if int(each.due / window) % _WINDOWS in which
        and each.due % window >= _SKIPPED_SHARE * window
    )


def _ms(ordered: Sequence[float], percent: float) -> float:
    if not ordered:
        raise RuntimeError("large prompts: a window without any request; measure longer")
    return percentile(ordered, percent) * 1000
