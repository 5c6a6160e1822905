"""Anthropic's client for messages and what stands beside them, through the stack.

Each call type plain and streamed: the client understands its answer, and the reservation ends with
exactly the tokens that the provider's journal has.
"""

import asyncio
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel

from tests.support.client import StackClient
from tests.support.sdk_calls import Calls, text

CALLS: Calls[anthropic.Anthropic] = Calls("anthropic")
MODEL = "claude-opus-4-8"
MESSAGES: Any = [{"role": "user", "content": "Tell me about the river."}]
ASKED: dict[str, Any] = {"model": MODEL, "max_tokens": 90, "messages": MESSAGES}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [{"name": "weather", "description": "Of a city.", "input_schema": SCHEMA}]
SEEN: Any = [
    {
        "role": "user",
        "content": [
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
            },
            {"type": "text", "text": "What is this?"},
        ],
    }
]
COMPACTS: dict[str, Any] = {
    "betas": ["compact-2026-01-12"],
    "context_management": {"edits": [{"type": "compact_20260112"}]},
}


class City(BaseModel):
    name: str
    people: int


def streamed(client: anthropic.Anthropic, headers: dict[str, str], **fields: Any) -> Any:
    """The message that the client puts together from a stream."""
    asked = {**ASKED, **fields}
    with client.messages.stream(extra_headers=headers, **asked) as stream:
        return stream.get_final_message()


def said(message: Any) -> str:
    """The text of a message; its blocks have to be of these types only."""
    assert {block.type for block in message.content} <= {"thinking", "text", "compaction"}
    return "".join(block.text for block in message.content if block.type == "text")


@CALLS.add("anthropic_messages", script="output=7;cached=4;written=3")
def messages(client: anthropic.Anthropic, headers: dict[str, str]) -> None:
    message = client.messages.create(**ASKED, system="Be brief.", extra_headers=headers)
    assert (said(message), message.stop_reason) == (text(7), "end_turn")
    usage = message.usage
    assert (usage.output_tokens, usage.cache_read_input_tokens) == (7, 4)
    assert usage.cache_creation_input_tokens == 3


@CALLS.add("anthropic_messages", script="output=7;cached=4;written=3")
def messages_stream(client: anthropic.Anthropic, headers: dict[str, str]) -> None:
    message = streamed(client, headers, system="Be brief.")
    assert (said(message), message.usage.output_tokens) == (text(7), 7)


@CALLS.add("anthropic_messages")
def messages_stream_of_raw_events(client: anthropic.Anthropic, headers: dict[str, str]) -> None:
    """Nothing is taken out of Anthropic's streams: usage comes without being asked for."""
    kinds = [e.type for e in client.messages.create(**ASKED, stream=True, extra_headers=headers)]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_delta") == 7


@CALLS.add("anthropic_messages", script="output=99")
def messages_up_to_the_cap(client: anthropic.Anthropic, headers: dict[str, str]) -> None:
    message = client.messages.create(
        model=MODEL, max_tokens=5, messages=MESSAGES, extra_headers=headers
    )
    assert (said(message), message.stop_reason) == (text(5), "max_tokens")


@CALLS.add("anthropic_messages", script="output=9;reasoning=4")
def messages_with_thoughts(client: anthropic.Anthropic, headers: dict[str, str]) -> None:
    message = client.messages.create(
        **ASKED, thinking={"type": "enabled", "budget_tokens": 1024}, extra_headers=headers
    )
    assert message.content[0].type == "thinking"
    assert (message.content[0].thinking, said(message)) == (text(4, start=1), text(5))


@CALLS.add("anthropic_messages", script="output=9;reasoning=4")
def messages_stream_with_thoughts(client: anthropic.Anthropic, headers: dict[str, str]) -> None:
    message = streamed(client, headers, thinking={"type": "enabled", "budget_tokens": 1024})
    assert (message.content[0].thinking, said(message)) == (text(4, start=1), text(5))


@CALLS.add("anthropic_messages")
def messages_with_a_tool(client: anthropic.Anthropic, headers: dict[str, str]) -> None:
    message = client.messages.create(
        **ASKED, tools=TOOLS, tool_choice={"type": "any"}, extra_headers=headers
    )
    (call,) = message.content
    assert call.type == "tool_use"
    assert (call.name, call.input, message.stop_reason) == (
        "weather",
        {"city": text(7)},
        "tool_use",
    )


