"""Streams that run longer than a reservation's deadline: Envoy's periodic entries keep what they
hold, and nothing keeps it once they are over."""

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from extproc.demo.stack import Stack
from tests.support.client import CHAT, StackClient, eventually

STREAM = {**CHAT, "stream": True}
DEADLINE_SECONDS = 3.0
FLUSH_SECONDS = 0.5


def new_stack(
    run_dir: Path,
    *services: str,
    flush_seconds: float = FLUSH_SECONDS,
    work_env: dict[str, str] | None = None,
) -> Stack:
    """Its reaper looks five times a second."""
    return Stack(
        work_env=work_env,
        run_dir=run_dir,
        services=services,
        reaper_deadline_seconds=DEADLINE_SECONDS,
        envoy_options={"access_log_flush_seconds": flush_seconds},
    )


@contextmanager
def client_of(stack: Stack, service: str) -> Iterator[StackClient]:
    """A client of a service that may have one request open at a time."""
    policy = {
        "name": f"one-{service}",
        "scope": "service",
        "value": service,
        "rules": [{"dimension": "concurrent", "limit": 1}],
    }
    file = stack.run_dir / f"{service}.yaml"
    file.write_text(json.dumps({"root": service, "policies": [policy]}))  # JSON is YAML
    stack.cli("limits", "apply", "-f", str(file))
    with redis.Redis.from_url(stack.redis_url, decode_responses=True) as connection:
        client = StackClient(stack, service, connection)
        yield client
        client.close()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with new_stack(tmp_path_factory.mktemp("long"), "whole", "client", "upstream") as stack:
        yield stack


def start_stream(client: StackClient, fake: str) -> http.client.HTTPConnection:
    connection = client.connection()
    connection.request("POST", "/v1/chat/completions", json.dumps(STREAM), client.headers(fake))
    return connection


def renewed(client: StackClient) -> float:
    return client.metric("tokenweir_renewals_total", result="renewed")


def until_past_deadline(client: StackClient) -> None:
    """Wait until the one open stream is open only because it was renewed."""
    enough = renewed(client) + DEADLINE_SECONDS / FLUSH_SECONDS + 2
    eventually(lambda: renewed(client) >= enough)


def open_id(client: StackClient) -> str:
    pending = f"pending:{{{client.service}}}"
    (reservation,) = eventually(lambda: client.redis.zrange(pending, 0, -1))
    return str(reservation)


def line_types(client: StackClient, reservation: str) -> list[str]:
    """Of a reservation's lines in Envoy's access log, oldest first."""
    text = (client.stack.run_dir / "access.log").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    return [line["type"] for line in found if line["reservation"] == reservation]


def test_a_stream_holds_its_place_longer_than_the_deadline_and_is_charged_once(
    stack: Stack,
) -> None:
    with client_of(stack, "whole") as client:
        before = renewed(client)
        connection = start_stream(client, "output=80;chunk_delay_ms=100;label=long")
        response = connection.getresponse()
        started, looked = time.monotonic(), 0.0
        while line := response.readline():
            if line.startswith(b"data: [DONE]"):
                break
            now = time.monotonic()
            if now - looked > 0.4:
                looked = now
                refused = client.post()
                assert refused.status == 429, f"after {now - started:.1f} s"
                assert "one-whole/concurrent" in refused.json["error"]["message"]
                assert [one["state"] for one in client.records()] == ["RESERVED"]
        assert time.monotonic() - started > 2 * DEADLINE_SECONDS
        connection.close()
        (record,) = client.settled(1)
        (produced,) = client.journal("long")
        assert record["outcome"] == "complete"
        assert int(record["charged"]) == produced["input_tokens"] + 80
        assert renewed(client) - before >= 8
        assert client.post().status == 200


@pytest.mark.parametrize("who", ["client", "upstream"])
def test_whoever_breaks_a_long_stream_ends_its_heartbeats_and_frees_its_place(
    stack: Stack, who: str
) -> None:
    with client_of(stack, who) as client:
        script = "hang_after=2" if who == "client" else "break_after=60;chunk_delay_ms=100"
        connection = start_stream(client, f"output=200;{script}")
        response = connection.getresponse()
        first = open_id(client)
        until_past_deadline(client)
        assert client.post().status == 429
        if who == "upstream":
            with pytest.raises((http.client.HTTPException, ConnectionError)):
                response.read()
        response.close()
        connection.close()
        eventually(lambda: not client.pending(), seconds=DEADLINE_SECONDS)
        # The next stream is heard of, the broken one never again.
        second_connection = start_stream(client, "output=200;hang_after=2")
        second_connection.getresponse()
        second = open_id(client)
        before = renewed(client)
        eventually(lambda: renewed(client) >= before + 3)
        second_connection.close()
        stack.stop_one("envoy")  # which writes the rest of its log
        stack.start_again("envoy")
        types = line_types(client, first)
        assert types[-1] == "DownstreamEnd"
        assert set(types[:-1]) == {"DownstreamPeriodic"}
        assert "DownstreamPeriodic" in line_types(client, second)


def test_without_heartbeats_the_deadline_frees_the_place_and_the_end_still_counts(
    tmp_path: Path,
) -> None:
    """What docs/envoy.md says of a connection manager without the interval."""
    with (
        new_stack(tmp_path, "svc", flush_seconds=3600) as stack,
        client_of(stack, "svc") as client,
    ):
        connection = start_stream(client, "output=80;chunk_delay_ms=100;label=long")
        response = connection.getresponse()
        assert client.post().status == 429
        eventually(lambda: client.post().status == 200)
        assert response.read().endswith(b"data: [DONE]\n\n")
        connection.close()
        (produced,) = client.journal("long")
        charged = produced["input_tokens"] + 80
        eventually(lambda: str(charged) in {one["charged"] for one in client.records()})


def test_an_envoy_that_dies_takes_its_heartbeats_along_and_people_decide(tmp_path: Path) -> None:
    """Nobody is left to tell of the end, so the last deadline does; what was used, people say."""
    review = {"TOKENWEIR_REAPER__POLICY": "review"}
    with new_stack(tmp_path, "svc", work_env=review) as stack, client_of(stack, "svc") as client:
        connection = start_stream(client, "output=200;hang_after=2")
        connection.getresponse()
        first = open_id(client)
        until_past_deadline(client)
        stack.kill("serve")
        stack.kill("envoy")
        stack.start_again("serve")
        stack.start_again("envoy")
        eventually(lambda: client.post().status == 200)
        connection.close()
        name = f"resv:{{svc}}:{first}"
        ended = ["RECONCILING", "reaper"]
        eventually(lambda: client.redis.hmget(name, "state", "source") == ended)
        eventually(lambda: client.metric("tokenweir_reviews_open") == 1)
        (waits,) = json.loads(stack.cli("reviews", "list", "--json"))
        assert waits["reservation_id"] == first
        stack.cli("reviews", "resolve", first, "--root=svc", "--input=9", "--output=2")
        assert client.redis.hmget(name, "state", "charged") == ["SETTLED", "11"]
        eventually(lambda: client.metric("tokenweir_reviews_open") == 0)
