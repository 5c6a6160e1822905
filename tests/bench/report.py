"""The results as flat keys (build/bench.json) and as text for people."""

import datetime
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

import grpc

from extproc.demo.envoy_binary import envoy_command
from tests.bench.report_chain import server_lines
from tests.bench.report_floor import floor_tables
from tests.bench.report_limits import Value, engine_lines, limits_table
from tests.bench.report_reading import large_table, reading_table
from tests.bench.report_tables import cpu_table, target_lines, time_tables


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


def machine_values() -> dict[str, Value]:
    """When and on what the run was."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine.cores": os.cpu_count(),
        "machine.cpu": _cpu_model(),
        "machine.python": platform.python_version(),
        "machine.grpcio": grpc.__version__,
        "machine.envoy": _envoy_version(),
    }


def peer_ratios(values: Mapping[str, Value]) -> dict[str, Value]:
    """``litellm.cpu_ratio``: Python's CPU for a JSON request, profile native, by LiteLLM's. Empty
    when either was not measured."""
    mine, theirs = values.get("json.native.python_cpu_us"), values.get("litellm.python_cpu_us")
    if not isinstance(mine, int | float) or not isinstance(theirs, int | float):
        return {}
    return {"litellm.cpu_ratio": mine / theirs}


def text(values: Mapping[str, Value]) -> str:
    """What a person reads: every figure beside its reference. Parts that did not run are left
    out."""
    blocks = []
    if "json.inline.rps" in values:
        blocks += [cpu_table(values, "json"), cpu_table(values, "stream200"), time_tables(values)]
        blocks.append("\n".join(server_lines(values)))
    if "floor.native.json_cpu_ratio" in values:
        blocks.append(floor_tables(values))
    if "overshoot.strict" in values:
        blocks.append(limits_table(values))
    if "script.ratio" in values:
        blocks.append("\n".join(engine_lines(values)))
    if "reading.request_bytes" in values:
        blocks.append(reading_table(values))
    if "large.without_p99_ms" in values:
        blocks.append(large_table(values))
    blocks.append("\n".join(["Aims:", *target_lines(values)]))
    return "\n\n".join([*blocks, _footer(values)])


def _footer(values: Mapping[str, Value]) -> str:
    others = values.get("machine.others_percent")
    return "\n".join(
        [
            "bare: Envoy with only a router. empty: the same messages answered by a Python gRPC "
            "server that does nothing. Ratios are medians of",
            "short rounds in which these were measured one right after the other. Envoy runs one "
            "worker. Generator, upstream, Envoy, Python and",
            f"Valkey share {values.get('machine.cores')} cores, so requests/s is of all of them "
            "together; CPU is counted per process, the generator's not at",
            f"all. Other programs used {others:.0f} % of the machine meanwhile: near 0, runs can "
            "be compared."
            if isinstance(others, int | float)
            else "all.",
            f"{values.get('answers')} answers, {values.get('wrong_answers')} of them wrong.",
            f"{values.get('date')}: {values.get('machine.cores')} cores "
            f"({values.get('machine.cpu')}), Python {values.get('machine.python')}, grpcio "
            f"{values.get('machine.grpcio')}, Envoy {values.get('machine.envoy')}",
        ]
    )