@CALLS.add("anthropic_messages")
def messages_stream_with_a_tool(client: anthropic.Anthropic, headers: dict[str, str]) -> None:
    choice = {"type": "tool", "name": "weather"}
    (call,) = streamed(client, headers, tools=TOOLS, tool_choice=choice).content
    assert (call.type, call.name, call.input) == ("tool_use", "weather", {"city": text(7)})


@CALLS.add("anthropic_messages")
def messages_about_a_picture(client: anthropic.Anthropic, headers: dict[str, str]) -> None:
    message = client.messages.create(
        model=MODEL, max_tokens=90, messages=SEEN, extra_headers=headers
    )
    assert said(message) == text(7)


@CALLS.add("anthropic_messages")
def messages_stream_about_a_picture(client: anthropic.Anthropic, headers: dict[str, str]) -> None:
    assert said(streamed(client, headers, messages=SEEN)) == text(7)


@CALLS.add("anthropic_messages")
def messages_that_are_parsed(client: anthropic.Anthropic, headers: dict[str, str]) -> None:
    message = client.messages.parse(**ASKED, output_format=City, extra_headers=headers)
    assert message.parsed_output == City(name=text(7), people=0)


@CALLS.add("anthropic_messages")
def messages_stream_that_is_parsed(client: anthropic.Anthropic, headers: dict[str, str]) -> None:
    message = streamed(client, headers, output_format=City)
    assert message.parsed_output == City(name=text(7), people=0)


@CALLS.add("anthropic_messages")
def messages_that_compact(client: anthropic.Anthropic, headers: dict[str, str]) -> None:
    """Its tokens stand beside the totals."""
    message = client.beta.messages.create(**ASKED, **COMPACTS, extra_headers=headers)
    assert (said(message), message.usage.output_tokens) == (text(7), 7)
    assert [one.type for one in message.usage.iterations or ()] == ["compaction", "message"]


@CALLS.add("anthropic_messages")
def messages_stream_that_compacts(client: anthropic.Anthropic, headers: dict[str, str]) -> None:
    with client.beta.messages.stream(**ASKED, **COMPACTS, extra_headers=headers) as stream:
        message = stream.get_final_message()
    assert [block.type for block in message.content] == ["compaction", "text"]
    assert said(message) == text(7)


@CALLS.add("anthropic_messages")
def messages_with_an_advisor(client: anthropic.Anthropic, headers: dict[str, str]) -> None:
    advisor: Any = {"type": "advisor_20260301", "name": "advisor", "model": MODEL}
    message = client.beta.messages.create(
        **ASKED, tools=[advisor], betas=["advisor-tool-2026-03-01"], extra_headers=headers
    )
    assert (said(message), message.usage.output_tokens) == (text(7), 7)


@pytest.mark.parametrize("name", CALLS.by_name)
def test_a_call_is_charged_what_the_provider_produced(sdk_root: StackClient, name: str) -> None:
    CALLS.make(name, sdk_root.anthropic, sdk_root)


async def test_streams_at_once_are_kept_apart(sdk_root: StackClient) -> None:
    async with anthropic.AsyncAnthropic(
        base_url=sdk_root.anthropic.base_url,
        api_key=sdk_root.anthropic.api_key,
        max_retries=0,
    ) as client:

        async def ask(length: int) -> str:
            headers = {"x-fake": f"label=anthropic-at-once-{length};output={length}"}
            async with client.messages.stream(**ASKED, extra_headers=headers) as stream:
                return said(await stream.get_final_message())

        lengths = range(10, 22)
        found = await asyncio.gather(*(ask(length) for length in lengths))
    assert found == [text(length) for length in lengths]


def test_counting_is_free_and_batches_are_refused_and_counted(sdk_root: StackClient) -> None:
    reservations = len(sdk_root.records())
    counted = sdk_root.anthropic.messages.count_tokens(
        model=MODEL, messages=MESSAGES, extra_headers={"x-fake": "label=anthropic-count"}
    )
    assert counted.input_tokens > 0
    unmetered = {"reason": "anthropic_batches"}
    before = sdk_root.metric("tokenweir_unmetered_total", **unmetered)
    request: Any = {"custom_id": "one", "params": ASKED}
    with pytest.raises(anthropic.PermissionDeniedError) as refused:
        sdk_root.anthropic.messages.batches.create(requests=[request])
    assert refused.value.type == "permission_error"
    assert sdk_root.metric("tokenweir_unmetered_total", **unmetered) == before + 1
    assert len(sdk_root.records()) == reservations


def test_the_root_has_what_the_journal_has(sdk_root: StackClient) -> None:
    """Stands last: it looks at all calls until now."""
    assert Calls.drift(sdk_root, CALLS) == 0
