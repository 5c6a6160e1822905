"""How near to the empty server a server with this task can come: the floor, step by step.

``python -m tests.bench.floor --profile native`` measures the empty server, the floor server at each
of its steps (``floor_server``) and ours in turns; ``--stream`` with 200-chunk streams.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from extproc.envoyconfig.options import Profile
from tests.bench.floor_work import STEPS
from tests.bench.measure import Sample
from tests.bench.report_floor import floor_table, floor_values
from tests.bench.rounds import JSON, STREAMS, Kind, Rounds, measure_rounds
from tests.bench.systems import PROFILES, System, empty, floor, ours, seeded_valkey, upstream

_WHOLE = STEPS[-1]
# In `make bench`: a step takes five seconds, so that the whole ladder is climbed once only.
_SHORT = ("answer", "reserve", _WHOLE)
LADDERS: dict[Profile, Sequence[str]] = {"native": STEPS, "inline": _SHORT, "observe": _SHORT}
# With native nothing of a stream's chunks comes to any of these servers.
STREAMED: tuple[Profile, ...] = ("inline", "observe")


@dataclass(slots=True)
class Floor:
    """Samples by kind of answer and by profile; systems are ``empty``, steps and ``ours``."""

    rounds: dict[str, dict[str, Rounds]] = field(default_factory=dict)

    def samples(self) -> Iterator[tuple[str, Sample]]:
        """(what, sample) of everything."""
        for kind, profiles in self.rounds.items():
            for profile, rounds in profiles.items():
                for name, samples in rounds.items():
                    yield from ((f"floor: {kind}, {profile}, {name}", each) for each in samples)


@contextmanager
def ladder(
    upstream_url: str, directory: Path, profile: Profile, steps: Sequence[str], mine: System
) -> Iterator[dict[str, System]]:
    """The systems that are compared, each with an Envoy of its own; ``mine`` is the last one."""
    with ExitStack() as running:
        redis_url = running.enter_context(seeded_valkey(directory / profile))
        systems = {"empty": running.enter_context(empty(upstream_url, directory, profile))}
        for step in steps:
            systems[step] = running.enter_context(
                floor(upstream_url, directory, profile, step, redis_url)
            )
        yield {**systems, "ours": mine}


def measure_floor(
    upstream_url: str,
    directory: Path,
    *,
    rounds: int,
    seconds: float,
    say: Callable[[str], None],
) -> Floor:
    """All profiles. ``seconds`` is of one round of one system.

    Raises RuntimeError, TimeoutError.
    """
    found = Floor()
    with ours(upstream_url, directory, PROFILES) as mine:
        for profile in PROFILES:
            steps = LADDERS[profile]
            with ladder(upstream_url, directory, profile, steps, mine[profile]) as systems:
                for kind in (JSON, STREAMS) if profile in STREAMED else (JSON,):
                    say(f"floor: {kind.name}, {profile}")
                    found.rounds.setdefault(kind.name, {})[profile] = measure_rounds(
                        kind, _of(kind, systems), directory, rounds=rounds, seconds=seconds
                    )
    return found


def _of(kind: Kind, systems: dict[str, System]) -> dict[str, System]:
    """Of streams the ends of the ladder only."""
    if kind is JSON:
        return systems
    return {name: systems[name] for name in ("empty", _WHOLE, "ours")}


def floor_faults(found: Floor) -> list[str]:
    """Answers other than 200, and floors that did not reserve and settle each request once."""
    faults = [
        f"{what}: {sample.load.statuses}, {sample.load.failed} connections failed"
        for what, sample in found.samples()
        if sample.load.not_200
    ]
    faults += [
        f"{what}: {sample.redis_scripts:.3f} scripts a request, not 2"
        for what, sample in found.samples()
        if what.endswith(_WHOLE)
        and sample.redis_scripts is not None
        # Settlements of the warm-up may belong to the first round.
        and abs(sample.redis_scripts - 2) > 0.1
    ]
    return faults


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Exit status 1 when an answer was not a 200, or the floor did not do its work."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.floor")
    parser.add_argument("--profile", choices=PROFILES, default="native")
    parser.add_argument("--stream", action="store_true", help="200-chunk streams, not JSON")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one round of one system")
    args = parser.parse_args()
    kind = STREAMS if args.stream else JSON
    steps = [_WHOLE] if args.stream else args.steps
    found = Floor()
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        behind = running.enter_context(upstream(directory))
        mine = running.enter_context(ours(behind, directory, [args.profile]))[args.profile]
        systems = running.enter_context(ladder(behind, directory, args.profile, steps, mine))
        found.rounds[kind.name] = {
            args.profile: measure_rounds(
                kind, systems, directory, rounds=args.rounds, seconds=args.seconds
            )
        }
    print(floor_table(floor_values(found.rounds), kind.name, args.profile))
    faults = floor_faults(found)
    for line in faults:
        _say(f"wrong: {line}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
