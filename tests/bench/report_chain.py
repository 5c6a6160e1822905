"""What the benchmark says of the whole chain: flat keys, and tables beside their references.

Keys are ``json.PROFILE.*`` and ``stream200.PROFILE.*``; figures of bare Envoy and of the empty
server, measured in the same rounds, begin with ``bare_`` and ``empty_``.
"""

from collections.abc import Mapping
from statistics import median

from tests.bench.chain import Chain, all_levels
from tests.bench.latency import HALF, Level, first_tokens, full_rate, latencies, percentiles
from tests.bench.load import percentile
from tests.bench.measure import Sample
from tests.bench.report_limits import Value
from tests.bench.rounds import STREAMS, Rounds, median_of, median_ratio

SYSTEMS = ("bare", "empty", "ours")


def _python(sample: Sample) -> float:
    return sample.python_us


def _chain(sample: Sample) -> float:
    return sample.chain_us


def _prefix(system: str) -> str:
    return "" if system == "ours" else f"{system}_"


def _of_rounds(rounds: Rounds) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name in SYSTEMS:
        samples, prefix = rounds[name], _prefix(name)
        values[f"{prefix}rps"] = median_of(samples, lambda sample: sample.load.per_second)
        values[f"{prefix}envoy_cpu_us"] = median_of(samples, lambda sample: sample.envoy_cpu_us)
        if name != "bare":
            values[f"{prefix}python_cpu_us"] = median_of(samples, _python)
            values[f"{prefix}chain_cpu_us"] = median_of(samples, _chain)
            values[f"{prefix}chain_cpu_ratio"] = median_ratio(rounds, name, "bare", _chain)
            values[f"{prefix}messages"] = median_of(samples, lambda sample: sample.messages)
    values["python_cpu_ratio"] = median_ratio(rounds, "ours", "empty", _python)
    return values


def _of_level(kind: str, level: Level) -> dict[str, Value]:
    values: dict[str, Value] = {
        "rps": level.rate,
        "requests": len(level.seen["ours"].requests),
    }
    added: dict[str, dict[str, dict[str, float]]] = {}
    for name, seen in level.seen.items():
        requests = seen.requests
        if kind == STREAMS.name:
            added.setdefault("ttft_", {})[name] = percentiles(first_tokens(requests))
            added.setdefault("chunk_", {})[name] = percentiles(seen.transits)
        else:
            added.setdefault("", {})[name] = percentiles(latencies(requests))
    for what, by_system in added.items():
        for name, ranks in by_system.items():
            for rank, value in ranks.items():
                values[f"{_prefix(name)}{what}{rank}_ms"] = value
                if name != "bare":
                    more = value - by_system["bare"][rank]
                    values[f"{_prefix(name)}added_{what}{rank}_ms"] = more
    return values


def chain_values(chain: Chain) -> dict[str, Value]:
    """Every figure of the chain; CPU in microseconds, times in ms."""
    values: dict[str, Value] = {}
    for kind, profiles in chain.rounds.items():
        for profile, rounds in profiles.items():
            base = f"{kind}.{profile}"
            values |= {f"{base}.{key}": value for key, value in _of_rounds(rounds).items()}
            most = chain.saturation[kind][profile]
            values[f"{base}.saturation_rps"] = most.per_second
            values[f"{base}.full_rps"] = full_rate(most, rounds["ours"])
            for percent, level in chain.levels[kind][profile].items():
                figures = _of_level(kind, level)
                values |= {f"{base}.at_{percent}.{key}": value for key, value in figures.items()}
                if percent == HALF:
                    half = {key: value for key, value in figures.items() if "added_" in key}
                    values |= {f"{base}.{key}": value for key, value in half.items()}
    values |= _native_over_json(chain)
    late = sorted(
        each.late
        for _, level in all_levels(chain)
        for seen in level.seen.values()
        for each in seen.requests
    )
    values["latency.server_apart"] = all(level.is_apart for _, level in all_levels(chain))
    values["generator.late_p50_ms"] = percentile(late, 50) * 1000
    values["generator.late_p99_ms"] = percentile(late, 99) * 1000
    return values | _of_the_server(chain)


