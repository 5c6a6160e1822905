"""``python -m tests.bench``: everything in one run; prints a table, writes build/bench.json."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from extproc.demo.processes import ChildError
from tests.bench.burst import Burst, burst
from tests.bench.measure import Machine, Sample, generate_load, measure
from tests.bench.report import flat, table, wrong
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


def _run(directory: Path, *, seconds: float) -> tuple[dict[str, dict[str, Sample]], Burst]:
    """All phases on every system, each with processes of its own, and the burst on ours."""
    samples: dict[str, dict[str, Sample]] = {phase.name: {} for phase in PHASES}
    overshoot: Burst | None = None
    starts: tuple[_Start, ...] = (bare, empty, ours)
    with upstream(directory) as behind:
        for start in starts:
            with start(behind.url, directory) as system:
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
                if system.stack is not None:
                    _say(f"{system.name}: burst")
                    overshoot = burst(system, behind.provider_url, directory)
    assert overshoot is not None
    return samples, overshoot


def main() -> int:
    """Exit status 1 when something was not answered as it should be: then no number counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument(
        "--seconds",
        type=float,
        default=_DEFAULT_SECONDS,
        help="length of each measurement with 32 connections; the others follow",
    )
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    args = parser.parse_args()
    machine = Machine()
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            samples, overshoot = _run(Path(name), seconds=args.seconds)
    except ChildError as error:
        _say(str(error))
        return 1
    values = flat(
        samples,
        burst=overshoot,
        seconds=args.seconds,
        others_percent=machine.others_percent(),
    )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(values, indent=2) + "\n")
    print(table(values))
    if values["wrong_answers"]:
        _say(f"{values['wrong_answers']} answers were not what they should be:")
        for line in wrong(samples):
            _say(line)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
