"""Anthropic's own clients of AWS Bedrock and of Vertex AI, through the real stack."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from extproc.demo.stack import demo_key
from tests.support.client import StackClient
from tests.support.drift import journal_of, script, settled_as_produced
from tests.support.sdk_calls import text

Cloud = anthropic.AnthropicBedrock | anthropic.AnthropicVertex
FORMATS = {
    "bedrock": ("bedrock_invoke", "bedrock_invoke_stream"),
    "vertex": ("vertex_anthropic_messages", "vertex_anthropic_messages"),
}
MODELS = {
    "bedrock": "anthropic.claude-sonnet-4-20250514-v1:0",
    "vertex": "claude-sonnet-4@20250514",
}
ASKED: dict[str, Any] = {
    "max_tokens": 30,
    "messages": [{"role": "user", "content": "Tell me about the river."}],
}


@pytest.fixture(params=["bedrock", "vertex"])
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def cloud(client: StackClient, name: str) -> Iterator[Cloud]:
    client.limit()
    key, url = demo_key(client.service), client.stack.base_url
    made: Cloud
    if name == "bedrock":
        made = anthropic.AnthropicBedrock(
            api_key=key, aws_region="eu-central-1", base_url=url, max_retries=0
        )
    else:
        made = anthropic.AnthropicVertex(
            access_token=key,
            project_id="a-project",
            region="europe-west1",
            base_url=f"{url}/v1",
            max_retries=0,
        )
    with made:
        yield made


def test_messages(client: StackClient, cloud: Cloud, name: str) -> None:
    answer = cloud.messages.create(
        model=MODELS[name], extra_headers=script(client, "output=37;cached=5;written=2"), **ASKED
    )
    assert answer.content[-1].text == text(30)
    assert answer.stop_reason == "max_tokens"
    (entry,) = settled_as_produced(client)
    assert (entry.model, entry.streamed) == (MODELS[name], False)
    usage = answer.usage
    read, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    assert usage.input_tokens + read + written == entry.input_tokens
    assert client.records()[0]["wire_format"] == FORMATS[name][0]


def test_a_stream_of_messages(client: StackClient, cloud: Cloud, name: str) -> None:
    events = list(
        cloud.messages.create(
            model=MODELS[name],
            stream=True,
            extra_headers=script(client, "output=21;cached=5;chunk=7,13,2"),
            **ASKED,
        )
    )
    parts = [event.delta.text for event in events if event.type == "content_block_delta"]
    assert "".join(parts) == text(21)
    assert events[-1].type == "message_stop"
    (entry,) = settled_as_produced(client)
    assert entry.streamed
    assert client.records()[0]["wire_format"] == FORMATS[name][1]


def test_a_refusal_is_a_rate_limit_error(client: StackClient, cloud: Cloud, name: str) -> None:
    client.limit(rpm=0)
    for stream in (False, True):
        with pytest.raises(anthropic.RateLimitError) as caught:
            cloud.messages.create(
                model=MODELS[name], stream=stream, extra_headers=script(client), **ASKED
            )
        assert "requests per minute" in caught.value.message
    assert journal_of(client) == []
