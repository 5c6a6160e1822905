"""What happens when a store is killed, hangs or is away, or a setting lets more pass; each test has
a stack of its own. This is between server and stores, so one profile tells it;
``profiles/test_server_away.py`` has what Envoy meets when the server is away."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from extproc.demo.stack import Stack
from tests.support import mariadb
from tests.support.client import StackClient, eventually


@contextmanager
def stack_client(**options: Any) -> Iterator[StackClient]:
    with (
        Stack(services=("svc",), **options) as stack,
        redis.Redis.from_url(stack.redis_url, decode_responses=True) as connection,
    ):
        client = StackClient(stack, "svc", connection)
        client.limit(rpm=100_000, tpm=10_000_000)
        yield client
        client.close()


def test_redis_away_is_503_at_once_and_heals() -> None:
    with stack_client(serve_env={"TOKENWEIR_REDIS__TIMEOUT_MS": "50"}) as client:
        assert client.post().status == 200
        client.stack.kill("valkey")
        refused = client.post()
        assert refused.status == 503
        assert refused.json["error"]["code"] == "limiter_unavailable"
        assert refused.headers["retry-after"] == "1"
        client.stack.start_again("valkey")
        eventually(lambda: client.post().status == 200)


def test_redis_away_passes_when_open_and_is_counted() -> None:
    with stack_client(serve_env={"TOKENWEIR_REDIS__FAILURE_MODE": "open"}) as client:
        client.stack.kill("valkey")
        answer = client.post()
        assert answer.status == 200
        assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
        assert client.metric("tokenweir_failed_open_total") == 1


def test_redis_that_hangs_is_bounded_and_leaves_nothing_behind() -> None:
    with stack_client(serve_env={"TOKENWEIR_REDIS__TIMEOUT_MS": "50"}) as client:
        assert client.post().status == 200
        client.settled(1)
        before = client.counted("tpm")
        pid = client.stack.child("valkey").pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            refused = client.post()
        finally:
            os.kill(pid, signal.SIGCONT)
        assert refused.status == 503
        # The reserve ran when Redis woke; its release follows, whatever their order.
        eventually(lambda: len(client.records()) == 2)
        client.settled(2)
        assert client.counted("tpm") == before


def test_sql_away_is_noticed_only_by_a_cold_cache(tmp_path: Path) -> None:
    server = mariadb.mariadb_server(tmp_path)
    url = server.__enter__()
    running = True
    try:
        database = mariadb.make_database(url)
        with stack_client(database_url=database) as client:
            assert client.post().status == 200
            running = False
            server.__exit__(None, None, None)
            assert client.post().status == 200
            client.redis.delete("config:{svc}")
            refused = client.post()
            assert refused.status == 503
            assert refused.json["error"]["code"] == "limiter_unavailable"
            client.settled(2)
    finally:
        if running:
            server.__exit__(None, None, None)


def test_unmetered_paths_pass_when_the_setting_says_so() -> None:
    with stack_client(serve_env={"TOKENWEIR_ADMISSION__UNMETERED": "allow"}) as client:
        assert client.post(path="/v1/elsewhere").status == 404
        assert client.metric("tokenweir_unmetered_total", action="allowed") == 1
        assert client.records() == []


def test_a_script_flush_is_not_noticed() -> None:
    with stack_client() as client:
        assert client.post().status == 200
        client.redis.script_flush()
        assert client.post().status == 200
        client.settled(2)


def test_counters_survive_a_restart_of_the_server() -> None:
    with stack_client() as client:
        assert client.post().status == 200
        client.stack.stop_one("serve")
        client.stack.start_again("serve")
        assert client.post().status == 200
        client.settled(2)
        assert client.metric("tokenweir_admissions_total", service_id="svc") == 2
