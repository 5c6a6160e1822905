"""All that is measured through the whole chain: every profile, in one run of all systems."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.large_prompt import LargePrompts, measure_large_prompts
from tests.bench.latency import HALF, LEVELS, MOST_PASSES, Level, full_rate, measure_level
from tests.bench.load import LoadResult
from tests.bench.measure import Sample, measure, settle
from tests.bench.rounds import (
    JSON,
    KINDS,
    STREAMS,
    Kind,
    Rounds,
    measure_at_rate,
    measure_rounds,
    measure_saturation,
)
from tests.bench.scaling import (
    WORKERS,
    Idle,
    Memory,
    Scaling,
    measure_idle,
    measure_scaling,
    memory_of,
    resident_mb,
)
from tests.bench.systems import PROFILES, System, bare, empty, ours

# Shares of --seconds: all rounds of a system with JSON and with streams, one client alone, a
# generator's search for saturation, the latencies of a system at half load, the systems at rest.
_SHARES = {"json": 1.0, "stream200": 1.0}
_SINGLE_SHARE, _SATURATION_SHARE, _IDLE_SHARE = 0.3, 0.4, 0.5
_LEVEL_SHARES = {"json": 0.5, "stream200": 0.5}
_SCALING_SHARE = 0.6
# Small requests with and without large ones beside them.
_LARGE_SHARE, _LARGE_CYCLES = 4.0, 3


@dataclass(slots=True)
class Chain:
    """What was seen, by kind of answer and by profile. ``at_stream_rate`` is JSON at the rate of
    native's streams, ``single`` is JSON of one client, profile inline."""

    rounds: dict[str, dict[str, Rounds]] = field(default_factory=dict)
    saturation: dict[str, dict[str, LoadResult]] = field(default_factory=dict)
    levels: dict[str, dict[str, dict[int, Level]]] = field(default_factory=dict)
    at_stream_rate: list[Sample] = field(default_factory=list)
    single: Sample | None = None
    scaling: Scaling | None = None
    memory: Memory | None = None
    idle: Idle | None = None
    large: LargePrompts | None = None


