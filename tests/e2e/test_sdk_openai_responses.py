"""OpenAI's client for Responses, through the stack; and OpenAI's own paths as Azure serves them."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from extproc.demo.stack import demo_key
from tests.support.client import StackClient
from tests.support.sdk_calls import COUNTED, Calls, joined, text

CALLS: Calls[openai.OpenAI] = Calls("responses")
AZURE: Calls[openai.AzureOpenAI] = Calls("azure")
PROMPT = "Tell me about the river."
MESSAGES: Any = [{"role": "user", "content": PROMPT}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "name": "weather", "strict": True, "parameters": SCHEMA}]


class City(BaseModel):
    name: str
    people: int


def streamed(client: openai.OpenAI, headers: dict[str, str], **fields: Any) -> Response:
    """The response that the client puts together from a stream."""
    asked = {"model": "gpt-4o", "input": PROMPT, **fields}
    with client.responses.stream(extra_headers=headers, **asked) as stream:
        return stream.get_final_response()


@CALLS.add("openai_responses", script="output=9;reasoning=2;cached=3")
def responses(client: openai.OpenAI, headers: dict[str, str]) -> None:
    answer = client.responses.create(
        model="gpt-4o", input=PROMPT, instructions="Be brief.", extra_headers=headers
    )
    assert (answer.output_text, answer.status) == (text(7), "completed")
    assert answer.usage is not None
    assert answer.usage.output_tokens_details.reasoning_tokens == 2
    assert answer.usage.input_tokens_details.cached_tokens == 3


@CALLS.add("openai_responses", script="output=9;reasoning=2;cached=3")
def responses_stream(client: openai.OpenAI, headers: dict[str, str]) -> None:
    events = list(
        client.responses.create(model="gpt-4o", input=PROMPT, stream=True, extra_headers=headers)
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert joined(deltas) == text(7)


@CALLS.add("openai_responses", script="output=99")
def responses_up_to_the_cap(client: openai.OpenAI, headers: dict[str, str]) -> None:
    answer = client.responses.create(
        model="gpt-4o", input=PROMPT, max_output_tokens=16, extra_headers=headers
    )
    assert (answer.output_text, answer.status) == (text(16), "incomplete")


@CALLS.add("openai_responses", script="output=99")
def responses_stream_up_to_the_cap(client: openai.OpenAI, headers: dict[str, str]) -> None:
    stream = client.responses.create(
        model="gpt-4o", input=PROMPT, max_output_tokens=16, stream=True, extra_headers=headers
    )
    assert [event.type for event in stream][-1] == "response.incomplete"


@CALLS.add("openai_responses")
def responses_with_a_tool(client: openai.OpenAI, headers: dict[str, str]) -> None:
    answer = client.responses.create(
        model="gpt-4o", input=MESSAGES, tools=TOOLS, tool_choice="required", extra_headers=headers
    )
    (call,) = answer.output
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("weather", f'{{"city": "{text(7)}"}}')


@CALLS.add("openai_responses")
def responses_stream_with_a_tool(client: openai.OpenAI, headers: dict[str, str]) -> None:
    (call,) = streamed(client, headers, tools=TOOLS, tool_choice="required").output
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("weather", f'{{"city": "{text(7)}"}}')


@CALLS.add("openai_responses")
def responses_that_are_parsed(client: openai.OpenAI, headers: dict[str, str]) -> None:
    answer = client.responses.parse(
        model="gpt-4o", input=PROMPT, text_format=City, extra_headers=headers
    )
    assert answer.output_parsed == City(name=text(7), people=0)


@CALLS.add("openai_responses")
def responses_stream_that_is_parsed(client: openai.OpenAI, headers: dict[str, str]) -> None:
    answer: Any = streamed(client, headers, text_format=City)
    assert answer.output_parsed == City(name=text(7), people=0)


@CALLS.add("openai_responses", script="output=7;usage=none", knowledge=COUNTED)
def responses_stream_without_usage(client: openai.OpenAI, headers: dict[str, str]) -> None:
    stream = client.responses.create(
        model="gpt-4o", input=PROMPT, stream=True, extra_headers=headers
    )
    deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert joined(deltas) == text(7)


PICTURE: Any = [{"type": "image_generation"}]


@CALLS.add("openai_responses")
def responses_that_draw(client: openai.OpenAI, headers: dict[str, str]) -> None:
    """The picture's tokens stand beside the usage of the model."""
    answer = client.responses.create(
        model="gpt-4o", input=PROMPT, tools=PICTURE, extra_headers=headers
    )
    assert [item.type for item in answer.output] == ["image_generation_call", "message"]
    assert answer.usage is not None
    assert answer.usage.output_tokens == 7
    assert answer.tool_usage is not None
    assert answer.tool_usage.image_gen.output_tokens == 272


