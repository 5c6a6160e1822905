"""Google's own client, of the Gemini API and of Vertex AI, through the real stack."""

from collections.abc import Iterator
from typing import Any

import google.auth.credentials
import pytest
from google import genai
from google.genai import errors, types

from extproc.demo.stack import demo_key
from tests.support.client import StackClient
from tests.support.drift import drift_of, journal_of, script, settled_as_produced
from tests.support.sdk_calls import COUNTED, text

MODEL = "gemini-2.5-flash"
PROMPT = "Tell me about the river and the old stone bridge."


class _Token(google.auth.credentials.Credentials):
    """A credential that never has to be fetched."""

    def __init__(self, token: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.token = token

    def refresh(self, request: object) -> None:
        raise AssertionError("a token that does not end")


@pytest.fixture(params=["gemini", "vertex"])
def google_client(client: StackClient, request: pytest.FixtureRequest) -> Iterator[genai.Client]:
    client.limit()
    # Reading the system's certificates would take a third of a second for each client.
    options = types.HttpOptions(
        base_url=client.stack.base_url,
        client_args={"verify": False},
        async_client_args={"verify": False},
    )
    key = demo_key(client.service)
    if request.param == "vertex":
        made = genai.Client(
            vertexai=True,
            project="a-project",
            location="europe-west1",
            credentials=_Token(key),
            http_options=options,
        )
    else:
        made = genai.Client(api_key=key, http_options=options)
    with made:
        yield made


def config(client: StackClient, more: str = "", **fields: Any) -> types.GenerateContentConfig:
    return types.GenerateContentConfig(
        http_options=types.HttpOptions(headers=script(client, more)), **fields
    )


def test_a_plain_answer(client: StackClient, google_client: genai.Client) -> None:
    answer = google_client.models.generate_content(
        model=MODEL, contents=PROMPT, config=config(client, "output=37;cached=5")
    )
    assert answer.text == text(37)
    (entry,) = settled_as_produced(client)
    usage = answer.usage_metadata
    assert usage is not None
    assert usage.total_token_count == entry.input_tokens + 37
    assert usage.cached_content_token_count == 5
    assert not entry.streamed


@pytest.mark.parametrize("usage", ["normal", "late", "none"])
def test_a_stream(client: StackClient, google_client: genai.Client, usage: str) -> None:
    more = f"output=29;usage={usage}"
    chunks = list(
        google_client.models.generate_content_stream(
            model=MODEL, contents=PROMPT, config=config(client, more)
        )
    )
    assert "".join(chunk.text or "" for chunk in chunks) == text(29)
    if usage == "none":
        (record,) = client.settled(1)
        assert (record["state"], record["rank"]) == ("SETTLED", COUNTED)
        assert int(record["charged"]) - int(record["input"]) == 29
        return
    (entry,) = settled_as_produced(client)
    assert entry.streamed


@pytest.mark.parametrize(
    ("how", "shown"), [("plain", True), ("streamed", True), ("streamed", False)]
)
def test_thoughts_tools_and_candidates_are_charged(
    client: StackClient, google_client: genai.Client, how: str, shown: bool
) -> None:
    asked = config(
        client,
        "output=40;reasoning=12",
        max_output_tokens=30,
        candidate_count=2,
        thinking_config=types.ThinkingConfig(include_thoughts=shown),
        tools=[types.Tool(google_search=types.GoogleSearch())],
    )
    if how == "plain":
        last = google_client.models.generate_content(model=MODEL, contents=PROMPT, config=asked)
    else:
        *_, last = google_client.models.generate_content_stream(
            model=MODEL, contents=PROMPT, config=asked
        )
    usage = last.usage_metadata
    assert usage is not None
    assert usage.thoughts_token_count == 12
    assert usage.tool_use_prompt_token_count
    assert last.candidates is not None
    assert {one.finish_reason for one in last.candidates} == {types.FinishReason.MAX_TOKENS}
    (entry,) = settled_as_produced(client)
    assert entry.output_tokens_produced == 12 + 2 * 18
    assert usage.total_token_count == entry.input_tokens + entry.output_tokens_produced


def test_embeddings(client: StackClient, google_client: genai.Client) -> None:
    several: list[Any] = ["one text", "another text"]
    alone: list[Any] = ["a third one"]
    for contents in (several, alone):
        answer = google_client.models.embed_content(
            model="gemini-embedding-001",
            contents=contents,
            config=types.EmbedContentConfig(http_options=types.HttpOptions(headers=script(client))),
        )
        assert answer.embeddings is not None
        assert answer.embeddings[0].values == [0.25, -0.5, 0.0]
        assert len(answer.embeddings) == len(contents)
    settled_as_produced(client, 2)


def test_a_chat_of_several_turns(client: StackClient, google_client: genai.Client) -> None:
    chat = google_client.chats.create(model=MODEL, config=config(client, "output=9"))
    assert chat.send_message(PROMPT).text == text(9)
    assert "".join(part.text or "" for part in chat.send_message_stream("And then?")) == text(9)
    first, second = settled_as_produced(client, 2)
    assert second.input_tokens > first.input_tokens


def test_counting_is_free(client: StackClient, google_client: genai.Client) -> None:
    counted = google_client.models.count_tokens(
        model=MODEL,
        contents=PROMPT,
        config=types.CountTokensConfig(http_options=types.HttpOptions(headers=script(client))),
    )
    assert counted.total_tokens
    assert [entry.status for entry in journal_of(client)] == [200]
    assert client.records() == []
    assert drift_of(client) == 0


def test_refusals_are_googles_errors(client: StackClient, google_client: genai.Client) -> None:
    generate = google_client.models.generate_content
    with pytest.raises(errors.ClientError) as bad:
        generate(model=MODEL, contents=PROMPT, config=config(client, candidate_count=100_000))
    assert (bad.value.code, bad.value.status) == (400, "INVALID_ARGUMENT")
    assert "candidateCount" in str(bad.value.message)
    client.limit(rpm=0)
    with pytest.raises(errors.ClientError) as ours:
        generate(model=MODEL, contents=PROMPT, config=config(client))
    assert (ours.value.code, ours.value.status) == (429, "RESOURCE_EXHAUSTED")
    assert "requests per minute" in str(ours.value.message)
    with pytest.raises(errors.ClientError) as streamed:
        list(
            google_client.models.generate_content_stream(
                model=MODEL, contents=PROMPT, config=config(client)
            )
        )
    assert (streamed.value.code, streamed.value.status) == (429, "RESOURCE_EXHAUSTED")
    assert journal_of(client) == []
    client.limit()
    with pytest.raises(errors.ServerError) as theirs:
        generate(model=MODEL, contents=PROMPT, config=config(client, "status=503"))
    assert theirs.value.status == "UNAVAILABLE"
    (record,) = client.settled(1)
    assert record["state"] == "RELEASED"
    assert drift_of(client) == 0


@pytest.mark.parametrize("google_client", ["gemini"], indirect=True)
def test_an_error_in_a_stream_is_charged_as_far_as_it_came(
    client: StackClient, google_client: genai.Client
) -> None:
    stream = google_client.models.generate_content_stream(
        model=MODEL, contents=PROMPT, config=config(client, "output=50;error_event_after=20")
    )
    seen: list[types.GenerateContentResponse] = []
    with pytest.raises(errors.ServerError) as caught:
        seen.extend(stream)
    assert (caught.value.code, caught.value.status) == (503, "UNAVAILABLE")
    assert len(seen) == 20
    (record,) = client.settled(1)
    (entry,) = journal_of(client)
    assert entry.output_tokens_produced == 20
    assert int(record["charged"]) == entry.input_tokens + 20
    assert drift_of(client) == 0


@pytest.mark.parametrize("cut", ["", ";chunk=1", ";chunk=7,13,2"])
def test_a_stream_that_is_one_json_array(client: StackClient, cut: str) -> None:
    """Without ``alt=sse``, as Google's older clients ask."""
    client.limit()
    answer = client.post(
        {"contents": [{"role": "user", "parts": [{"text": PROMPT}]}]},
        path=f"/v1beta/models/{MODEL}:streamGenerateContent",
        fake=script(client, f"output=13{cut}")["x-fake"],
        headers={"x-goog-api-key": demo_key(client.service), "authorization": ""},
    )
    assert answer.headers["content-type"] == "application/json"
    parts = [chunk["candidates"][0]["content"]["parts"][0]["text"] for chunk in answer.json]
    assert "".join(parts) == text(13)
    (entry,) = settled_as_produced(client)
    assert entry.streamed


@pytest.mark.parametrize("google_client", ["gemini"], indirect=True)
def test_a_stream_that_breaks_off_is_charged_as_far_as_it_came(
    client: StackClient, google_client: genai.Client
) -> None:
    stream = google_client.models.generate_content_stream(
        model=MODEL,
        contents=PROMPT,
        config=config(client, "output=50;break_after=20;chunk_delay_ms=5"),
    )
    seen: list[types.GenerateContentResponse] = []
    # Which of two HTTP libraries the client uses depends on what is installed.
    with pytest.raises(Exception, match="peer closed connection"):
        seen.extend(stream)
    assert len(seen) == 20
    (record,) = client.settled(1)
    (entry,) = journal_of(client)
    assert entry.output_tokens_produced == 20
    assert int(record["charged"]) == entry.input_tokens + 20
    assert drift_of(client) == 0
