"""The main job through real Envoys: reserved, streamed, settled; refused when it must be.

Limits that change, services that are disabled and bodies that cannot be read are admission's alone,
but admission is a filter whose answers each Envoy has to obey."""

import asyncio
import json

import aiohttp
import anthropic
import openai
import pytest

from tests.support.client import CHAT, StackClient, eventually
from tests.support.limits import write_limits
from tests.support.sdk_calls import KNOWN
from tests.support.targets import Promise, assert_charged, labelled, produced, settled

MESSAGES = CHAT["messages"]
NAMES = ("limit", "remaining", "reset")


def test_a_plain_answer_is_charged_as_used(client: StackClient) -> None:
    client.limit(tpm=10_000)
    answer = client.openai.chat.completions.create(
        model="gpt-4o", messages=MESSAGES, extra_headers={"x-fake": "output=37"}
    )
    assert answer.usage is not None
    (record,) = settled(client)
    assert record["state"] == "SETTLED"
    assert record["outcome"] == "complete"
    assert int(record["charged"]) == answer.usage.total_tokens == client.counted("tpm")
    assert client.counted("rpm") == 1


def test_a_success_carries_the_six_headers(client: StackClient) -> None:
    client.limit(rpm=50, tpm=10_000)
    answer = client.post()
    assert answer.status == 200
    assert answer.headers["x-ratelimit-limit-requests"] == "50"
    assert answer.headers["x-ratelimit-remaining-requests"] == "49"
    assert answer.headers["x-ratelimit-limit-tokens"] == "10000"
    assert 0 < int(answer.headers["x-ratelimit-remaining-tokens"]) < 10_000
    for noun in ("requests", "tokens"):
        assert answer.headers[f"x-ratelimit-reset-{noun}"].endswith("s")


def test_the_usage_chunk_that_nobody_asked_for_is_hidden(
    client: StackClient, promise: Promise
) -> None:
    """Or the provider is not asked for it, where it could not be hidden."""
    client.limit()
    stream = client.openai.chat.completions.create(
        model="gpt-4o",
        messages=MESSAGES,
        stream=True,
        extra_headers=labelled(client, "output=11"),
    )
    chunks = list(stream)
    assert all(chunk.choices for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)
    (record,) = settled(client, knowledge=promise.unasked)
    (entry,) = client.journal(client.service)
    assert entry["usage_sent"] is (promise.unasked == KNOWN)
    assert_charged(record, produced(client))
    assert client.counted("tpm") == int(record["charged"])


@pytest.mark.parametrize("cut", ["", ";chunk=1", ";chunk=7,13,2"])
def test_a_hidden_chunk_leaves_every_other_byte_alone(client: StackClient, cut: str) -> None:
    client.limit()
    body = {**CHAT, "stream": True}
    raw = client.post(body, fake="output=5" + cut).body
    assert raw.endswith(b"data: [DONE]\n\n")
    events = [json.loads(line[6:]) for line in raw.split(b"\n\n") if line[6:7] == b"{"]
    assert len(events) >= 5
    assert all(event["choices"] for event in events)


def test_the_usage_chunk_that_was_asked_for_arrives(client: StackClient) -> None:
    client.limit()
    stream = client.openai.chat.completions.create(
        model="gpt-4o",
        messages=MESSAGES,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"x-fake": "output=11"},
    )
    usage = [chunk.usage for chunk in stream if chunk.usage is not None]
    assert usage[-1].completion_tokens == 11
    settled(client)
    assert client.counted("tpm") == usage[-1].total_tokens


@pytest.mark.parametrize("how", ["plain", "streamed"])
def test_anthropic_messages_are_metered(client: StackClient, how: str) -> None:
    client.limit()
    headers = labelled(client, "output=21")
    if how == "streamed":
        with client.anthropic.messages.stream(
            model="claude-sonnet-5-5", max_tokens=100, messages=MESSAGES, extra_headers=headers
        ) as stream:
            assert stream.get_final_message().usage.output_tokens == 21
    else:
        answer = client.anthropic.messages.create(
            model="claude-sonnet-5-5", max_tokens=100, messages=MESSAGES, extra_headers=headers
        )
        assert answer.usage.output_tokens == 21
    (record,) = settled(client)
    (entry,) = client.journal(client.service)
    assert int(record["charged"]) == entry["input_tokens"] + 21


def test_embeddings_and_completions_are_metered(client: StackClient) -> None:
    client.limit()
    embedding = client.openai.embeddings.create(
        model="text-embedding-3-small", input=["hello world", "good morning"]
    )
    settled(client)
    assert client.counted("tpm") == embedding.usage.prompt_tokens
    completion = client.openai.completions.create(model="gpt-3.5-turbo-instruct", prompt="Say hi")
    assert completion.usage is not None
    settled(client, 2)
    total = embedding.usage.prompt_tokens + completion.usage.total_tokens
    assert client.counted("tpm") == total