@CALLS.add("openai_responses")
def responses_stream_that_draws(client: openai.OpenAI, headers: dict[str, str]) -> None:
    answer = streamed(client, headers, tools=PICTURE)
    assert [item.type for item in answer.output] == ["image_generation_call", "message"]


@CALLS.add("openai_responses")
def responses_compacted(client: openai.OpenAI, headers: dict[str, str]) -> None:
    answer = client.responses.compact(model="gpt-4o", input=PROMPT, extra_headers=headers)
    assert [item.type for item in answer.output] == ["compaction"]


@CALLS.add("openai_decisions")
def decisions(client: openai.OpenAI, headers: dict[str, str]) -> None:
    answer = client.decisions.create(
        model="gpt-6-luna",
        input=PROMPT,
        questions=[{"type": "predicate", "name": "wet", "instructions": "It is about water."}],
        extra_headers=headers,
    )
    assert [(one.type, one.name) for one in answer.answers] == [("predicate", "wet")]
    assert answer.usage.output_tokens == 7


@AZURE.add("openai_chat")
def azure_chat(client: openai.AzureOpenAI, headers: dict[str, str]) -> None:
    answer = client.chat.completions.create(
        model="our-gpt", messages=MESSAGES, extra_headers=headers
    )
    assert (answer.choices[0].message.content, answer.model) == (text(7), "our-gpt")


@AZURE.add("openai_chat")
def azure_chat_stream(client: openai.AzureOpenAI, headers: dict[str, str]) -> None:
    chunks = list(
        client.chat.completions.create(
            model="our-gpt", messages=MESSAGES, stream=True, extra_headers=headers
        )
    )
    assert all(chunk.choices for chunk in chunks)
    assert joined(chunk.choices[0].delta.content for chunk in chunks) == text(7)


@AZURE.add("openai_embeddings")
def azure_embeddings(client: openai.AzureOpenAI, headers: dict[str, str]) -> None:
    answer = client.embeddings.create(model="our-ada", input="a river", extra_headers=headers)
    assert answer.data[0].embedding == [0.25, -0.5, 0.0]


@AZURE.add("openai_responses")
def azure_responses(client: openai.AzureOpenAI, headers: dict[str, str]) -> None:
    answer = client.responses.create(model="our-gpt", input=PROMPT, extra_headers=headers)
    assert answer.output_text == text(7)


@AZURE.add("openai_responses")
def azure_responses_stream(client: openai.AzureOpenAI, headers: dict[str, str]) -> None:
    assert streamed(client, headers, model="our-gpt").output_text == text(7)


@AZURE.add("openai_images")
def azure_images(client: openai.AzureOpenAI, headers: dict[str, str]) -> None:
    answer = client.images.generate(
        model="our-image", prompt="a river", quality="low", extra_headers=headers
    )
    assert answer.usage is not None
    assert answer.usage.output_tokens == 272


@AZURE.add("openai_transcription")
def azure_transcription(client: openai.AzureOpenAI, headers: dict[str, str]) -> None:
    answer = client.audio.transcriptions.create(
        model="our-ears", file=("a.mp3", bytes(8000)), extra_headers=headers
    )
    assert answer.text == text(7)


@pytest.fixture(scope="module")
def azure(sdk_root: StackClient) -> Iterator[openai.AzureOpenAI]:
    """Azure's client sends its key in a header of its own, and deployments in the path."""
    with openai.AzureOpenAI(
        azure_endpoint=sdk_root.stack.base_url,
        api_key=demo_key(sdk_root.service),
        api_version="2025-04-01-preview",
        max_retries=0,
    ) as client:
        yield client


@pytest.mark.parametrize("name", CALLS.by_name)
def test_a_call_is_charged_what_the_provider_produced(sdk_root: StackClient, name: str) -> None:
    CALLS.make(name, sdk_root.openai, sdk_root)


@pytest.mark.parametrize("name", AZURE.by_name)
def test_a_call_of_azures_client_is_charged_what_the_provider_produced(
    sdk_root: StackClient, azure: openai.AzureOpenAI, name: str
) -> None:
    AZURE.make(name, azure, sdk_root)


def test_counting_the_input_is_free(sdk_root: StackClient) -> None:
    reservations = len(sdk_root.records())
    counted = sdk_root.openai.responses.input_tokens.count(
        model="gpt-4o", input=PROMPT, extra_headers={"x-fake": "label=responses-count"}
    )
    assert counted.input_tokens > 0
    assert len(sdk_root.records()) == reservations


def test_the_root_has_what_the_journal_has(sdk_root: StackClient) -> None:
    """Stands last: it looks at all calls until now."""
    assert Calls.drift(sdk_root, CALLS, AZURE) == 0
