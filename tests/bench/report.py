"""The results as flat keys (build/bench.json) and as a table for people."""

import datetime
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

import grpc

from extproc.demo.envoy_binary import envoy_command
from tests.bench.engine import EngineCost
from tests.bench.large_prompt import LargePrompts
from tests.bench.measure import Sample
from tests.bench.overshoot import Overshoot
from tests.bench.reading import ReadingCost
from tests.bench.report_limits import (
    Value,
    engine_values,
    limits_table,
    overshoot_values,
)
from tests.bench.report_reading import large_values, reading_table, reading_values

Samples = Mapping[str, Sample]


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _envoy_version() -> str:
    program = envoy_command(Path("unused"))[0]
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    # "... version: <commit>/<version>/<state>/<build>/<tls library>"
    parts = answer.stdout.split("/")
    return next((part for part in parts if part[:1].isdigit() and "." in part), "unknown")


def _machine() -> dict[str, Value]:
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine_cores": os.cpu_count(),
        "machine_cpu": _cpu_model(),
        "python_version": platform.python_version(),
        "grpcio_version": grpc.__version__,
        "envoy_version": _envoy_version(),
    }


def _ratio(samples: Samples) -> float:
    """Python CPU of ours by that of the empty server."""
    ours, empty = samples["ours"].python_cpu_us, samples["empty"].python_cpu_us
    assert ours is not None
    assert empty
    return ours / empty


def flat(
    samples: Mapping[str, Samples],
    *,
    overshoot: Mapping[str, Overshoot],
    engine: EngineCost,
    reading: ReadingCost,
    large: LargePrompts,
    seconds: float,
    others_percent: float,
) -> dict[str, Value]:
    """Every measured value under a key of its own; CPU in microseconds, latency in ms."""
    loaded, single, streams = (samples[phase] for phase in ("loaded", "single", "streams"))
    values: dict[str, Value] = {**_machine(), "seconds": seconds}
    values["other_programs_cpu_percent"] = others_percent
    for name, sample in loaded.items():
        values[f"{name}_requests_per_second"] = sample.load.per_second
        values[f"{name}_envoy_cpu_us_per_request"] = sample.envoy_cpu_us
        if sample.python_cpu_us is not None:
            values[f"{name}_python_cpu_us_per_request"] = sample.python_cpu_us
            values[f"{name}_messages_per_request"] = sample.messages
    values["python_cpu_ratio"] = _ratio(loaded)
    for name, sample in single.items():
        values[f"{name}_p50_ms"] = sample.load.p50_ms
        values[f"{name}_p99_ms"] = sample.load.p99_ms
    for name in ("empty", "ours"):
        for rank in ("p50", "p99"):
            added = getattr(single[name].load, f"{rank}_ms")
            added -= getattr(single["bare"].load, f"{rank}_ms")
            values[f"{name}_added_{rank}_ms"] = added
    for name, sample in streams.items():
        values[f"{name}_envoy_cpu_us_per_stream"] = sample.envoy_cpu_us
        if sample.python_cpu_us is not None:
            values[f"{name}_python_cpu_us_per_stream"] = sample.python_cpu_us
            values[f"{name}_messages_per_stream"] = sample.messages
    values["stream_python_cpu_ratio"] = _ratio(streams)
    for suffix, sample in (("", single["ours"]), ("_at_32", loaded["ours"])):
        values[f"redis_scripts_per_request{suffix}"] = sample.redis_scripts
        values[f"redis_reads_per_request{suffix}"] = sample.redis_reads
    values |= overshoot_values(overshoot)
    values |= engine_values(engine, round_trips_per_request=single["ours"].redis_reads)
    values |= reading_values(reading)
    values |= large_values(large)
    counts = [sample.load for group in samples.values() for sample in group.values()]
    values["answers"] = sum(load.requests for load in counts) + large.requests
    values["wrong_answers"] = (
        sum(load.not_200 for load in counts)
        + large.not_200
        + sum(run.other for run in overshoot.values())
    )
    return values


def wrong(samples: Mapping[str, Samples]) -> list[str]:
    """One line for each measurement with answers other than 200."""
    return [
        f"{phase}, {name}: {sample.load.statuses}, {sample.load.failed} connections failed"
        for phase, group in samples.items()
        for name, sample in group.items()
        if sample.load.not_200
    ]


# Heading of a row, key of its cells for bare, empty and ours, decimals.
_ROWS: tuple[tuple[str, str, int], ...] = (
    ("32 connections: requests/s", "{}_requests_per_second", 0),
    ("32 connections: Python CPU us/request", "{}_python_cpu_us_per_request", 0),
    ("32 connections: Envoy CPU us/request", "{}_envoy_cpu_us_per_request", 0),
    ("ext_proc messages/request", "{}_messages_per_request", 2),
    ("one client: p50 ms", "{}_p50_ms", 3),
    ("one client: p99 ms", "{}_p99_ms", 3),
    ("added to bare: p50 ms", "{}_added_p50_ms", 3),
    ("added to bare: p99 ms", "{}_added_p99_ms", 3),
    ("200-chunk stream: Python CPU us/stream", "{}_python_cpu_us_per_stream", 0),
    ("200-chunk stream: Envoy CPU us/stream", "{}_envoy_cpu_us_per_stream", 0),
    ("ext_proc messages/stream", "{}_messages_per_stream", 1),
)


def _cell(value: Value, decimals: int) -> str:
    return "-" if value is None else f"{value:,.{decimals}f}"


def table(values: Mapping[str, Value]) -> str:
    """What a person reads."""
    lines = [f"{'':40}{'bare':>12}{'empty':>12}{'ours':>12}"]
    for title, key, decimals in _ROWS:
        cells = [
            _cell(values.get(key.format(name)), decimals) for name in ("bare", "empty", "ours")
        ]
        lines.append(f"{title:40}" + "".join(f"{cell:>12}" for cell in cells))

    def shown(key: str, decimals: int = 2) -> str:
        return _cell(values[key], decimals)

    lines += [
        "",
        f"Python CPU, ours by empty: request {shown('python_cpu_ratio')}, "
        f"stream {shown('stream_python_cpu_ratio')}",
        f"Redis, one client: {shown('redis_scripts_per_request')} scripts and "
        f"{shown('redis_reads_per_request')} socket reads a request; 32 connections: "
        f"{shown('redis_scripts_per_request_at_32')} and {shown('redis_reads_per_request_at_32')}",
        f"{values['answers']} answers, {values['wrong_answers']} of them wrong",
        "",
        limits_table(values),
        "",
        reading_table(values),
        "",
        "bare: Envoy with only a router. empty: the same messages answered by a Python gRPC "
        "server that does nothing.",
        "Envoy runs one worker. The load generator, the upstream, Envoy, Python and Valkey share "
        f"the {values['machine_cores']} cores,",
        "so requests/s is of all of them together; CPU is counted per process, the generator's "
        f"not at all. Other programs used {shown('other_programs_cpu_percent', 0)} % of the "
        "machine meanwhile: near 0, runs can be compared.",
        f"{values['date']}: {values['machine_cores']} cores ({values['machine_cpu']}), Python "
        f"{values['python_version']}, grpcio {values['grpcio_version']}, Envoy "
        f"{values['envoy_version']}",
    ]
    return "\n".join(lines)
