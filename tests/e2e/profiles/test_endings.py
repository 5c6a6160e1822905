"""Every way a request can end, through real Envoys: one settlement each, and the right one."""

import http.client
import json
import select

import openai
import pytest

from tests.support.client import CHAT, StackClient, eventually
from tests.support.targets import Promise, assert_charged, labelled, produced, settled

STREAM = {**CHAT, "stream": True}


def read_events(response: http.client.HTTPResponse, count: int) -> None:
    """Read until ``count`` events with text have arrived."""
    seen = 0
    while seen < count:
        line = response.readline()
        assert line, "the answer ended early"
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get(
            "content"
        ):
            seen += 1


@pytest.mark.parametrize("chunks", [1, 7])
def test_a_client_that_leaves_pays_for_what_was_streamed(
    client: StackClient, promise: Promise, chunks: int
) -> None:
    client.limit()
    connection = client.connection()
    fake = f"output=200;hang_after={chunks};label={client.service}"
    connection.request("POST", "/v1/chat/completions", json.dumps(STREAM), client.headers(fake))
    read_events(connection.getresponse(), chunks)
    assert client.pending() == 1
    connection.close()
    (record,) = settled(client, knowledge=promise.unreported, outcome="client_gone")
    (entry,) = client.journal(client.service)
    assert entry["ending"] == "client_gone"
    assert entry["output_tokens_produced"] == chunks
    assert_charged(record, entry["input_tokens"] + chunks)
    assert client.counted("tpm") == int(record["charged"])
    assert client.counted("rpm") == 1


def test_an_upstream_that_breaks_in_mid_stream_is_charged_and_reconciled(
    client: StackClient, promise: Promise
) -> None:
    client.limit()
    fake = f"output=50;break_after=4;chunk_delay_ms=40;label={client.service}"
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        client.post(STREAM, fake=fake)
    (record,) = settled(client, knowledge=promise.unreported, outcome="upstream_broken")
    (entry,) = client.journal(client.service)
    assert_charged(record, entry["input_tokens"] + 4)
    assert record["state"] == "RECONCILING"
    assert client.counted("tpm") == int(record["charged"])


@pytest.mark.parametrize("script", ["status=500", "status=400", "status=429;retry_after=7"])
def test_an_upstream_that_refuses_costs_a_request_but_no_tokens(
    client: StackClient, script: str
) -> None:
    client.limit()
    answer = client.post(fake=script)
    assert answer.status == int(script.partition("=")[2].partition(";")[0])
    assert "provider" in answer.json["error"]["message"]
    (record,) = settled(client, outcome="upstream_refused")
    assert record["state"] == "RELEASED"
    assert client.counted("tpm") == 0
    assert client.counted("rpm") == 1


def test_an_upstream_that_hangs_up_before_it_answers_is_released(client: StackClient) -> None:
    client.limit()
    assert client.post(fake="reset=before_headers").status == 503
    (record,) = settled(client)
    assert record["state"] == "RELEASED"
    assert client.counted("tpm") == 0


@pytest.mark.parametrize("usage", ["none", "null", "zero"])
@pytest.mark.parametrize("streamed", ["plain", "streamed"])
def test_an_answer_without_usage_is_counted_by_us_or_estimated(
    client: StackClient, promise: Promise, usage: str, streamed: str
) -> None:
    client.limit()
    body = STREAM if streamed == "streamed" else CHAT
    answer = client.post(body, fake=f"output=23;usage={usage};label={client.service}")
    assert answer.status == 200
    (record,) = settled(client, knowledge=promise.unreported, outcome="complete_estimated")
    assert_charged(record, produced(client))
    assert not list(client.redis.scan_iter(f"usage:output:{{{client.service}}}:*"))


def test_usage_in_every_chunk_is_not_added_up(client: StackClient) -> None:
    """The provider tells it though nobody asked."""
    client.limit()
    fake = f"output=31;usage=every_chunk;label={client.service}"
    assert client.post(STREAM, fake=fake).status == 200
    (record,) = settled(client)
    assert_charged(record, produced(client))


def test_an_error_event_instead_of_an_answer_gives_everything_back(
    client: StackClient, promise: Promise
) -> None:
    """Or keeps the reserve, where nobody reads it."""
    client.limit()
    if not promise.reads_errors:
        # Read to its end: the official client leaves at the event, which may come to Envoy first.
        body = client.post(STREAM, fake=f"error_event_after=0;label={client.service}").body
        assert b'"error"' in body
        (record,) = settled(client, knowledge=promise.unreported, outcome="complete_estimated")
        assert_charged(record, produced(client))
        assert client.counted("tpm") == int(record["charged"])
        return
    with pytest.raises(openai.APIError):
        list(
            client.openai.chat.completions.create(
                model="gpt-4o",
                messages=CHAT["messages"],
                stream=True,
                extra_headers=labelled(client, "error_event_after=0"),
            )
        )
    (record,) = settled(client)
    assert record["state"] == "RELEASED"
    assert client.counted("tpm") == 0


def test_history_is_the_next_estimate(client: StackClient) -> None:
    """Ten full minutes before this one count, the current one does not."""
    client.limit()
    seconds, _ = client.redis.time()
    import datetime

    minutes = [
        datetime.datetime.fromtimestamp(seconds - 60 * ago, tz=datetime.UTC).strftime("%Y%m%d%H%M")
        for ago in (1, 5)
    ]
    for minute, count, tokens in zip(minutes, (1, 9), (1000, 900), strict=True):
        key = f"usage:output:{{{client.service}}}:{minute}"
        client.redis.hset(key, mapping={"count": count, "output_tokens": tokens})
        client.redis.expire(key, 900)
    assert client.post().status == 200
    (record,) = settled(client)
    # 1900 tokens in 10 answers; the mean of the minutes' means would be 550.
    assert int(record["reserved"]) - int(record["input"]) == 190


def test_the_clients_own_cap_bounds_the_reserve(client: StackClient) -> None:
    client.limit()
    assert client.post({**CHAT, "max_tokens": 3, "n": 2}).status == 200
    (record,) = settled(client)
    assert int(record["reserved"]) - int(record["input"]) == 6


def test_clients_that_leave_around_the_decision_leave_nothing_open(client: StackClient) -> None:
    """Envoy may give a request up after we admitted it and before it has our answer."""
    client.limit(rpm=100_000, tpm=10_000_000)
    body = json.dumps(STREAM)
    for number in range(60):
        connection = client.connection()
        fake = "output=3;delay_ms=50"
        connection.request("POST", "/v1/chat/completions", body, client.headers(fake))
        # From before Envoy has read the request to after the provider has it.
        select.select([], [], [], (number % 30) * 0.0005)
        connection.close()
    eventually(lambda: client.pending() == 0)
    outcomes = {record.get("outcome") for record in client.records()}
    assert outcomes <= {"not_forwarded", "client_gone"}
    charged = sum(int(record["charged"]) for record in client.records())
    assert client.counted("tpm") == charged


def test_a_header_that_is_not_text_is_400(client: StackClient) -> None:
    client.limit()
    refused = client.post(headers={"content-type": "application/json\xff"})
    assert refused.status == 400
    assert refused.json["error"]["code"] == "invalid_header"
    assert client.records() == []
