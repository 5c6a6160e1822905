"""``python -m tests.bench.quick``: one profile, the empty server and ours in turns, and where the
time of ours goes. For work on the hot path; `make bench` is the whole table."""

import argparse
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from tests.bench.flame import draw_flame
from tests.bench.measure import Sample, generate_load, measure
from tests.bench.systems import PROFILES, SERVICE, System, empty, ours, upstream
from tests.bench.traffic import STREAM_SCRIPT, chat_body, raw_request

CONNECTIONS, STREAM_CONNECTIONS = 32, 8
_WARM_UP_SECONDS = 1.0
_SPY_SLACK_SECONDS = 0.5


def _python(sample: Sample) -> float:
    assert sample.python_cpu_us is not None
    return sample.python_cpu_us


def _line(sample: Sample) -> str:
    return (
        f"python {_python(sample):8.1f} us, Envoy {sample.envoy_cpu_us:8.1f} us, "
        f"{sample.load.per_second:7.1f}/s, {sample.messages:.1f} messages"
    )


def _spy(system: System, request: bytes, directory: Path, *, connections: int, to: Path) -> None:
    """Record ours under load, who holds the interpreter's lock. ``to``: a flame graph (.png), or
    py-spy's folded stacks."""
    seconds, stacks = 8, directory / "stacks.txt"
    command = [str(Path(sys.executable).parent / "py-spy"), "record", "--gil", "--nonblocking"]
    command += ["--pid", str(system.python_pid), "--duration", str(seconds), "--rate", "250"]
    command += ["--format", "raw", "--output", str(stacks)]
    with subprocess.Popen(command) as spy:
        generate_load(
            system.port,
            request,
            directory,
            connections=connections,
            seconds=seconds + _SPY_SLACK_SECONDS,
        )
        spy.wait()
    if to.suffix == ".png":
        draw_flame(stacks.read_text(), to, title=f"tokenweir serve, {system.name}")
    else:
        shutil.copy(stacks, to)


def main() -> int:
    """Exit status 1 when an answer was not a 200."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.quick")
    parser.add_argument("--profile", choices=PROFILES, default="inline")
    parser.add_argument("--stream", action="store_true", help="200-chunk streams, not JSON")
    parser.add_argument("--seconds", type=float, default=1.5, help="of one round of one system")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int)
    parser.add_argument("--spy", type=Path, help="record ours with py-spy: FILE.png or FILE.txt")
    args = parser.parse_args()
    connections = args.connections or (STREAM_CONNECTIONS if args.stream else CONNECTIONS)
    request = raw_request(
        SERVICE, chat_body(stream=args.stream), script=STREAM_SCRIPT if args.stream else ""
    )
    wrong = 0
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        behind = stack.enter_context(upstream(directory))
        both = {
            "empty": stack.enter_context(empty(behind, directory, args.profile)),
            "ours": stack.enter_context(ours(behind, directory, [args.profile]))[args.profile],
        }
        samples: dict[str, list[Sample]] = {name: [] for name in both}
        for system in both.values():
            generate_load(
                system.port,
                request,
                directory,
                connections=connections,
                seconds=_WARM_UP_SECONDS,
            )
        for number in range(args.rounds):
            for name in ("empty", "ours") if number % 2 == 0 else ("ours", "empty"):
                sample = measure(
                    both[name], request, directory, connections=connections, seconds=args.seconds
                )
                samples[name].append(sample)
                wrong += sample.load.not_200
                print(f"{name:6}{_line(sample)}", flush=True)
        pairs = zip(samples["ours"], samples["empty"], strict=True)
        ratios = sorted(_python(mine) / _python(theirs) for mine, theirs in pairs)
        kind = "stream" if args.stream else "request"
        print(
            f"{args.profile}, python us/{kind}: empty "
            f"{median(map(_python, samples['empty'])):.1f}, ours "
            f"{median(map(_python, samples['ours'])):.1f}, ratio {median(ratios):.3f} "
            f"({ratios[0]:.3f} to {ratios[-1]:.3f}); {wrong} wrong answers"
        )
        if args.spy is not None:
            _spy(both["ours"], request, directory, connections=connections, to=args.spy)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