def _native_over_json(chain: Chain) -> dict[str, Value]:
    """A stream's CPU by that of a JSON request at the same rate: a server with little to do pays
    more for each of them, which has nothing to do with chunks."""
    streams = chain.rounds[STREAMS.name]["native"]["ours"]
    pairs = zip(streams, chain.at_stream_rate, strict=True)
    return {
        "stream200.native.json_at_same_rps_python_cpu_us": median_of(chain.at_stream_rate, _python),
        "stream200.native.python_cpu_over_json": median(
            _python(stream) / _python(json) for stream, json in pairs
        ),
    }


def _of_the_server(chain: Chain) -> dict[str, Value]:
    single, scaling, memory, idle = chain.single, chain.scaling, chain.memory, chain.idle
    assert single is not None
    assert idle is not None
    assert scaling is not None
    assert memory is not None
    loaded = chain.rounds["json"]["inline"]["ours"]
    return {
        "idle.cpu_percent": idle.all_percent,
        "idle.worker_cpu_percent": idle.worker_percent,
        "redis.scripts_per_request": single.redis_scripts,
        "redis.round_trips_per_request": single.redis_reads,
        "redis.scripts_per_request_at_32": median(each.redis_scripts or 0.0 for each in loaded),
        "redis.round_trips_per_request_at_32": median(each.redis_reads or 0.0 for each in loaded),
        "memory.worker_mb": memory.resident_mb,
        "memory.worker_pss_mb": memory.proportional_mb,
        "memory.before_mb": memory.before_mb,
        "memory.requests": memory.requests,
        "scaling.two_workers": scaling.ratio,
        "scaling.one_python_cpu_us": median_of(scaling.rounds["one"], _python),
        "scaling.two_python_cpu_us": median_of(scaling.rounds["two"], _python),
        "scaling.one_rps": median_of(scaling.rounds["one"], lambda each: each.load.per_second),
        "scaling.two_rps": median_of(scaling.rounds["two"], lambda each: each.load.per_second),
        "scaling.least_share": min(scaling.shares),
    }


def server_lines(values: Mapping[str, Value]) -> list[str]:
    """Redis, memory, workers, and what to know of the run."""

    def shown(key: str, decimals: int = 2) -> str:
        value = values[key]
        assert isinstance(value, int | float)
        return f"{value:,.{decimals}f}"

    apart = "had a core of its own" if values["latency.server_apart"] else "shared all cores"
    return [
        f"Redis, one client: {shown('redis.scripts_per_request')} scripts and "
        f"{shown('redis.round_trips_per_request')} socket reads a request; 32 connections: "
        f"{shown('redis.scripts_per_request_at_32')} and "
        f"{shown('redis.round_trips_per_request_at_32')}",
        f"Memory of the worker after {shown('memory.requests', 0)} requests: "
        f"{shown('memory.worker_mb', 0)} MB resident "
        f"({shown('memory.worker_pss_mb', 0)} MB proportional), "
        f"{shown('memory.before_mb', 0)} MB before the first one",
        f"Two workers carry {shown('scaling.two_workers')} times one by CPU: "
        f"{shown('scaling.one_python_cpu_us', 0)} us a request with one, "
        f"{shown('scaling.two_python_cpu_us', 0)} us with two (measured: "
        f"{shown('scaling.one_rps', 0)} and {shown('scaling.two_rps', 0)} requests/s on the same "
        f"cores); the one with less to do did {100 * float(values['scaling.least_share'] or 0):.0f}"
        " % of it",
        f"At rest: all systems together {shown('idle.cpu_percent')} % of one core, our server "
        f"{shown('idle.worker_cpu_percent')} %. The open-loop generator sends "
        f"{shown('generator.late_p50_ms', 3)} ms late (p50; p99 "
        f"{shown('generator.late_p99_ms', 3)} ms). While latency was measured the server {apart}.",
    ]
