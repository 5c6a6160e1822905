"""What providers report is charged to the token in every profile, whatever the answer's form."""

import json
from typing import Any

import pytest

from tests.support.client import CHAT, StackClient
from tests.support.targets import Promise, assert_charged, produced, settled

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


@pytest.mark.parametrize("case", KNOWN)
def test_what_was_used_is_charged(client: StackClient, case: str) -> None:
    client.limit()
    path, body, fake = KNOWN[case]
    answer = client.post(body, path=path, fake=f"{fake};label={client.service}")
    assert answer.status == 200
    (record,) = settled(client, outcome="complete")
    assert int(record["charged"]) == produced(client) == client.counted("tpm")
    assert record["state"] == "SETTLED"


def test_a_stream_that_does_not_ask_for_usage_shows_none(
    client: StackClient, promise: Promise
) -> None:
    client.limit()
    answer = client.post(STREAM, fake=f"output=23;label={client.service}")
    events = [json.loads(line[6:]) for line in answer.body.split(b"\n\n") if line[6:7] == b"{"]
    assert all(event["choices"] and not event.get("usage") for event in events)
    (record,) = settled(client, knowledge=promise.unasked)
    assert_charged(record, produced(client))
