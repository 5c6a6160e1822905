"""``python -m tests.bench``: everything in one run; prints tables, writes build/bench.json and a
picture beside it."""

import argparse
import importlib
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import chart
from tests.bench.chain import ChainBench, answers, faults, wrong_answers
from tests.bench.engine import measure_engine
from tests.bench.floor import floor_faults, measure_floor
from tests.bench.latency import LEVELS
from tests.bench.measure import Machine
from tests.bench.overshoot import (
    ESTIMATES,
    PLATFORM_CAP_TOKENS,
    SENT,
    Overshoot,
    measure_overshoot,
    overshoot_stack,
)
from tests.bench.reading import measure_reading
from tests.bench.report import machine_values, peer_ratios, text
from tests.bench.report_chain import chain_values
from tests.bench.report_floor import floor_values
from tests.bench.report_limits import Value, engine_values, overshoot_faults, overshoot_values
from tests.bench.report_reading import large_faults, large_values, reading_values
from tests.bench.scaling import scaling_faults
from tests.bench.systems import upstream

PARTS = ("chain", "floor", "reading", "engine", "overshoot")
_DEFAULT_SECONDS, _DEFAULT_ROUNDS = 4.0, 5
_READING_SHARE = 0.8
_FLOOR_SHARE, _FLOOR_ROUNDS = 0.45, 3


@dataclass(slots=True)
class Results:
    """Flat keys, and one line for each thing that is not as it should be."""

    values: dict[str, Value] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    answers: int = 0
    wrong_answers: int = 0


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def _run_chain(upstream_url: str, directory: Path, args: argparse.Namespace, to: Results) -> None:
    bench = ChainBench(
        directory, seconds=args.seconds, rounds=args.rounds, levels=args.levels, say=_say
    )
    chain = bench.run(upstream_url)
    assert chain.large is not None
    to.values |= chain_values(chain) | large_values(chain.large)
    to.faults += [*faults(chain), *large_faults(chain.large), *scaling_faults(chain.scaling)]
    to.answers += sum(answers(chain).values())
    to.wrong_answers += wrong_answers(chain)


def _run_floor(upstream_url: str, directory: Path, args: argparse.Namespace, to: Results) -> None:
    rounds = min(args.rounds, _FLOOR_ROUNDS)
    seconds = args.seconds * _FLOOR_SHARE / rounds
    found = measure_floor(upstream_url, directory, rounds=rounds, seconds=seconds, say=_say)
    to.values |= floor_values(found.rounds)
    to.faults += floor_faults(found)
    for _, sample in found.samples():
        to.answers += sample.load.statuses.get("200", 0)
        to.wrong_answers += sample.load.not_200


def _run_overshoot(*, sent: int, to: Results) -> None:
    """A burst for each way to estimate, and one of the longest answers that strict mode allows."""
    runs: dict[str, Overshoot] = {}
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
    to.values |= overshoot_values(runs)
    to.faults += overshoot_faults(runs)
    to.wrong_answers += sum(run.other for run in runs.values())


def _run_peers(upstream_url: str, directory: Path, *, seconds: float, to: Results) -> None:
    _say("peers")
    # Only here: they need what `make bench-peers` installs.
    peers = importlib.import_module("tests.bench.peers")
    to.values |= peers.measure_peers(upstream_url, directory, seconds=seconds)
    to.values |= peer_ratios(to.values)


def _run(args: argparse.Namespace) -> Results:
    machine, results = Machine(), Results(machine_values())
    results.values["seconds"], results.values["rounds"] = args.seconds, args.rounds
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        directory = Path(name)
        if {"chain", "floor"} & set(args.parts) or args.peers:
            with upstream(directory) as upstream_url:
                if "chain" in args.parts:
                    _run_chain(upstream_url, directory, args, results)
                if "floor" in args.parts:
                    _run_floor(upstream_url, directory, args, results)
                if args.peers:
                    _run_peers(upstream_url, directory, seconds=args.seconds, to=results)
        if "reading" in args.parts:
            _say("reading")
            reading = measure_reading(seconds=args.seconds * _READING_SHARE)
            results.values |= reading_values(reading)
        if "engine" in args.parts:
            _say("twelve limits")
            results.values |= engine_values(measure_engine(directory))
        if "overshoot" in args.parts:
            _run_overshoot(sent=args.burst, to=results)
    results.values["machine.others_percent"] = machine.others_percent()
    results.values["answers"] = results.answers
    results.values["wrong_answers"] = results.wrong_answers
    return results


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument(
        "--seconds",
        type=float,
        default=_DEFAULT_SECONDS,
        help="about as long is each system loaded in each way",
    )
    parser.add_argument(
        "--rounds", type=int, default=_DEFAULT_ROUNDS, help="turns into which CPU is divided"
    )
    parser.add_argument(
        "--burst", type=int, default=SENT, help="requests at once to measure overshoot with"
    )
    parser.add_argument("--peers", action="store_true", help="also what others would run instead")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="only these (all of them)"
    )
    parser.add_argument(
        "--levels",
        nargs="+",
        type=int,
        choices=LEVELS,
        default=tuple(LEVELS),
        help="latencies at so many per cent of saturation",
    )
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when something was not answered as it should be, then no number counts, or when
    a limit was passed in strict mode."""
    args = _arguments(arguments)
    # As Ctrl-C: what was started is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        results = _run(args)
    except (RuntimeError, TimeoutError) as error:  # a ChildError is one
        _say(str(error))
        return 1
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(results.values, indent=2) + "\n")
    if "chain" in args.parts:
        chart.draw(results.values, args.output.with_suffix(".png"))
    print(text(results.values))
    for line in results.faults:
        _say(f"wrong: {line}")
    return 1 if results.faults else 0


if __name__ == "__main__":
    sys.exit(main())
