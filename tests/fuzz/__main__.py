"""``python -m tests.fuzz --seconds N``: both readers and the counters, for as long as asked.

Guided by coverage where the package atheris can be imported, else with hypothesis. Exit status 1
when something was found, with a capture file of each; Ctrl-C ends it with the same summary.
"""

import argparse
import importlib.util
import os
import resource
import signal
import sys
import time
from pathlib import Path
from types import FrameType

FOLDER = Path("build/fuzz")
ENGINES = ("atheris", "hypothesis")


def main() -> int:
    args = _arguments()
    signal.signal(signal.SIGINT, _interrupt)
    if args.replay is not None:
        from tests.fuzz.replay import replay

        return replay(args.replay)
    started = time.monotonic()
    if args.engine == "atheris":
        from tests.fuzz.with_atheris import run
    else:
        from tests.fuzz.with_hypothesis import run
    print(f"fuzzing with {args.engine} for {args.seconds:.0f} s, seed {args.seed}", flush=True)
    run(
        started + args.seconds,
        seed=args.seed,
        folder=args.folder,
        finish=lambda executions, findings: _finish(executions, findings, started),
    )
    return 0


def _arguments() -> argparse.Namespace:
    has_atheris = importlib.util.find_spec("atheris") is not None
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0 if has_atheris else 1])
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**31)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where findings go")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="look at a finding again")
    return parser.parse_args()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _finish(executions: int, findings: int, started: float) -> None:
    """Prints the summary and ends the process: libFuzzer's loop would never return."""
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"{executions} executions in {seconds:.0f} s, {findings} findings, peak memory {peak} MB",
        flush=True,
    )
    sys.stderr.flush()
    os._exit(1 if findings else 0)


if __name__ == "__main__":
    sys.exit(main())
