"""``python -m tests.bench``: everything in one run; prints a table, writes build/bench.json."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.engine import measure_engine
from tests.bench.large_prompt import LargePrompts, measure_large_prompts
from tests.bench.measure import Machine, Sample, generate_load, measure
from tests.bench.overshoot import (
    ESTIMATES,
    PLATFORM_CAP_TOKENS,
    SENT,
    Overshoot,
    measure_overshoot,
    overshoot_stack,
)
from tests.bench.reading import measure_reading
from tests.bench.report import flat, table, wrong
from tests.bench.report_limits import overshoot_faults
from tests.bench.report_reading import large_faults
from tests.bench.systems import (
    SERVICE,
    System,
    bare,
    empty,
    ours,
    upstream,
)
from tests.bench.traffic import chat_body, raw_request

CONNECTIONS = 32
STREAM_CONNECTIONS = 8
STREAM_SCRIPT = "output=200;chunk_delay_ms=2"
_DEFAULT_SECONDS = 7.0
# Shares of --seconds of all that is read, and of small requests with and without large ones.
_READING_SHARE, _LARGE_SHARE = 0.8, 3.4
_LARGE_CYCLES = 3

_Start = Callable[[str, Path], AbstractContextManager[System]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One kind of load. ``share`` is its part of the run's ``--seconds``."""

    name: str
    request: bytes
    connections: int
    share: float


PHASES = (
    Phase(
        name="loaded",
        request=raw_request(SERVICE, chat_body()),
        connections=CONNECTIONS,
        share=1.0,
    ),
    Phase(name="single", request=raw_request(SERVICE, chat_body()), connections=1, share=0.5),
    Phase(
        name="streams",
        request=raw_request(SERVICE, chat_body(stream=True), script=STREAM_SCRIPT),
        connections=STREAM_CONNECTIONS,
        share=0.75,
    ),
)
_WARM_UP_SHARE = 0.15


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def _run_systems(
    directory: Path, *, seconds: float
) -> tuple[dict[str, dict[str, Sample]], LargePrompts]:
    """All phases on every system, each with processes of its own; large prompts on ours only."""
    samples: dict[str, dict[str, Sample]] = {phase.name: {} for phase in PHASES}
    starts: tuple[_Start, ...] = (bare, empty, ours)
    with upstream(directory) as behind:
        for start in starts:
            with start(behind, directory) as system:
                for phase in PHASES:
                    _say(f"{system.name}: {phase.name}")
                    length = seconds * phase.share
                    generate_load(
                        system.port,
                        phase.request,
                        directory,
                        connections=phase.connections,
                        seconds=length * _WARM_UP_SHARE,
                    )
                    samples[phase.name][system.name] = measure(
                        system,
                        phase.request,
                        directory,
                        connections=phase.connections,
                        seconds=length,
                    )
                if start is ours:
                    _say(f"{system.name}: large prompts")
                    large = measure_large_prompts(
                        system, directory, seconds=seconds * _LARGE_SHARE, cycles=_LARGE_CYCLES
                    )
    return samples, large


def _run_overshoot(*, sent: int) -> dict[str, Overshoot]:
    """A burst for each way to estimate, and one of the longest answers that strict mode allows."""
    runs = {}
    for estimate in ESTIMATES:
        _say(f"overshoot: {estimate}")
        with overshoot_stack(estimate, sent=sent) as stack:
            learns = estimate != "strict"
            runs[estimate] = measure_overshoot(stack, estimate, sent=sent, learns=learns)
            if estimate == "strict":
                runs["strict_at_cap"] = measure_overshoot(
                    stack,
                    "at-cap",
                    sent=sent,
                    learns=False,
                    answers=lambda number: PLATFORM_CAP_TOKENS + number,
                )
    return runs


def main() -> int:
    """Exit status 1 when something was not answered as it should be, then no number counts, or when
    a limit was passed in strict mode."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument(
        "--seconds",
        type=float,
        default=_DEFAULT_SECONDS,
        help="length of each measurement with 32 connections; the others follow",
    )
    parser.add_argument(
        "--burst", type=int, default=SENT, help="requests at once to measure overshoot with"
    )
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    args = parser.parse_args()
    machine = Machine()
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            directory = Path(name)
            samples, large = _run_systems(directory, seconds=args.seconds)
            _say("reading")
            reading = measure_reading(seconds=args.seconds * _READING_SHARE)
            _say("twelve limits")
            engine = measure_engine(directory)
            overshoot = _run_overshoot(sent=args.burst)
    except (RuntimeError, TimeoutError) as error:  # a ChildError is one
        _say(str(error))
        return 1
    values = flat(
        samples,
        overshoot=overshoot,
        engine=engine,
        reading=reading,
        large=large,
        seconds=args.seconds,
        others_percent=machine.others_percent(),
    )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(values, indent=2) + "\n")
    print(table(values))
    faults = [*wrong(samples), *large_faults(large), *overshoot_faults(overshoot)]
    for line in faults:
        _say(f"wrong: {line}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
