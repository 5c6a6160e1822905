"""OpenAI's client for chat, completions, Responses and what has no output, through the stack.

Each call type plain and streamed: the client understands its answer and sees nothing of ours, and
the reservation ends with exactly the tokens that the provider's journal has.
"""

import asyncio
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from tests.support.client import StackClient
from tests.support.sdk_calls import COUNTED, Calls, joined, text

CALLS: Calls[openai.OpenAI] = Calls("openai")
MESSAGES: Any = [{"role": "user", "content": "Tell me about the river."}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


class City(BaseModel):
    name: str
    people: int


@CALLS.add("openai_chat")
def chat(client: openai.OpenAI, headers: dict[str, str]) -> None:
    answer = client.chat.completions.create(
        model="gpt-4o", messages=MESSAGES, extra_headers=headers
    )
    assert answer.choices[0].message.content == text(7)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 7


@CALLS.add("openai_chat")
def chat_stream_that_never_shows_our_usage(client: openai.OpenAI, headers: dict[str, str]) -> None:
    chunks = list(
        client.chat.completions.create(
            model="gpt-4o", messages=MESSAGES, stream=True, extra_headers=headers
        )
    )
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert joined(chunk.choices[0].delta.content for chunk in chunks) == text(7)


@CALLS.add("openai_chat", script="output=7;cached=3;reasoning=2")
def chat_stream_with_usage(client: openai.OpenAI, headers: dict[str, str]) -> None:
    chunks = list(
        client.chat.completions.create(
            model="gpt-4o",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers=headers,
        )
    )
    (usage,) = [chunk.usage for chunk in chunks if chunk.usage is not None]
    assert chunks[-1].usage is usage
    assert usage.completion_tokens == 7
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 2
    assert joined(c.choices[0].delta.content for c in chunks if c.choices) == text(5)


@CALLS.add("openai_chat", script="output=7;usage=none", knowledge=COUNTED)
def chat_stream_without_usage(client: openai.OpenAI, headers: dict[str, str]) -> None:
    stream = client.chat.completions.create(
        model="gpt-4o", messages=MESSAGES, stream=True, extra_headers=headers
    )
    assert joined(chunk.choices[0].delta.content for chunk in stream) == text(7)


@CALLS.add("openai_chat")
def chat_of_several_choices(client: openai.OpenAI, headers: dict[str, str]) -> None:
    answer = client.chat.completions.create(
        model="gpt-4o", messages=MESSAGES, n=3, extra_headers=headers
    )
    said = [choice.message.content for choice in answer.choices]
    assert said == [text(7, start=index) for index in range(3)]


@CALLS.add("openai_chat")
def chat_stream_of_several_choices(client: openai.OpenAI, headers: dict[str, str]) -> None:
    with client.chat.completions.stream(
        model="gpt-4o", messages=MESSAGES, n=3, extra_headers=headers
    ) as stream:
        final = stream.get_final_completion()
    said = [choice.message.content for choice in final.choices]
    assert said == [text(7, start=index) for index in range(3)]


TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "weather", "strict": True, "parameters": PARAMETERS},
    }
]


def _called(answer: ChatCompletion) -> None:
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "weather"
    assert call.function.arguments == f'{{"city": "{text(7)}"}}'


@CALLS.add("openai_chat")
def chat_with_a_tool(client: openai.OpenAI, headers: dict[str, str]) -> None:
    _called(
        client.chat.completions.create(
            model="gpt-4o",
            messages=MESSAGES,
            tools=TOOLS,
            tool_choice="required",
            extra_headers=headers,
        )
    )


@CALLS.add("openai_chat")
def chat_stream_with_a_tool(client: openai.OpenAI, headers: dict[str, str]) -> None:
    with client.chat.completions.stream(
        model="gpt-4o",
        messages=MESSAGES,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "weather"}},
        extra_headers=headers,
    ) as stream:
        final = stream.get_final_completion()
    _called(final)
    assert final.choices[0].message.tool_calls is not None
    (call,) = final.choices[0].message.tool_calls
    assert call.function.parsed_arguments == {"city": text(7)}


