"""Ollama's own client, through the real stack."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import ollama
import pytest

from extproc.demo.stack import demo_key
from tests.support.client import StackClient
from tests.support.drift import drift_of, journal_of, script, settled_as_produced
from tests.support.sdk_calls import text

MODEL = "llama3.2:3b"
PROMPT = "Tell me about the river and the old stone bridge."
MESSAGES = [{"role": "user", "content": PROMPT}]
Scripted = Callable[..., ollama.Client]


@pytest.fixture
def scripted(client: StackClient) -> Iterator[Scripted]:
    """Makes a client whose requests carry a script."""
    client.limit()
    key = {"authorization": f"Bearer {demo_key(client.service)}"}
    with ExitStack() as opened:

        def make(more: str = "") -> ollama.Client:
            made = ollama.Client(client.stack.base_url, headers=key | script(client, more))
            opened.callback(made.close)
            return made

        yield make


def test_chat(client: StackClient, scripted: Scripted) -> None:
    answer = scripted("output=37;reasoning=6").chat(
        model=MODEL, messages=MESSAGES, options={"num_predict": 30}
    )
    assert answer.message.content == text(24)
    assert answer.message.thinking
    assert answer.done_reason == "length"
    (entry,) = settled_as_produced(client)
    assert (answer.prompt_eval_count, answer.eval_count) == (entry.input_tokens, 30)
    assert not entry.streamed


@pytest.mark.parametrize("cut", ["", ";chunk=7,13,2"])
def test_a_chat_stream(client: StackClient, scripted: Scripted, cut: str) -> None:
    parts = list(
        scripted(f"output=29;reasoning=4{cut}").chat(model=MODEL, messages=MESSAGES, stream=True)
    )
    assert "".join(part.message.content or "" for part in parts) == text(25)
    assert parts[-1].eval_count == 29
    (entry,) = settled_as_produced(client)
    assert entry.streamed


def test_generate(client: StackClient, scripted: Scripted) -> None:
    maker = scripted("output=17")
    answer = maker.generate(model=MODEL, prompt=PROMPT, system="Be brief.")
    assert answer.response == text(17)
    settled_as_produced(client)
    parts = list(maker.generate(model=MODEL, prompt=PROMPT, stream=True))
    assert "".join(part.response or "" for part in parts) == text(17)
    plain, streamed = settled_as_produced(client, 2)
    assert (plain.streamed, streamed.streamed) == (False, True)


def test_it_streams_unless_told_not_to(client: StackClient) -> None:
    client.limit()
    answer = client.post(
        {"model": MODEL, "messages": MESSAGES},
        path="/api/chat",
        fake=script(client, "output=9")["x-fake"],
    )
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.body.count(b"\n") == 10
    (entry,) = settled_as_produced(client)
    assert entry.streamed


def test_embeddings(client: StackClient, scripted: Scripted) -> None:
    answer = scripted().embed(model="nomic-embed-text", input=["the river", "a bridge"])
    assert len(answer.embeddings) == 2
    (entry,) = settled_as_produced(client)
    assert answer.prompt_eval_count == entry.input_tokens


def test_refusals_are_ollamas_errors(client: StackClient, scripted: Scripted) -> None:
    api = scripted()
    with pytest.raises(ollama.ResponseError) as bad:
        api.chat(model=MODEL, messages=MESSAGES, options={"num_predict": 10**12})
    assert bad.value.status_code == 400
    assert bad.value.error.startswith("'options.num_predict'")
    client.limit(rpm=0)
    calls = (
        lambda: api.chat(model=MODEL, messages=MESSAGES),
        lambda: list(api.chat(model=MODEL, messages=MESSAGES, stream=True)),
        lambda: api.generate(model=MODEL, prompt=PROMPT),
        lambda: api.embed(model=MODEL, input=PROMPT),
    )
    for call in calls:
        with pytest.raises(ollama.ResponseError) as ours:
            call()
        assert ours.value.status_code == 429
        assert ours.value.error.startswith("Rate limit reached for service")
    assert journal_of(client) == []


def test_an_error_in_a_stream_is_charged_as_far_as_it_came(
    client: StackClient, scripted: Scripted
) -> None:
    api = scripted("output=50;error_event_after=20;input=11")
    seen: list[ollama.ChatResponse] = []
    with pytest.raises(ollama.ResponseError, match="while running the model"):
        seen.extend(api.chat(model=MODEL, messages=MESSAGES, stream=True))
    assert len(seen) == 20
    (record,) = client.settled(1)
    (entry,) = journal_of(client)
    assert record["state"] == "RECONCILING"
    assert int(record["charged"]) - int(record["input"]) == entry.output_tokens_produced == 20


def test_the_providers_own_errors_release(client: StackClient, scripted: Scripted) -> None:
    with pytest.raises(ollama.ResponseError) as theirs:
        scripted("status=503").chat(model=MODEL, messages=MESSAGES)
    assert theirs.value.status_code == 503
    (record,) = client.settled(1)
    assert record["state"] == "RELEASED"
    assert drift_of(client) == 0
