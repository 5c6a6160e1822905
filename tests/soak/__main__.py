"""``python -m tests.soak``: soak, print a table, write ``build/soak.json``; status 1 for a leak."""

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from extproc.demo.processes import stop_on_signals
from tests.soak.run import PROFILES, Plan, Result, flat, soak

_OUTPUT = Path(__file__).parents[2] / "build" / "soak.json"
_ROWS = 12
_COLUMNS = (
    *("seconds", "requests", "rss_mb", "pss_mb", "blocks", "streams", "tasks", "fds", "threads"),
    *("redis_clients", "redis_mb", "redis_keys", "pending"),
)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--rate", default="25", help="requests a second, or max: one cheap kind")
    parser.add_argument("--requests", type=int, default=100_000, help="with --rate max: how many")
    parser.add_argument("--profile", choices=[*PROFILES, "all"], default="all")
    parser.add_argument("--services", type=int, default=600)
    parser.add_argument("--output", type=Path, default=_OUTPUT)
    return parser.parse_args()


def _table(result: Result) -> str:
    step = max(1, len(result.samples) // _ROWS)
    rows = [result.before, *result.samples[::step], result.samples[-1], result.after]
    lines = [" ".join(f"{name:>13}" for name in _COLUMNS)]
    lines += [
        " ".join(f"{asdict(row)[name]:>13,}" for name in _COLUMNS) for row in dict.fromkeys(rows)
    ]
    return "\n".join(lines)


def main() -> int:
    """Entry point."""
    stop_on_signals()
    args = _arguments()
    plan = Plan(
        profiles=PROFILES if args.profile == "all" else (args.profile,),
        rate=None if args.rate == "max" else float(args.rate),
        seconds=args.seconds,
        requests=args.requests,
        services=args.services,
    )
    with tempfile.TemporaryDirectory(prefix="tokenweir-soak-") as folder:
        result = soak(plan, Path(folder))
    values = flat(result)
    print("First row: at rest before the load; last row: at rest after it.")
    print(_table(result))
    for key, value in values.items():
        if key != "faults" and not key.startswith(("before.", "after.")):
            print(
                f"{key:<45} {value:>14,}"
                if isinstance(value, int | float)
                else f"{key:<45} {value!s:>14}"
            )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(values, indent=2) + "\n")
    for fault in result.faults:
        print(f"FAULT {fault}")
    print("soak: " + ("something is wrong" if result.faults else "nothing grew, nothing was left"))
    return 1 if result.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
