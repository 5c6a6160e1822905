"""The whole benchmark with tiny durations: every key is there, and every answer was a 200."""

import json
import subprocess
import sys
from pathlib import Path

from tests.bench.burst import FITS

ROOT = Path(__file__).resolve().parents[2]
PER_SYSTEM = {
    "bare": [
        "requests_per_second",
        "envoy_cpu_us_per_request",
        "p50_ms",
        "p99_ms",
        "envoy_cpu_us_per_stream",
    ],
    "empty": [
        "requests_per_second",
        "envoy_cpu_us_per_request",
        "python_cpu_us_per_request",
        "messages_per_request",
        "p50_ms",
        "p99_ms",
        "added_p50_ms",
        "added_p99_ms",
        "python_cpu_us_per_stream",
        "envoy_cpu_us_per_stream",
        "messages_per_stream",
    ],
}
PER_SYSTEM["ours"] = PER_SYSTEM["empty"]
OTHERS = [
    "date",
    "machine_cores",
    "machine_cpu",
    "python_version",
    "grpcio_version",
    "envoy_version",
    "seconds",
    "other_programs_cpu_percent",
    "python_cpu_ratio",
    "stream_python_cpu_ratio",
    "redis_scripts_per_request",
    "redis_reads_per_request",
    "redis_scripts_per_request_at_32",
    "redis_reads_per_request_at_32",
    "burst_sent",
    "burst_fits",
    "burst_admitted",
    "overshoot_requests",
    "overshoot_tokens",
    "answers",
    "wrong_answers",
]


def test_the_benchmark_measures_everything(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    command = [sys.executable, "-m", "tests.bench", "--seconds", "0.2", "--output", str(output)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    values = json.loads(output.read_text())
    keys = {f"{name}_{key}" for name, keys in PER_SYSTEM.items() for key in keys} | set(OTHERS)
    assert values.keys() == keys
    assert all(value is not None for value in values.values())
    assert values["wrong_answers"] == 0
    assert values["answers"] > 0
    # One message at admission, head and body of the answer at metering: for both the same.
    assert values["empty_messages_per_request"] == 3
    assert values["ours_messages_per_request"] == 3
    # One script to reserve, one to settle.
    assert values["redis_scripts_per_request"] == 2
    assert values["burst_admitted"] == FITS
    assert values["overshoot_tokens"] == 0
