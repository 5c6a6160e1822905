"""The whole benchmark with tiny durations: every key is there, and every answer was a 200."""

import json
import subprocess
import sys
from pathlib import Path

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
    "script.two_limits_us",
    "script.twelve_limits_us",
    "script.ratio",
    "reservation.record_bytes",
    "reservation.total_bytes",
    "redis.round_trips_per_reserve",
    "redis.round_trips_per_settle",
    "redis.round_trips_per_request",
    "answers",
    "wrong_answers",
]
OVERSHOOT = [
    f"overshoot.{run}.{key}"
    for run in ("strict", "strict_at_cap", "p95", "mean")
    for key in (
        "sent",
        "admitted",
        "refused",
        "limit_tokens",
        "used_tokens",
        "overshoot_requests",
        "overshoot_tokens",
        "overshoot_percent",
        "utilisation_percent",
        "reserved_each_tokens",
        "accuracy_percent",
        "over_reservation_percent",
        "exceeded_percent",
        "decided_seconds",
    )
]
STREAMS = ("openai", "openai_hidden", "openai_gzip", "anthropic", "gemini", "bedrock")
READING = [
    *(
        f"reading.{stream}.{key}"
        for stream in STREAMS
        for key in ("bytes_per_chunk", "us_per_chunk", "mb_per_second")
    ),
    *(f"reading.{stream}.framer_mb_per_second" for stream in STREAMS if "gzip" not in stream),
    "reading.request_bytes",
    "reading.request_cold_us",
    "reading.request_warm_us",
]
LARGE = [
    *(f"large.without_{rank}_ms" for rank in ("p50", "p99")),
    *(
        f"large.{kind}.{key}"
        for kind in ("one_text", "many_messages")
        for key in ("p50_ms", "p99_ms", "p99_ratio", "own_p50_ms")
    ),
]
BURST = 100


def test_the_benchmark_measures_everything(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    command = [sys.executable, "-m", "tests.bench", "--seconds", "0.2", "--burst", str(BURST)]
    command += ["--output", str(output)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    values = json.loads(output.read_text())
    keys = {f"{name}_{key}" for name, keys in PER_SYSTEM.items() for key in keys}
    assert values.keys() == keys | set(OTHERS) | {*OVERSHOOT, *READING, *LARGE}
    assert all(value is not None for value in values.values())
    assert values["wrong_answers"] == 0
    assert values["answers"] > 0
    # One message at admission, head and body of the answer at metering: for both the same.
    assert values["empty_messages_per_request"] == 3
    assert values["ours_messages_per_request"] == 3
    # One script to reserve, one to settle.
    assert values["redis_scripts_per_request"] == 2
    assert values["redis.round_trips_per_reserve"] == values["redis.round_trips_per_settle"] == 1
    for run in ("strict", "strict_at_cap", "p95", "mean"):
        sent = values[f"overshoot.{run}.admitted"] + values[f"overshoot.{run}.refused"]
        assert sent == values[f"overshoot.{run}.sent"] == BURST
        # For each of them the terminal has a number of its own.
        assert f"{values[f'overshoot.{run}.used_tokens']:,}" in done.stdout
    assert all(values[key] > 0 for key in (*READING, *LARGE))
    assert values["reading.request_bytes"] == 3072
    for kind in ("one_text", "many_messages"):
        ratio = values[f"large.{kind}.p99_ms"] / values["large.without_p99_ms"]
        assert values[f"large.{kind}.p99_ratio"] == ratio
        # A megabyte was really read: the large ones take longer than the small ones beside them.
        assert values[f"large.{kind}.own_p50_ms"] > values["large.without_p50_ms"]
    for run in ("strict", "strict_at_cap"):
        assert values[f"overshoot.{run}.overshoot_requests"] == 0
        assert values[f"overshoot.{run}.overshoot_tokens"] == 0
    # The estimates were learnt: each reserves less than the one before it.
    reserved = [
        values[f"overshoot.{run}.reserved_each_tokens"] for run in ("strict", "p95", "mean")
    ]
    assert reserved == sorted(reserved, reverse=True)
    assert reserved[1] != reserved[2]
