"""Answers of official clients that do not tell their tokens: what they are charged by design.

See "Rules for contradictions" in docs/providers.md.
"""

from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

from tests.support.client import StackClient
from tests.support.sdk_calls import COUNTED, GUESSED, ended, text


def fake(label: str, script: str = "output=7") -> dict[str, str]:
    return {"x-fake": f"label=estimates-{label};{script}"}


def assert_keeps_its_reserve(stack: StackClient, label: str) -> dict[str, str]:
    """The bytes of the answer do not tell its tokens."""
    _, record = ended(stack, f"estimates-{label}")
    assert record["state"] == "SETTLED"
    assert record["charged"] == record["reserved"]
    assert (record["rank"], record["outcome"]) == (GUESSED, "complete_estimated")
    return record


def test_pictures_without_usage_keep_their_reserve(loose_root: StackClient) -> None:
    client = loose_root.openai
    client.images.generate(
        model="gpt-image-1",
        prompt="a river",
        quality="low",
        n=2,
        extra_headers=fake("plain", "usage=none"),
    )
    plain = assert_keeps_its_reserve(loose_root, "plain")
    assert int(plain["reserved"]) >= 2 * 272
    events = client.images.generate(
        model="gpt-image-1",
        prompt="a river",
        quality="low",
        stream=True,
        extra_headers=fake("stream", "usage=none"),
    )
    assert [event.type for event in events] == ["image_generation.completed"]
    assert int(assert_keeps_its_reserve(loose_root, "stream")["reserved"]) >= 272


def test_pictures_that_are_billed_by_the_piece_are_their_prompt(
    loose_root: StackClient,
) -> None:
    answer = loose_root.openai.images.generate(
        model="dall-e-3", prompt="a river", extra_headers=fake("piece")
    )
    assert answer.usage is None
    assert int(assert_keeps_its_reserve(loose_root, "piece")["charged"]) < 10


def test_sound_keeps_its_reserve(loose_root: StackClient) -> None:
    answer = loose_root.openai.audio.speech.create(
        model="tts-1", voice="alloy", input="A river.", extra_headers=fake("sound")
    )
    assert answer.content.startswith(b"ID3\x04\x00\x01")
    assert len(answer.content) == 2052
    assert_keeps_its_reserve(loose_root, "sound")
    with loose_root.openai.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts",
        voice="alloy",
        input="A river.",
        stream_format="sse",
        extra_headers=fake("sound-events", "output=7;usage=none"),
    ) as stream:
        assert sum(line.startswith("data") for line in stream.iter_lines()) == 8
    assert_keeps_its_reserve(loose_root, "sound-events")


def test_a_transcript_in_plain_text_is_counted(loose_root: StackClient) -> None:
    """Its last line end with it."""
    answer: Any = loose_root.openai.audio.transcriptions.create(
        model="gpt-4o-transcribe",
        file=("a.mp3", bytes(8000)),
        response_format="text",
        extra_headers=fake("transcript", "output=40"),
    )
    assert answer == text(40) + "\n"
    _, record = ended(loose_root, "estimates-transcript")
    assert (record["rank"], record["charged"]) == (COUNTED, str(20 + 41))


def test_responses_in_the_background_keep_their_reserve(loose_root: StackClient) -> None:
    answer = loose_root.openai.responses.create(
        model="gpt-4o",
        input="Tell me about the river.",
        background=True,
        max_output_tokens=100,
        extra_headers=fake("later"),
    )
    assert answer.status == "queued"
    assert int(assert_keeps_its_reserve(loose_root, "later")["reserved"]) > 100


def test_messages_without_usage_are_counted(loose_root: StackClient) -> None:
    """Anthropic has no public tokenizer: near the truth, and marked as an estimate."""
    messages: Any = [{"role": "user", "content": "Tell me about the river."}]
    for script in ("output=40;usage=none", "output=40;usage=null", "output=40;usage=zero"):
        label = script.rpartition("=")[2]
        try:
            with loose_root.anthropic.messages.stream(
                model="claude-opus-4-8",
                max_tokens=90,
                messages=messages,
                extra_headers=fake(label, script),
            ) as stream:
                stream.until_done()
        except (AttributeError, anthropic.AnthropicError):
            pass  # the client itself wants a usage
        entry, record = ended(loose_root, f"estimates-{label}")
        assert (record["rank"], record["outcome"]) == (COUNTED, "complete_estimated")
        assert entry.output_tokens_produced == 40
        assert 40 <= int(record["charged"]) - int(record["input"]) <= 80


def test_texts_of_chat_without_usage_are_counted_exactly(loose_root: StackClient) -> None:
    """OpenAI's tokenizer is public. Also where the client leaves the choice to a proxy's usage."""
    messages: Any = [{"role": "user", "content": "Tell me about the river."}]
    for mode in ("none", "null", "zero"):
        stream = loose_root.openai.chat.completions.create(
            model="gpt-4o",
            messages=messages,
            stream=True,
            n=2,
            extra_headers=fake(f"chat-{mode}", f"output=40;usage={mode}"),
        )
        assert isinstance(stream, openai.Stream)
        assert all(chunk.choices for chunk in stream)
        entry, record = ended(loose_root, f"estimates-chat-{mode}")
        assert int(record["charged"]) == entry.input_tokens + 80
        assert record["rank"] == COUNTED


def _chat(client: openai.OpenAI, headers: dict[str, str]) -> openai.Stream[Any]:
    messages: Any = [{"role": "user", "content": "Tell me about the river."}]
    return client.chat.completions.create(
        model="gpt-4o", messages=messages, stream=True, extra_headers=headers
    )


def _responses(client: openai.OpenAI, headers: dict[str, str]) -> openai.Stream[Any]:
    return client.responses.create(
        model="gpt-4o", input="Tell me about the river.", stream=True, extra_headers=headers
    )


def _transcription(client: openai.OpenAI, headers: dict[str, str]) -> openai.Stream[Any]:
    return client.audio.transcriptions.create(
        model="gpt-4o-transcribe",
        file=("a.mp3", bytes(8000)),
        stream=True,
        extra_headers=headers,
    )


@pytest.mark.parametrize("ask", [_chat, _responses, _transcription])
def test_a_client_that_leaves_is_charged_what_was_streamed_until_then(
    loose_root: StackClient, ask: Callable[[openai.OpenAI, dict[str, str]], openai.Stream[Any]]
) -> None:
    label = f"gone{ask.__name__}"
    with ask(loose_root.openai, fake(label, "output=40;hang_after=5")) as stream:
        seen = 0
        for event in stream:
            seen += " " in str(_delta_of(event))
            if seen == 5:
                break
    entry, record = ended(loose_root, f"estimates-{label}")
    assert entry.output_tokens_produced == 5
    assert int(record["charged"]) == entry.input_tokens + 5
    assert record["outcome"] in ("cut", "client_gone")


def _delta_of(event: Any) -> object:
    """The words of an event; they are what has a space in it."""
    if hasattr(event, "choices"):
        return event.choices[0].delta.content or ""
    return getattr(event, "delta", "")
