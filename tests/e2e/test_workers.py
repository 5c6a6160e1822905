"""`tokenweir serve --workers`: several processes behind one Envoy, exchanged without a failure."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from extproc.demo.processes import clean_environment, free_ports
from extproc.demo.stack import Stack
from tests.support.client import StackClient, eventually


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two workers that Envoy has half a second to leave."""
    with Stack(
        run_dir=tmp_path_factory.mktemp("workers"),
        services=[f"w-{number}" for number in range(8)],
        workers=2,
        serve_env={"TOKENWEIR_SERVER__DRAIN_SECONDS": "2.5"},
    ) as running:
        yield running


def workers_of(stack: Stack) -> list[psutil.Process]:
    return psutil.Process(stack.child("serve").pid).children()


def client_of(stack: Stack, service: str) -> StackClient:
    connection = redis.Redis.from_url(stack.redis_url, decode_responses=True)
    client = StackClient(stack, service, connection)
    client.limit(rpm=1_000_000, tpm=1_000_000_000)
    return client


def test_both_workers_serve_and_one_endpoint_shows_their_sum(stack: Stack) -> None:
    client = client_of(stack, "w-0")
    assert {client.post().status for _ in range(10)} == {200}
    client.settled(10)
    # Each worker writes what it counts ten times a second.
    eventually(lambda: client.metric("tokenweir_admissions_total", service_id="w-0") == 10)
    busy = [worker for worker in workers_of(stack) if worker.cpu_times().user > 0]
    assert len(busy) == 2


def test_a_worker_that_dies_is_started_again(stack: Stack) -> None:
    before = workers_of(stack)
    before[0].kill()

    def look() -> bool:
        now = {worker.pid for worker in workers_of(stack)}
        return len(now) == 2 and before[0].pid not in now

    eventually(look)
    eventually(lambda: stack.log("serve").count('"event": "ready"') >= 3, seconds=60)
    assert '"event": "worker ended"' in stack.log("serve")


def test_workers_are_exchanged_without_a_failed_request(stack: Stack) -> None:
    client = client_of(stack, "w-1")
    eventually(lambda: client.post().status == 200)
    before = {worker.pid for worker in workers_of(stack)}
    statuses: list[int] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            statuses.append(client.post(fake="delay_ms=20").status)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        pid = stack.child("serve").pid
        assert pid is not None
        os.kill(pid, signal.SIGHUP)
        eventually(lambda: '"event": "workers exchanged"' in stack.log("serve"), seconds=60)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    after = {worker.pid for worker in workers_of(stack)}
    assert len(after) == 2
    assert not before & after
    assert set(statuses) == {200}
    assert len(statuses) > 20
    client.settled(len(statuses))


def test_no_worker_outlives_its_supervisor(tmp_path: Path) -> None:
    with Stack(run_dir=tmp_path, services=["w"], workers=2) as stack:
        workers = workers_of(stack)
        assert len(workers) == 2
        stack.kill("serve")
        eventually(lambda: not any(worker.is_running() for worker in workers))


@pytest.mark.parametrize(
    ("arguments", "variables", "named"),
    [
        (["--workers", "0"], {}, "server.workers"),
        (["--workers", "2"], {"TOKENWEIR_SERVER__LISTEN": "127.0.0.1:65535"}, "server.listen"),
        (["--workers", "2"], {"TOKENWEIR_SERVER__LISTEN": "127.0.0.1:0"}, "server.listen"),
        (
            ["--workers", "2"],
            {
                "TOKENWEIR_SERVER__LISTEN": "127.0.0.1:18990",
                "TOKENWEIR_SERVER__METRICS_LISTEN": "127.0.0.1:18991",
            },
            "server.metrics_listen",
        ),
        (["--workers", "2"], {"TOKENWEIR_REDIS__URL": "nonsense"}, "redis.url"),
    ],
)
def test_a_wrong_setting_stops_the_start(
    arguments: list[str], variables: dict[str, str], named: str
) -> None:
    (metrics,) = free_ports(1)
    done = subprocess.run(
        [sys.executable, "-m", "extproc.cli", "serve", *arguments],
        env={
            **clean_environment(),
            "TOKENWEIR_SERVER__METRICS_LISTEN": f"127.0.0.1:{metrics}",
            **variables,
        },
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert named in done.stderr.decode()


def test_a_worker_whose_address_is_taken_stops_them_all() -> None:
    (metrics,) = free_ports(1)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import socket,sys; s=socket.create_server(('127.0.0.1',0));"
            "print(s.getsockname()[1],flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        taken = int(holder.stdout.readline())
        done = subprocess.run(
            [sys.executable, "-m", "extproc.cli", "serve", "--workers", "2"],
            env={
                **clean_environment(),
                "TOKENWEIR_SERVER__LISTEN": f"127.0.0.1:{taken - 1}",
                "TOKENWEIR_SERVER__METRICS_LISTEN": f"127.0.0.1:{metrics}",
            },
            capture_output=True,
            timeout=60,
            check=False,
        )
    finally:
        holder.communicate(b"")
    assert done.returncode == 2
    assert "server.listen" in done.stderr.decode()
