"""What the benchmark says of the floor: flat keys, and a table for each profile.

Keys of JSON: ``floor.PROFILE.NAME.python_cpu_us``, ``.cpu_ratio`` (by the empty server) and
``.added_us`` (to the step before); NAME is ``empty``, a step or ``ours``. ``json_cpu_ratio`` is the
floor by the empty server, ``ours_by_floor`` what its name says. Of streams the same with
``stream_`` before the last word. Ratios and differences are medians of those within a round.
"""

from collections.abc import Mapping
from statistics import median

from tests.bench.floor_work import STEPS
from tests.bench.report_limits import Value
from tests.bench.rounds import JSON, STREAMS, Rounds, median_of, median_ratio
from tests.bench.systems import PROFILES

_NAMES = ("empty", *STEPS, "ours")
_WHOLE = STEPS[-1]
_BEFORE = {JSON.name: "", STREAMS.name: "stream_"}
_TITLES = {
    JSON.name: "JSON, Python CPU of a request",
    STREAMS.name: "200-chunk SSE, Python CPU of a stream",
}
_MEANING = {
    "empty": "the empty server",
    "answer": "+ admission as a call of one message, a prebuilt answer",
    "read": "+ the request: message, JSON, tokens counted",
    "reply": "+ an answer of its own",
    "reserve": "+ the reserve script in Redis",
    "ending": "+ the answer's usage, the access log entry",
    "settle": "+ the settle script in Redis: the floor",
    "ours": "tokenweir",
}


def floor_values(rounds: Mapping[str, Mapping[str, Rounds]]) -> dict[str, Value]:
    """``rounds`` by kind of answer and by profile. CPU in microseconds."""
    values: dict[str, Value] = {}
    for kind, profiles in rounds.items():
        for profile, seen in profiles.items():
            values |= _of_profile(f"floor.{profile}", _BEFORE[kind], seen)
    return values


def _of_profile(base: str, before: str, rounds: Rounds) -> dict[str, Value]:
    values: dict[str, Value] = {}
    previous = ""
    for name, samples in rounds.items():
        key = f"{base}.{name}.{before}"
        values[f"{key}python_cpu_us"] = median_of(samples, lambda sample: sample.python_us)
        values[f"{key}cpu_ratio"] = _ratio(rounds, name, "empty")
        if previous:
            pairs = zip(samples, rounds[previous], strict=True)
            values[f"{key}added_us"] = median(
                sample.python_us - other.python_us for sample, other in pairs
            )
        previous = name
    values[f"{base}.{before or 'json_'}cpu_ratio"] = _ratio(rounds, _WHOLE, "empty")
    values[f"{base}.{before}ours_by_floor"] = _ratio(rounds, "ours", _WHOLE)
    return values


def _ratio(rounds: Rounds, name: str, other: str) -> float:
    return median_ratio(rounds, name, other, lambda sample: sample.python_us)


def floor_table(values: Mapping[str, Value], kind: str, profile: str) -> str:
    """The ladder of one profile; steps that were not measured are left out."""
    before = _BEFORE[kind]
    lines = [
        f"{f'{_TITLES[kind]}, {profile}':66}{'us':>9}{'by empty':>10}{'adds us':>9}",
        *(_row(values, f"floor.{profile}.{name}.{before}", name) for name in _NAMES),
    ]
    by_floor = values.get(f"floor.{profile}.{before}ours_by_floor")
    if isinstance(by_floor, int | float):
        lines.append(f"tokenweir by the floor: {by_floor:.2f}")
    return "\n".join(line for line in lines if line)


def _row(values: Mapping[str, Value], key: str, name: str) -> str:
    if f"{key}python_cpu_us" not in values:
        return ""
    cells = [
        f"{value:>{width},.{decimals}f}" if isinstance(value, int | float) else " " * width
        for value, width, decimals in (
            (values[f"{key}python_cpu_us"], 9, 0),
            (values[f"{key}cpu_ratio"], 10, 2),
            (values.get(f"{key}added_us"), 9, 0),
        )
    ]
    return f"{name:9}{_MEANING[name]:57}" + "".join(cells)


def floor_tables(values: Mapping[str, Value]) -> str:
    """Every profile that was measured."""
    return "\n\n".join(
        floor_table(values, kind, profile)
        for kind, before in _BEFORE.items()
        for profile in PROFILES
        if f"floor.{profile}.{before}ours_by_floor" in values
    )