class ChainBench:
    """``seconds``: about as long is each system loaded with each kind of answer, in ``rounds``.
    ``levels``: latencies at so many per cent of saturation. ``say`` is told what begins.

    Raises RuntimeError, TimeoutError.
    """

    def __init__(
        self,
        directory: Path,
        *,
        seconds: float,
        rounds: int,
        levels: Sequence[int],
        say: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._seconds = seconds
        self._rounds = rounds
        self._levels = levels
        self._say = say
        self._chain = Chain()

    def run(self, upstream_url: str) -> Chain:
        """Everything."""
        chain, directory = self._chain, self._directory
        with ExitStack() as running:
            without = running.enter_context(bare(upstream_url, directory))
            empties = {
                profile: running.enter_context(empty(upstream_url, directory, profile))
                for profile in PROFILES
            }
            mine = running.enter_context(ours(upstream_url, directory, PROFILES))
            pid = mine["inline"].python_pid
            assert pid is not None
            before_mb = resident_mb(pid)
            self._say("all systems at rest")
            everybody = (without, *empties.values(), *mine.values())
            chain.idle = measure_idle(everybody, pid, seconds=self._seconds * _IDLE_SHARE)
            for kind in KINDS:
                for profile in PROFILES:
                    three = {"bare": without, "empty": empties[profile], "ours": mine[profile]}
                    self._measure(kind, profile, three)
            self._say("one client")
            settle()
            seconds = self._seconds * _SINGLE_SHARE
            chain.single = measure(
                mine["inline"], JSON.request, directory, connections=1, seconds=seconds
            )
            self._say("large prompts")
            chain.large = measure_large_prompts(
                mine["inline"],
                directory,
                seconds=self._seconds * _LARGE_SHARE,
                cycles=_LARGE_CYCLES,
            )
            chain.memory = memory_of(pid, before_mb=before_mb, requests=answers(chain)["ours"])
            self._scale(upstream_url, mine["inline"])
        return chain

    def _measure(self, kind: Kind, profile: str, systems: dict[str, System]) -> None:
        chain, directory, mine = self._chain, self._directory, systems["ours"]
        self._say(f"{kind.name}, {profile}: CPU")
        seconds = self._seconds * _SHARES[kind.name] / self._rounds

        def json_at_same_rate(samples: Mapping[str, Sample]) -> None:
            chain.at_stream_rate.append(
                measure_at_rate(
                    JSON, mine, directory, rate=samples["ours"].load.per_second, seconds=seconds
                )
            )

        rounds = measure_rounds(
            kind,
            systems,
            directory,
            rounds=self._rounds,
            seconds=seconds,
            after_each=json_at_same_rate if (kind, profile) == (STREAMS, "native") else None,
        )
        chain.rounds.setdefault(kind.name, {})[profile] = rounds
        self._say(f"{kind.name}, {profile}: latency")
        most = measure_saturation(kind, mine, directory, seconds=self._seconds * _SATURATION_SHARE)
        chain.saturation.setdefault(kind.name, {})[profile] = most
        full = full_rate(most, rounds["ours"])
        levels = chain.levels.setdefault(kind.name, {}).setdefault(profile, {})
        for percent in self._levels:
            measured = {
                name: system
                for name, system in systems.items()
                if name != "empty" or percent == HALF
            }
            levels[percent] = measure_level(
                kind,
                measured,
                directory,
                rate=full * percent / 100,
                seconds=self._seconds * _LEVEL_SHARES[kind.name] * LEVELS[percent],
                passes=min(MOST_PASSES, self._rounds),
            )

    def _scale(self, upstream_url: str, one: System) -> None:
        self._say("two workers")
        with ours(upstream_url, self._directory, ("inline",), workers=WORKERS) as two:
            self._chain.scaling = measure_scaling(
                one,
                two["inline"],
                self._directory,
                rounds=self._rounds,
                seconds=self._seconds * _SCALING_SHARE / self._rounds,
            )


def loads(chain: Chain) -> list[tuple[str, str, LoadResult]]:
    """(what, system, result) of everything but latencies and large prompts."""
    found = [
        (f"{kind}, {profile}", name, sample.load)
        for kind, profiles in chain.rounds.items()
        for profile, rounds in profiles.items()
        for name, samples in rounds.items()
        for sample in samples
    ]
    found += [
        (f"{kind}, {profile}: saturation", "ours", load)
        for kind, profiles in chain.saturation.items()
        for profile, load in profiles.items()
    ]
    found += [("JSON at the rate of streams", "ours", each.load) for each in chain.at_stream_rate]
    if chain.single is not None:
        found.append(("one client", "ours", chain.single.load))
    if chain.scaling is not None:
        found += [
            ("two workers", name, sample.load)
            for name, samples in chain.scaling.rounds.items()
            for sample in samples
        ]
    return found


def all_levels(chain: Chain) -> list[tuple[str, Level]]:
    """(what, level) of every rate."""
    return [
        (f"{kind}, {profile}, {percent} %", level)
        for kind, profiles in chain.levels.items()
        for profile, levels in profiles.items()
        for percent, level in levels.items()
    ]


def answers(chain: Chain) -> dict[str, int]:
    """Complete answers of 200 by system; warm-up is not among them."""
    counts: dict[str, int] = {}
    for _, name, load in loads(chain):
        counts[name] = counts.get(name, 0) + load.statuses.get("200", 0)
    for _, level in all_levels(chain):
        for name, seen in level.seen.items():
            good = sum(each.status == 200 for each in seen.requests)
            counts[name] = counts.get(name, 0) + good
    if chain.large is not None:
        good = chain.large.requests - chain.large.not_200
        counts["ours"] = counts.get("ours", 0) + good
    return counts


def faults(chain: Chain) -> list[str]:
    """One line for each measurement with answers other than 200."""
    found = [
        f"{what}, {name}: {load.statuses}, {load.failed} connections failed"
        for what, name, load in loads(chain)
        if load.not_200
    ]
    for what, level in all_levels(chain):
        for name, seen in level.seen.items():
            if wrong := sum(each.status != 200 for each in seen.requests):
                found.append(f"{what}, {name}: {wrong} of {len(seen.requests)} answers no 200")
    return found


def wrong_answers(chain: Chain) -> int:
    """How many were no 200, or never came."""
    wrong = sum(load.not_200 for _, _, load in loads(chain))
    for _, level in all_levels(chain):
        for seen in level.seen.values():
            wrong += sum(each.status != 200 for each in seen.requests)
    return wrong + (0 if chain.large is None else chain.large.not_200)
