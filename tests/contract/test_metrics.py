"""Metrics of several processes, read from one endpoint."""

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

from extproc.demo.processes import free_ports

_COUNT = """
from extproc.control.metrics import Metrics
metrics = Metrics()
for _ in range({times}):
    metrics.refused("store")
metrics.open_reservations({times})
metrics.open_reviews({times})
"""
_SERVE = """
from extproc.control.metrics import Metrics, start_metrics_server
import urllib.request
metrics = Metrics()
metrics.refused("store")
stop = start_metrics_server("127.0.0.1:{port}", metrics)
print(urllib.request.urlopen("http://127.0.0.1:{port}/metrics").read().decode())
stop()
"""


def _run(code: str, directory: Path) -> str:
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(directory)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_one_endpoint_shows_the_sum_of_all_processes(tmp_path: Path) -> None:
    _run(_COUNT.format(times=2), tmp_path)
    _run(_COUNT.format(times=3), tmp_path)
    (port,) = free_ports(1)
    text = _run(_SERVE.format(port=port), tmp_path)
    assert 'tokenweir_refusals_total{reason="store"} 6.0' in text
    assert "tokenweir_open_reservations 3.0" in text
    assert "tokenweir_reviews_open 3.0" in text
    assert "tokenweir_reaper_last_sweep_timestamp_seconds" in text


def test_the_socket_is_closed_again() -> None:
    from extproc.control.metrics import Metrics, start_metrics_server

    (port,) = free_ports(1)
    for _ in range(2):
        stop = start_metrics_server(f"127.0.0.1:{port}", Metrics())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read()
        # What an alarm asks for is there from the start; what only the reaper knows is not.
        assert b'tokenweir_failed_open_total{reason="redis"} 0.0' in text
        assert b"tokenweir_open_reservations" not in text
        stop()