@CALLS.add("openai_chat")
def chat_that_is_parsed(client: openai.OpenAI, headers: dict[str, str]) -> None:
    answer = client.chat.completions.parse(
        model="gpt-4o", messages=MESSAGES, response_format=City, extra_headers=headers
    )
    assert answer.choices[0].message.parsed == City(name=text(7), people=0)


@CALLS.add("openai_chat")
def chat_stream_that_is_parsed(client: openai.OpenAI, headers: dict[str, str]) -> None:
    with client.chat.completions.stream(
        model="gpt-4o", messages=MESSAGES, response_format=City, extra_headers=headers
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == City(name=text(7), people=0)


SEEN: Any = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": PIXEL}},
        ],
    }
]


@CALLS.add("openai_chat")
def chat_about_a_picture(client: openai.OpenAI, headers: dict[str, str]) -> None:
    answer = client.chat.completions.create(model="gpt-4o", messages=SEEN, extra_headers=headers)
    assert answer.choices[0].message.content == text(7)


@CALLS.add("openai_chat")
def chat_stream_about_a_picture(client: openai.OpenAI, headers: dict[str, str]) -> None:
    stream = client.chat.completions.create(
        model="gpt-4o", messages=SEEN, stream=True, extra_headers=headers
    )
    assert joined(chunk.choices[0].delta.content for chunk in stream) == text(7)


@CALLS.add("openai_completions")
def completions(client: openai.OpenAI, headers: dict[str, str]) -> None:
    answer = client.completions.create(
        model="gpt-3.5-turbo-instruct", prompt="Once", max_tokens=5, extra_headers=headers
    )
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (text(5), "length")


@CALLS.add("openai_completions")
def completions_stream(client: openai.OpenAI, headers: dict[str, str]) -> None:
    chunks = list(
        client.completions.create(
            model="gpt-3.5-turbo-instruct", prompt="Once", stream=True, extra_headers=headers
        )
    )
    assert joined(chunk.choices[0].text for chunk in chunks) == text(7)
    assert all(chunk.usage is None for chunk in chunks)


@CALLS.add("openai_embeddings")
def embeddings(client: openai.OpenAI, headers: dict[str, str]) -> None:
    answer = client.embeddings.create(
        model="text-embedding-3-small", input=["a river", "a road"], extra_headers=headers
    )
    assert [item.embedding for item in answer.data] == [[0.25, -0.5, 0.0], [0.25, -0.5, 0.125]]


@CALLS.add("openai_moderations", knowledge=COUNTED)
def moderations(client: openai.OpenAI, headers: dict[str, str]) -> None:
    answer = client.moderations.create(input=["a river", "a road"], extra_headers=headers)
    assert [result.flagged for result in answer.results] == [False, False]


@CALLS.add("rerank")
def rerank(client: openai.OpenAI, headers: dict[str, str]) -> None:
    """Served beside OpenAI's API by others, so the client has no method for it."""
    body = {"model": "a-reranker", "query": "a river", "documents": ["water", "bread and music"]}
    answer: Any = client.post("/rerank", body=body, cast_to=object, options={"headers": headers})
    assert [result["index"] for result in answer["results"]] == [0, 1]


@pytest.mark.parametrize("name", CALLS.by_name)
def test_a_call_is_charged_what_the_provider_produced(sdk_root: StackClient, name: str) -> None:
    CALLS.make(name, sdk_root.openai, sdk_root)


async def test_streams_at_once_are_kept_apart(sdk_root: StackClient) -> None:
    async with openai.AsyncOpenAI(
        base_url=sdk_root.openai.base_url,
        api_key=sdk_root.openai.api_key,
        max_retries=0,
    ) as client:

        async def ask(length: int) -> str:
            stream = await client.chat.completions.create(
                model="gpt-4o",
                messages=MESSAGES,
                stream=True,
                extra_headers={"x-fake": f"label=openai-at-once-{length};output={length}"},
            )
            return joined([chunk.choices[0].delta.content async for chunk in stream])

        lengths = range(10, 22)
        said = await asyncio.gather(*(ask(length) for length in lengths))
    assert said == [text(length) for length in lengths]


def test_the_root_has_what_the_journal_has(sdk_root: StackClient) -> None:
    """Stands last: it looks at all calls until now."""
    assert Calls.drift(sdk_root, CALLS) == 0
