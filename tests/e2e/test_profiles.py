"""The metering profiles through real Envoys of every release that they are for."""

import http.client
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from extproc.demo.stack import Stack
from extproc.envoyconfig.options import Profile
from tests.e2e.test_endings import read_events
from tests.support.client import CHAT, StackClient, eventually
from tests.support.envoys import VERSIONS, another_envoy

STREAM = {**CHAT, "stream": True}
ASKING = {**STREAM, "stream_options": {"include_usage": True}}
CLAUDE = {"model": "claude-sonnet-5-5", "max_tokens": 100, "messages": CHAT["messages"]}
COMPLETION = {"model": "gpt-3.5-turbo-instruct", "prompt": "Say hi"}
EMBEDDING = {"model": "text-embedding-3-small", "input": ["hello world", "good morning"]}
# Answers whose usage every profile knows to the token.
KNOWN: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat": ("/v1/chat/completions", CHAT, "output=37"),
    "chat, cached": ("/v1/chat/completions", CHAT, "output=37;input=100;cached=60"),
    "stream that asks": ("/v1/chat/completions", ASKING, "output=37"),
    "in small pieces": ("/v1/chat/completions", ASKING, "output=9;chunk=7,13,2"),
    "in every event": ("/v1/chat/completions", ASKING, "output=20;usage=every_chunk"),
    "messages": ("/v1/messages", CLAUDE, "output=21;input=100;cached=60"),
    "messages, streamed": ("/v1/messages", {**CLAUDE, "stream": True}, "output=21"),
    "messages, cached": (
        "/v1/messages",
        {**CLAUDE, "stream": True},
        "output=21;input=100;cached=60",
    ),
    "completions": ("/v1/completions", COMPLETION, "output=11"),
    "embeddings": ("/v1/embeddings", EMBEDDING, ""),
}
TARGETS: list[tuple[Profile, str | None]] = [
    ("observe", None),
    ("native", None),
    ("native-1.38", None),
    *itertools.product(("inline", "observe"), VERSIONS),  # type: ignore[list-item]
    ("native-1.38", "1.38.3"),
    ("native-1.38", "1.39.3"),
]
_SERVICES = tuple(f"p-{number}" for number in range(24 * len(TARGETS)))
_free = iter(_SERVICES)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(run_dir=tmp_path_factory.mktemp("profiles"), services=_SERVICES) as running:
        yield running


@pytest.fixture(scope="module", params=TARGETS, ids=lambda it: f"{it[0]}-on-{it[1] or 'newest'}")
def target(request: pytest.FixtureRequest, stack: Stack) -> Iterator[tuple[Profile, Stack]]:
    profile, version = request.param
    with another_envoy(stack, profile, version) as seen:
        yield profile, seen


@pytest.fixture
def profile(target: tuple[Profile, Stack]) -> Profile:
    return target[0]


@pytest.fixture
def client(target: tuple[Profile, Stack]) -> Iterator[StackClient]:
    with redis.Redis.from_url(target[1].redis_url, decode_responses=True) as connection:
        client = StackClient(target[1], next(_free), connection)
        client.limit()
        yield client


def ended(client: StackClient) -> dict[str, str]:
    """The one record, when somebody who saw the request end has settled it."""

    def look() -> list[dict[str, str]]:
        return [
            record
            for record in client.records()
            if record["state"] != "RESERVED" and record["source"] != "admission"
        ]

    (record,) = eventually(look)
    return record


def produced(client: StackClient) -> int:
    (entry,) = eventually(lambda: client.journal(client.service))
    return int(entry["input_tokens"]) + int(entry["output_tokens_produced"])


@pytest.mark.parametrize("case", KNOWN)
def test_what_was_used_is_charged(client: StackClient, case: str) -> None:
    path, body, fake = KNOWN[case]
    answer = client.post(body, path=path, fake=f"{fake};label={client.service}")
    assert answer.status == 200
    # Copies may come behind the access log: then its guess is corrected.
    eventually(lambda: ended(client)["rank"] == "3")
    record = ended(client)
    assert int(record["charged"]) == produced(client) == client.counted("tpm")
    assert (record["outcome"], record["rank"]) == ("complete", "3")
    assert client.pending() == 0


def test_a_stream_that_does_not_ask_for_usage(client: StackClient, profile: Profile) -> None:
    """Inline hides the event, observe counts, native goes by the size; the client sees no usage."""
    answer = client.post(STREAM, fake=f"output=23;label={client.service}")
    events = [json.loads(line[6:]) for line in answer.body.split(b"\n\n") if line[6:7] == b"{"]
    assert all(event["choices"] and not event.get("usage") for event in events)
    if profile == "observe":
        eventually(lambda: ended(client)["rank"] == "2")
    record, truth = ended(client), produced(client)
    charged = int(record["charged"])
    if profile.startswith("native"):
        assert (record["outcome"], record["rank"]) == ("complete_estimated", "1")
        # An estimate, and so never below the reserve.
        assert truth < charged == int(record["reserved"])
    else:
        known = profile == "inline"
        assert (charged, record["rank"]) == (truth, "3" if known else "2")


def test_a_provider_that_refuses_gives_everything_back(client: StackClient) -> None:
    assert client.post(fake="status=429").status == 429
    record = ended(client)
    assert (record["state"], record["outcome"]) == ("RELEASED", "upstream_refused")
    assert client.counted("tpm") == 0


def test_an_answer_that_breaks_is_charged_and_reconciled(
    client: StackClient, profile: Profile
) -> None:
    fake = f"output=50;break_after=4;chunk_delay_ms=20;label={client.service}"
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        client.post(STREAM, fake=fake)
    eventually(lambda: client.records()[0].get("outcome") == "upstream_broken")
    (record,) = client.records()
    assert record["state"] == "RECONCILING"
    if profile.startswith("native"):
        assert int(record["charged"]) == int(record["reserved"]) > produced(client)
    else:
        # Observe hears of the end a second after the access log.
        eventually(lambda: int(client.records()[0]["charged"]) == produced(client))


def test_a_client_that_leaves_pays_for_what_came(client: StackClient, profile: Profile) -> None:
    fake = f"output=200;hang_after=5;label={client.service}"
    connection = client.connection()
    connection.request("POST", "/v1/chat/completions", json.dumps(STREAM), client.headers(fake))
    read_events(connection.getresponse(), 5)
    connection.close()
    eventually(lambda: client.records()[0].get("outcome") == "client_gone")
    (record,) = client.records()
    if profile.startswith("native"):
        assert int(record["charged"]) == int(record["reserved"]) > produced(client)
    else:
        eventually(lambda: int(client.records()[0]["charged"]) == produced(client))


def test_over_the_limit_is_429_and_the_provider_is_never_called(client: StackClient) -> None:
    client.limit(rpm=1)
    label = f"label={client.service}"
    assert [client.post(fake=label).status for _ in range(2)] == [200, 429]
    assert len(client.journal(client.service)) == 1


def test_a_success_carries_the_six_headers(client: StackClient) -> None:
    headers = client.post().headers
    for noun in ("requests", "tokens"):
        assert headers[f"x-ratelimit-reset-{noun}"].endswith("s")
        assert int(headers[f"x-ratelimit-remaining-{noun}"]) >= 0
