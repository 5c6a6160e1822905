"""Cohere's own clients, v2 and v1, through the real stack."""

from collections.abc import Iterator
from typing import Any

import cohere
import pytest
from cohere.core.request_options import RequestOptions

from extproc.demo.stack import demo_key
from tests.support.client import StackClient
from tests.support.drift import drift_of, journal_of, script, settled_as_produced
from tests.support.sdk_calls import COUNTED, text

MODEL = "command-a-03-2025"
PROMPT = "Tell me about the river and the old stone bridge."
MESSAGES: Any = [{"role": "user", "content": PROMPT}]
TEXTS = ["the river", "an old stone bridge", "weather"]


@pytest.fixture
def v2(client: StackClient) -> Iterator[cohere.ClientV2]:
    client.limit()
    with cohere.ClientV2(
        api_key=demo_key(client.service), base_url=client.stack.base_url, max_retries=0
    ) as made:
        yield made


@pytest.fixture
def v1(client: StackClient) -> Iterator[cohere.Client]:
    client.limit()
    with cohere.Client(
        api_key=demo_key(client.service), base_url=client.stack.base_url, max_retries=0
    ) as made:
        yield made


def asked(client: StackClient, more: str = "") -> RequestOptions:
    return {"additional_headers": script(client, more), "max_retries": 0}


def test_chat(client: StackClient, v2: cohere.ClientV2) -> None:
    answer = v2.chat(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=30,
        request_options=asked(client, "output=37;cached=5;reasoning=7"),
    )
    assert answer.finish_reason == "MAX_TOKENS"
    assert answer.message.content is not None
    assert answer.message.content[-1].text == text(23)  # type: ignore[union-attr]
    (entry,) = settled_as_produced(client)
    assert answer.usage is not None
    assert answer.usage.billed_units is not None
    assert answer.usage.billed_units.input_tokens == entry.input_tokens
    assert entry.output_tokens_produced == 30


@pytest.mark.parametrize("cut", ["", ";chunk=7,13,2"])
def test_a_chat_stream(client: StackClient, v2: cohere.ClientV2, cut: str) -> None:
    events: list[Any] = list(
        v2.chat_stream(
            model=MODEL,
            messages=MESSAGES,
            request_options=asked(client, f"output=29;reasoning=3{cut}"),
        )
    )
    deltas = [event.delta.message.content for event in events if event.type == "content-delta"]
    assert "".join(delta.text or "" for delta in deltas) == text(26)
    assert events[-1].type == "message-end"
    (entry,) = settled_as_produced(client)
    assert entry.streamed
    assert events[-1].delta.usage.billed_units.output_tokens == 29


def test_chat_of_v1(client: StackClient, v1: cohere.Client) -> None:
    answer = v1.chat(
        message=PROMPT,
        preamble="Be brief.",
        chat_history=[{"role": "USER", "message": "Hello"}],  # type: ignore[list-item]
        max_tokens=20,
        request_options=asked(client, "output=37"),
    )
    assert answer.text == text(20)
    assert answer.finish_reason == "MAX_TOKENS"
    settled_as_produced(client)


@pytest.mark.parametrize("cut", ["", ";chunk=7,13,2"])
def test_a_chat_stream_of_v1(client: StackClient, v1: cohere.Client, cut: str) -> None:
    events: list[Any] = list(
        v1.chat_stream(message=PROMPT, request_options=asked(client, f"output=29{cut}"))
    )
    parts = [event.text for event in events if event.event_type == "text-generation"]
    assert "".join(parts) == text(29)
    assert events[-1].response.text == text(29)
    (entry,) = settled_as_produced(client)
    assert entry.streamed


def test_embeddings_of_both(client: StackClient, v2: cohere.ClientV2, v1: cohere.Client) -> None:
    newer = v2.embed(
        model="embed-v4.0",
        texts=TEXTS,
        input_type="search_document",
        embedding_types=["float"],
        request_options=asked(client),
    )
    assert newer.embeddings.float_ is not None
    assert len(newer.embeddings.float_) == 3
    older: Any = v1.embed(
        model="embed-english-v3.0",
        texts=TEXTS,
        input_type="search_document",
        request_options=asked(client),
    )
    assert len(older.embeddings) == 3
    first, second = settled_as_produced(client, 2)
    assert first.input_tokens == second.input_tokens


def test_rerank(client: StackClient, v2: cohere.ClientV2) -> None:
    """No tokens are reported: what the model reads is what is charged."""
    answer = v2.rerank(
        model="rerank-v3.5", query="a bridge", documents=TEXTS, request_options=asked(client)
    )
    assert [result.index for result in answer.results] == [0, 1, 2]
    settled_as_produced(client, knowledge=COUNTED)


def test_refusals_are_coheres_errors(
    client: StackClient, v2: cohere.ClientV2, v1: cohere.Client
) -> None:
    with pytest.raises(cohere.BadRequestError) as bad:
        v2.chat(model=MODEL, messages=MESSAGES, max_tokens=-1, request_options=asked(client))
    assert "max_tokens" in bad.value.body["message"]
    client.limit(rpm=0)
    options = asked(client)
    calls = (
        lambda: v2.chat(model=MODEL, messages=MESSAGES, request_options=options),
        lambda: list(v2.chat_stream(model=MODEL, messages=MESSAGES, request_options=options)),
        lambda: v1.chat(message=PROMPT, request_options=options),
        lambda: list(v1.chat_stream(message=PROMPT, request_options=options)),
        lambda: v2.embed(
            model="embed-v4.0",
            texts=TEXTS,
            input_type="search_document",
            embedding_types=["float"],
            request_options=options,
        ),
        lambda: v2.rerank(model="rerank-v3.5", query="a", documents=TEXTS, request_options=options),
    )
    for call in calls:
        with pytest.raises(cohere.TooManyRequestsError) as ours:
            call()
        assert "requests per minute" in ours.value.body["message"]
    assert journal_of(client) == []


def test_the_providers_own_errors_release(client: StackClient, v2: cohere.ClientV2) -> None:
    with pytest.raises(cohere.TooManyRequestsError):
        v2.chat(model=MODEL, messages=MESSAGES, request_options=asked(client, "status=429"))
    (record,) = client.settled(1)
    assert record["state"] == "RELEASED"
    assert drift_of(client) == 0


@pytest.mark.parametrize("version", ["v2", "v1"])
def test_an_error_in_a_stream_is_charged_as_far_as_it_came(
    client: StackClient, v2: cohere.ClientV2, v1: cohere.Client, version: str
) -> None:
    options = asked(client, "output=50;error_event_after=20;input=11")
    events: list[Any]
    if version == "v2":
        events = list(v2.chat_stream(model=MODEL, messages=MESSAGES, request_options=options))
        assert events[-1].delta.finish_reason == "ERROR"
    else:
        events = list(v1.chat_stream(message=PROMPT, request_options=options))
        assert events[-1].finish_reason == "ERROR"
    (record,) = client.settled(1)
    (entry,) = journal_of(client)
    assert record["state"] == "RECONCILING"
    assert int(record["charged"]) - int(record["input"]) == entry.output_tokens_produced == 20
