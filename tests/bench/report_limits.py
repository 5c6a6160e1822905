"""What the benchmark says of limits: overshoot, and what twelve limits cost in Redis."""

from collections.abc import Mapping

from tests.bench.engine import EngineCost
from tests.bench.overshoot import SERVERS, Overshoot
from tests.support.engine_cost import TARGET_BYTES, TARGET_RATIO

Value = str | int | float | None
# In these the output is bounded by a cap in the request itself: the limit is never passed.
BOUNDED = ("strict", "strict_at_cap")
# In these it is learnt, and a limit may be passed a little.
ELASTIC = ("p95", "mean")

# Heading of a row, key after "overshoot.<run>.", decimals.
_ROWS: tuple[tuple[str, str, int], ...] = (
    ("admitted", "admitted", 0),
    ("refused", "refused", 0),
    ("limit, tokens", "limit_tokens", 0),
    ("used by the admitted, tokens", "used_tokens", 0),
    ("overshoot, tokens", "overshoot_tokens", 0),
    ("overshoot, % of the limit", "overshoot_percent", 2),
    ("utilisation: used of the limit, %", "utilisation_percent", 1),
    ("reserved for each, tokens", "reserved_each_tokens", 0),
    ("reservation accuracy: used of reserved, %", "accuracy_percent", 1),
    ("over-reservation: came back, % of reserved", "over_reservation_percent", 1),
    ("answers longer than reserved, %", "exceeded_percent", 1),
    ("all decided after, s", "decided_seconds", 1),
)


def _percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0


def overshoot_values(runs: Mapping[str, Overshoot]) -> dict[str, Value]:
    """Flat keys ``overshoot.<run>.*``; ``overshoot.strict`` and ``overshoot.elastic``: the largest
    part of a limit by which it was passed, in per cent."""
    values: dict[str, Value] = {}
    for name, run in runs.items():
        admitted = run.burst.admitted
        mine: dict[str, Value] = {
            "sent": run.sent,
            "admitted": admitted,
            "refused": run.burst.refused,
            "limit_tokens": run.limit_tokens,
            "used_tokens": run.used_tokens,
            "overshoot_requests": run.overshoot_requests,
            "overshoot_tokens": run.overshoot_tokens,
            "overshoot_percent": _percent(run.overshoot_tokens, run.limit_tokens),
            "utilisation_percent": _percent(run.used_tokens, run.limit_tokens),
            "reserved_each_tokens": run.reserved_tokens / max(1, admitted),
            "accuracy_percent": _percent(run.used_tokens, run.reserved_tokens),
            "over_reservation_percent": _percent(run.unused_tokens, run.reserved_tokens),
            "exceeded_percent": _percent(run.exceeded, admitted),
            "decided_seconds": run.burst.decided_seconds,
        }
        values |= {f"overshoot.{name}.{key}": value for key, value in mine.items()}
    percents = {
        name: _percent(run.overshoot_tokens, run.limit_tokens) for name, run in runs.items()
    }
    for kind, names in (("strict", BOUNDED), ("elastic", ELASTIC)):
        found = [percents[name] for name in names if name in percents]
        if found:
            values[f"overshoot.{kind}"] = max(found)
    return values


def engine_values(cost: EngineCost) -> dict[str, Value]:
    """Flat keys of scripts and memory."""
    return {
        "script.two_limits_us": cost.times.two_limits_us,
        "script.twelve_limits_us": cost.times.twelve_limits_us,
        "script.ratio": cost.times.ratio,
        "reservation.record_bytes": cost.open.record_bytes,
        "reservation.total_bytes": cost.open.total_bytes,
        "redis.round_trips_per_reserve": cost.open.round_trips_to_reserve,
        "redis.round_trips_per_settle": cost.open.round_trips_to_settle,
    }


def overshoot_faults(runs: Mapping[str, Overshoot]) -> list[str]:
    """What may not be: tokens beyond a limit in strict mode, and books that disagree anywhere."""
    faults = []
    for name, run in runs.items():
        if name in BOUNDED and (run.overshoot_tokens or run.overshoot_requests):
            faults.append(
                f"overshoot.{name}: {run.overshoot_requests} requests and {run.overshoot_tokens} "
                "tokens beyond the limit"
            )
        if run.other:
            faults.append(f"overshoot.{name}: {run.other} requests neither admitted nor refused")
        if run.left_open:
            faults.append(f"overshoot.{name}: {run.left_open} reservations were not settled")
        if run.counted_tokens != run.used_tokens:
            faults.append(
                f"overshoot.{name}: the limit counted {run.counted_tokens} tokens, the provider "
                f"{run.used_tokens}"
            )
        if min(run.asked) == 0:
            faults.append(f"overshoot.{name}: a server process was never asked: {run.asked}")
    return faults


def limits_table(values: Mapping[str, Value]) -> str:
    """What a person reads."""
    runs = [run for run in (*BOUNDED, *ELASTIC) if f"overshoot.{run}.sent" in values]

    def cell(key: str, decimals: int) -> str:
        value = values[key]
        return "-" if value is None else f"{value:,.{decimals}f}"

    sent = cell(f"overshoot.{runs[0]}.sent", 0)
    title = f"{sent} at once on one key, {SERVERS} server processes"
    heads = [name.replace("_", " ") for name in runs]
    lines = [f"{title:48}" + "".join(f"{head:>14}" for head in heads)]
    for heading, key, decimals in _ROWS:
        cells = [cell(f"overshoot.{name}.{key}", decimals) for name in runs]
        lines.append(f"{heading:48}" + "".join(f"{text:>14}" for text in cells))
    lines.append(
        f"{'a limit was passed by, % of it':48}strict {cell('overshoot.strict', 2)}, elastic "
        f"{cell('overshoot.elastic', 2)}"
    )
    return "\n".join(lines)


def engine_lines(values: Mapping[str, Value]) -> list[str]:
    """What a person reads of scripts and memory."""

    def cell(key: str, decimals: int) -> str:
        value = values[key]
        return "-" if value is None else f"{value:,.{decimals}f}"

    return [
        f"Reserve script: two limits {cell('script.two_limits_us', 1)} us, twelve limits over five "
        f"scopes {cell('script.twelve_limits_us', 1)} us: {cell('script.ratio', 2)} times "
        f"(at most {TARGET_RATIO:.0f})",
        f"Round trips to Redis: reserve {cell('redis.round_trips_per_reserve', 2)}, settle "
        f"{cell('redis.round_trips_per_settle', 2)}",
        "Memory of an open reservation with twelve limits: record "
        f"{cell('reservation.record_bytes', 0)} bytes, in all "
        f"{cell('reservation.total_bytes', 0)} (at most {TARGET_BYTES})",
    ]