def test_over_rpm_is_429_and_the_upstream_is_never_called(client: StackClient) -> None:
    client.limit(rpm=2)
    for _ in range(2):
        assert client.post(fake=f"label={client.service}").status == 200
    refused = client.post(fake=f"label={client.service}")
    assert refused.status == 429
    assert refused.json["error"]["code"] == "rate_limit_exceeded"
    assert refused.json["error"]["type"] == "requests"
    assert "requests per minute" in refused.json["error"]["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 65
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers["content-type"] == "application/json"
    settled(client, 2)
    assert len(client.journal(client.service)) == 2
    assert client.counted("rpm") == 2


def test_over_tpm_is_429_for_both_official_clients(client: StackClient) -> None:
    client.limit(tpm=100)
    assert client.post(fake=f"output=60;label={client.service}").status == 200
    settled(client)
    with pytest.raises(openai.RateLimitError) as caught:
        client.openai.chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": "word " * 60}]
        )
    assert caught.value.type == "tokens"
    with pytest.raises(anthropic.RateLimitError) as anthropics:
        client.anthropic.messages.create(
            model="claude-sonnet-5-5",
            max_tokens=10,
            messages=[{"role": "user", "content": "word " * 60}],
        )
    assert anthropics.value.response.headers["retry-after"]
    assert anthropics.value.type == "rate_limit_error"
    assert len(client.journal(client.service)) == 1
    assert len(client.records()) == 1


def test_a_request_that_can_never_fit_is_not_to_be_retried(client: StackClient) -> None:
    client.limit(tpm=20)
    refused = client.post({**CHAT, "messages": [{"role": "user", "content": "word " * 100}]})
    assert refused.status == 429
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers


def test_an_idle_limit_never_refuses_what_could_fit_alone(client: StackClient) -> None:
    client.limit(tpm=12)
    answer = client.post(fake="output=3")
    assert answer.status == 200
    settled(client)
    assert client.counted("tpm") == 12


async def test_200_parallel_requests_against_37_admit_exactly_37(client: StackClient) -> None:
    client.limit(rpm=37)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask() -> int:
            async with session.post(
                f"{client.stack.base_url}/v1/chat/completions",
                json=CHAT,
                headers=client.headers(f"label={client.service}"),
            ) as response:
                await response.read()
                return response.status

        statuses = await asyncio.gather(*(ask() for _ in range(200)))
    assert statuses.count(429) == 163
    assert statuses.count(200) == 37
    assert len(client.journal(client.service)) == 37
    assert client.counted("rpm") == 37


def test_new_limits_hold_for_the_very_next_request(client: StackClient) -> None:
    client.limit(rpm=1)
    assert client.post().status == 200
    assert client.post().status == 429
    client.limit(rpm=3)
    assert client.post().status == 200
    assert client.post().status == 200
    assert client.post().status == 429


def test_a_disabled_service_is_403_until_it_is_enabled(client: StackClient) -> None:
    client.limit()
    assert client.post().status == 200
    client.limit(enabled=False)
    refused = client.post()
    assert refused.status == 403
    assert refused.json["error"]["code"] == "service_disabled"
    client.limit()
    assert client.post().status == 200


def test_an_unknown_service_is_403_and_known_as_soon_as_it_is_made(client: StackClient) -> None:
    refused = client.post()
    assert refused.status == 403
    assert refused.json["error"]["code"] == "unknown_service"
    client.limit()
    assert client.post().status == 200


def test_a_forged_identity_is_removed_before_anyone_looks(client: StackClient) -> None:
    client.limit(rpm=5)
    victim = f"{client.service}-victim"
    write_limits(client.stack, victim, rpm=5, tpm=100_000)
    forged = {"x-tokenweir-service": victim}
    assert client.post(headers=forged).status == 200
    settled(client)
    assert client.counted("rpm") == 1
    assert not list(client.redis.scan_iter(f"rate:*{{{victim}}}*"))
    nobody = {**forged, "authorization": "Bearer wrong"}
    assert client.post(headers=nobody).status == 401


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{not json", None),
        (b"[]", None),
        ({**CHAT, "max_tokens": "many"}, "max_tokens"),
        ({**CHAT, "max_tokens": -1}, "max_tokens"),
        ({**CHAT, "n": 0}, "n"),
        ({"model": "gpt-4o"}, "messages"),
    ],
)
def test_a_bad_body_is_400_naming_the_field_and_takes_nothing(
    client: StackClient, body: object, param: str | None
) -> None:
    client.limit()
    refused = client.post(body)
    assert refused.status == 400
    assert refused.json["error"]["param"] == param
    assert client.records() == []


def test_a_path_that_is_not_metered_is_refused_and_counted(client: StackClient) -> None:
    client.limit()
    before = client.metric("tokenweir_unmetered_total", action="refused")
    refused = client.post(path="/v1/files")
    assert refused.status == 403
    assert refused.json["error"]["code"] == "unmetered_request"
    assert client.metric("tokenweir_unmetered_total", action="refused") == before + 1


def test_a_large_body_passes_and_an_oversized_one_is_413(client: StackClient) -> None:
    client.limit(tpm=100_000_000)
    large = {**CHAT, "messages": [{"role": "user", "content": "word " * 600_000}]}
    assert client.post(large).status == 200
    settled(client)
    assert client.counted("tpm") > 600_000
    assert client.post(b"x" * (17 * 1024 * 1024)).status == 413


def test_a_refusal_is_one_log_line_with_what_a_person_needs(client: StackClient) -> None:
    client.limit(rpm=0)
    assert client.post(path="/v1/chat/completions?key=secret-in-query").status == 429

    def look() -> list[dict[str, object]]:
        lines = [json.loads(line) for line in client.stack.log("serve").splitlines()]
        return [
            line
            for line in lines
            if line["event"] == "refused" and line["service_id"] == client.service
        ]

    (line,) = eventually(look)
    assert line["limit"] == "rpm"
    assert line["status"] == 429
    assert line["request_id"]
    text = client.stack.log("serve")
    assert "secret-in-query" not in text
    assert f"demo-key-{client.service}" not in text
