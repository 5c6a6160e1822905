"""The server is killed, stopped or hangs under requests through every Envoy at once: all stand
beside one stack. Streams that last are here too, because they are waited for together."""

import http.client
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import pytest
import redis

from extproc.demo.stack import Stack, demo_key, http_get
from tests.support.client import CHAT, StackClient, eventually
from tests.support.envoys import another_envoy
from tests.support.targets import TARGETS, Target, assert_charged, produced, settled

STREAM = {**CHAT, "stream": True}
DEADLINE_SECONDS = 2.0
ADMISSION = "http.llm.ext_proc.tokenweir_admission"
_TESTS = 5

Seen = dict[Target, StackClient]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Its reaper looks five times a second."""
    run_dir = tmp_path_factory.mktemp("away")
    with Stack(run_dir=run_dir, reaper_deadline_seconds=DEADLINE_SECONDS) as running:
        yield running


def _services(number: int) -> list[str]:
    return [f"t{number}-{test}" for test in range(_TESTS)]


@pytest.fixture(scope="module")
def gateways(stack: Stack) -> Iterator[dict[Target, Stack]]:
    """All of them at once."""
    with ExitStack() as running:
        yield {
            target: running.enter_context(
                another_envoy(
                    stack,
                    target.profile,
                    target.version,
                    api_keys={demo_key(service): service for service in _services(number)},
                    access_log_flush_seconds=0.5,
                )
            )
            for number, target in enumerate(TARGETS)
        }


@pytest.fixture
def clients(gateways: dict[Target, Stack], stack: Stack) -> Iterator[Seen]:
    """One client of each, under services that no other test uses."""
    test = next(_free)
    with redis.Redis.from_url(stack.redis_url, decode_responses=True) as connection:
        found = {
            target: StackClient(seen, _services(number)[test], connection)
            for number, (target, seen) in enumerate(gateways.items())
        }
        for client in found.values():
            client.limit()
        yield found


_free = iter(range(_TESTS))


def start_stream(client: StackClient, script: str) -> http.client.HTTPConnection:
    connection = client.connection()
    fake = client.headers(f"{script};label={client.service}")
    connection.request("POST", "/v1/chat/completions", json.dumps(STREAM), fake)
    return connection


@contextmanager
def begun(clients: Seen, script: str) -> Iterator[list[http.client.HTTPResponse]]:
    """A stream through each; its answer has begun."""
    with ExitStack() as opened:
        connections = [
            opened.enter_context(closing(start_stream(client, script)))
            for client in clients.values()
        ]
        responses = [opened.enter_context(connection.getresponse()) for connection in connections]
        assert {response.status for response in responses} == {200}
        for response in responses:
            response.readline()
        yield responses


def test_a_server_that_hangs_and_one_that_is_away_show_in_envoys_statistics(
    stack: Stack, clients: Seen
) -> None:
    def statistic(client: StackClient, name: str) -> int:
        lines = http_get(f"{client.stack.admin_url}/stats")[1].splitlines()
        (value,) = (line for line in lines if line.startswith(f"{ADMISSION}.{name}: "))
        return int(value.rpartition(": ")[2])

    def ask(client: StackClient) -> tuple[int, bytes, float]:
        started = time.monotonic()
        answer = client.post(b"{}")
        return answer.status, answer.body, time.monotonic() - started

    before = [statistic(client, "message_timeouts") for client in clients.values()]
    server = stack.child("serve").pid
    assert server is not None
    with ThreadPoolExecutor(len(clients)) as threads:
        os.kill(server, signal.SIGSTOP)
        try:
            answers = list(threads.map(ask, clients.values()))
        finally:
            os.kill(server, signal.SIGCONT)
        assert {answer[:2] for answer in answers} == {(504, b"")}
        waited = {str(target): answer[2] for target, answer in zip(clients, answers, strict=True)}
        for target in clients:
            # Admission's second, and two more where the 504 has to pass metering.
            least = 2.5 if target.passes_errors_through_metering else 0.5
            assert least < waited[str(target)] < least + 7.5, waited
        after = [statistic(client, "message_timeouts") for client in clients.values()]
        assert after == [count + 1 for count in before]
        stack.stop_one("serve")
        before = [statistic(client, "streams_failed") for client in clients.values()]
        answers = list(threads.map(ask, clients.values()))
        assert {answer[:2] for answer in answers} == {(503, b"")}
        after = [statistic(client, "streams_failed") for client in clients.values()]
        assert after == [count + 1 for count in before]
    stack.start_again("serve")


def again(stack: Stack, clients: Seen) -> None:
    """Start the server, and wait until each Envoy has found it."""
    stack.start_again("serve")
    for client in clients.values():
        eventually(lambda client=client: client.post(b"{").status == 400)  # type: ignore[misc]


def test_kill_9_between_reserve_and_settle_leaves_nothing_open(stack: Stack, clients: Seen) -> None:
    connections = [start_stream(client, "output=5;delay_ms=1500") for client in clients.values()]
    for client in clients.values():
        # Not at the reserve: the server's answer to Envoy comes a moment after it.
        eventually(lambda client=client: client.upstream_active() == 1)  # type: ignore[misc]
    stack.kill("serve")
    for connection in connections:
        # Nothing of ours is open while the provider works: the client still gets its answer.
        response = connection.getresponse()
        assert response.status == 200
        assert response.read().endswith(b"[DONE]\n\n")
        connection.close()
    again(stack, clients)
    for client in clients.values():
        (record,) = client.settled(1)
        assert record["state"] in ("EXPIRED", "SETTLED")
        assert record["charged"] == record["reserved"]
        assert client.counted("tpm") == int(record["charged"])


def test_the_server_killed_in_mid_stream_does_not_cut_the_answer(
    stack: Stack, clients: Seen
) -> None:
    with begun(clients, "output=30;chunk_delay_ms=50") as responses:
        stack.kill("serve")
        for response in responses:
            assert response.read().endswith(b"data: [DONE]\n\n")
    again(stack, clients)
    for client in clients.values():
        (record,) = client.settled(1)
        assert int(record["charged"]) >= produced(client)


def test_an_orderly_stop_lets_streams_end_and_settles_them(stack: Stack, clients: Seen) -> None:
    with (
        begun(clients, "output=20;chunk_delay_ms=30") as responses,
        ThreadPoolExecutor(1) as thread,
    ):
        stopped = thread.submit(stack.stop_one, "serve")
        for response in responses:
            assert response.read().endswith(b"data: [DONE]\n\n")
        stopped.result()
    for target, client in clients.items():
        (record,) = settled(client, knowledge=target.promise.unasked)
        assert_charged(record, produced(client))
    again(stack, clients)


def test_a_stream_holds_its_place_longer_than_the_deadline_and_is_charged_once(
    clients: Seen,
) -> None:
    with begun(clients, "output=60;chunk_delay_ms=100") as responses:
        started = time.monotonic()
        for response in responses:
            for _ in range(2 * 45):
                response.readline()
        assert time.monotonic() - started > 2 * DEADLINE_SECONDS
        states = {str(target): client.records()[0]["state"] for target, client in clients.items()}
        assert set(states.values()) == {"RESERVED"}, states
        for response in responses:
            assert response.read().endswith(b"data: [DONE]\n\n")
    for target, client in clients.items():
        (record,) = settled(client, knowledge=target.promise.unasked)
        assert record["outcome"].startswith("complete")
        assert_charged(record, produced(client))
