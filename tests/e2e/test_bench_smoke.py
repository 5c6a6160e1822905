"""The benchmark of the whole chain with tiny durations: every key is there, every answer a 200."""

import json
import subprocess
import sys
from pathlib import Path

from tests.bench.latency import PERCENTILES
from tests.bench.systems import PROFILES

ROOT = Path(__file__).resolve().parents[2]
PNG = b"\x89PNG"
MACHINE = [
    "date",
    *(f"machine.{key}" for key in ("cores", "cpu", "python", "grpcio", "envoy", "others_percent")),
    "seconds",
    "rounds",
    "answers",
    "wrong_answers",
]
CPU = (
    ["python_cpu_ratio", "saturation_rps", "full_rps"]
    + [f"{prefix}{key}" for prefix in ("", "empty_", "bare_") for key in ("rps", "envoy_cpu_us")]
    + [
        f"{prefix}{key}"
        for prefix in ("", "empty_")
        for key in ("python_cpu_us", "chain_cpu_us", "chain_cpu_ratio", "messages")
    ]
)
TIMES = {"json": ("",), "stream200": ("ttft_", "chunk_")}
SERVER = [
    "idle.cpu_percent",
    "idle.worker_cpu_percent",
    "latency.server_apart",
    "generator.late_p50_ms",
    "generator.late_p99_ms",
    "redis.scripts_per_request",
    "redis.round_trips_per_request",
    "redis.scripts_per_request_at_32",
    "redis.round_trips_per_request_at_32",
    "memory.worker_mb",
    "memory.worker_pss_mb",
    "memory.before_mb",
    "memory.requests",
    "scaling.two_workers",
    "scaling.one_python_cpu_us",
    "scaling.two_python_cpu_us",
    "scaling.one_rps",
    "scaling.two_rps",
    "scaling.least_share",
    "stream200.native.python_cpu_over_json",
    "stream200.native.json_at_same_rps_python_cpu_us",
    *(f"large.without_{rank}_ms" for rank in ("p50", "p99")),
    *(
        f"large.{kind}.{key}"
        for kind in ("one_text", "many_messages")
        for key in ("p50_ms", "p99_ms", "p99_ratio", "own_p50_ms")
    ),
]


def _of_profile(kind: str, profile: str) -> list[str]:
    base = f"{kind}.{profile}"
    half = [f"{base}.at_50.rps", f"{base}.at_50.requests"]
    for what in TIMES[kind]:
        for rank in PERCENTILES:
            added = [f"{begin}added_{what}{rank}_ms" for begin in ("", "empty_")]
            half += [f"{base}.{key}" for key in added]
            half += [f"{base}.at_50.{key}" for key in added]
            half += [f"{base}.at_50.{begin}{what}{rank}_ms" for begin in ("", "empty_", "bare_")]
    return [*(f"{base}.{key}" for key in CPU), *half]


def test_the_benchmark_measures_the_whole_chain(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    command = [sys.executable, "-m", "tests.bench", "--parts", "chain"]
    command += ["--seconds", "0.2", "--rounds", "1", "--levels", "50", "--output", str(output)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    values = json.loads(output.read_text())
    profiles = [key for kind in TIMES for profile in PROFILES for key in _of_profile(kind, profile)]
    assert values.keys() == {*MACHINE, *profiles, *SERVER}
    assert all(value is not None for value in values.values())
    assert values["wrong_answers"] == 0
    assert values["memory.requests"] > 0
    # One message at admission; head and body of the answer at metering; of copies its end too.
    for profile, messages in (("inline", 3), ("observe", 4), ("native", 1)):
        base = f"json.{profile}"
        assert values[f"{base}.messages"] == values[f"{base}.empty_messages"] == messages
        streams = f"stream200.{profile}"
        assert (values[f"{streams}.messages"] > messages) == (profile != "native")
        assert values[f"{base}.bare_rps"] > values[f"{base}.rps"]
    # One script to reserve, one to settle.
    assert values["redis.scripts_per_request"] == 2
    # The terminal has every figure that is in the file.
    assert f"{values['memory.requests']:,}" in done.stdout
    for kind in ("one_text", "many_messages"):
        assert values[f"large.{kind}.own_p50_ms"] > 0
    assert output.with_suffix(".png").read_bytes().startswith(PNG)
