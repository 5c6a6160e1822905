"""OpenAI's client for images and sound, through the stack."""

import base64
import io
import json
import wave
from typing import Any

import openai
import pytest

from tests.support.client import StackClient
from tests.support.sdk_calls import COUNTED, Calls, joined, text

CALLS: Calls[openai.OpenAI] = Calls("media")
PIXEL = base64.b64decode("iVBORw0KGgo=")


def _three_seconds() -> bytes:
    """A file as long as three seconds of sound, its header included."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(3 * 16_000 - 44))
    return file.getvalue()


SOUND = ("a.wav", _three_seconds())


@CALLS.add("openai_images")
def images(client: openai.OpenAI, headers: dict[str, str]) -> None:
    answer = client.images.generate(
        model="gpt-image-1", prompt="a river", quality="low", n=2, extra_headers=headers
    )
    assert [base64.b64decode(image.b64_json or "") for image in answer.data or ()] == [PIXEL] * 2
    assert answer.usage is not None
    assert answer.usage.output_tokens == 544


@CALLS.add("openai_images")
def images_stream(client: openai.OpenAI, headers: dict[str, str]) -> None:
    events = list(
        client.images.generate(
            model="gpt-image-1",
            prompt="a river",
            quality="medium",
            partial_images=2,
            stream=True,
            extra_headers=headers,
        )
    )
    assert [event.type for event in events] == [
        "image_generation.partial_image",
        "image_generation.partial_image",
        "image_generation.completed",
    ]
    assert events[-1].type == "image_generation.completed"
    assert events[-1].usage.output_tokens == 1256


@CALLS.add("openai_images")
def images_edited(client: openai.OpenAI, headers: dict[str, str]) -> None:
    """A form with two pictures."""
    answer = client.images.edit(
        model="gpt-image-1",
        image=[("a.png", PIXEL), ("b.png", PIXEL)],
        prompt="more water",
        quality="low",
        extra_headers=headers,
    )
    assert answer.usage is not None
    assert answer.usage.input_tokens_details.image_tokens == 646


@CALLS.add("openai_images")
def images_edited_stream(client: openai.OpenAI, headers: dict[str, str]) -> None:
    events = client.images.edit(
        model="gpt-image-1",
        image=("a.png", PIXEL),
        prompt="more water",
        quality="low",
        partial_images=1,
        stream=True,
        extra_headers=headers,
    )
    assert [event.type for event in events] == ["image_edit.partial_image", "image_edit.completed"]


@CALLS.add("openai_images")
def images_as_svg(client: openai.OpenAI, headers: dict[str, str]) -> None:
    """The model that writes the picture is reported beside the usage."""
    answer = client.images.generate(
        model="gpt-image-2",
        prompt="a river",
        quality="low",
        output_format="svg",
        extra_headers=headers,
    )
    assert answer.usage is not None
    assert answer.svg_usage is not None
    assert (answer.usage.output_tokens, answer.svg_usage.output_tokens) == (272, 400)


@CALLS.add("openai_transcription")
def transcription(client: openai.OpenAI, headers: dict[str, str]) -> None:
    answer = client.audio.transcriptions.create(
        model="gpt-4o-transcribe", file=SOUND, prompt="A river.", extra_headers=headers
    )
    assert answer.text == text(7)
    assert answer.usage is not None
    assert answer.usage.type == "tokens"


@CALLS.add("openai_transcription")
def transcription_stream(client: openai.OpenAI, headers: dict[str, str]) -> None:
    events = list(
        client.audio.transcriptions.create(
            model="gpt-4o-transcribe", file=SOUND, stream=True, extra_headers=headers
        )
    )
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert joined(deltas) == text(7)
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == text(7)


@CALLS.add("openai_transcription", knowledge=COUNTED)
def transcription_by_the_second(client: openai.OpenAI, headers: dict[str, str]) -> None:
    """whisper-1 reports seconds, which are no tokens."""
    answer: Any = client.audio.transcriptions.create(
        model="whisper-1", file=SOUND, response_format="verbose_json", extra_headers=headers
    )
    assert (answer.text, answer.usage.type) == (text(7), "duration")


@CALLS.add("openai_transcription", script="output=7;usage=none", knowledge=COUNTED)
def translation(client: openai.OpenAI, headers: dict[str, str]) -> None:
    with pytest.warns(DeprecationWarning, match="deprecated"):
        answer = client.audio.translations.create(
            model="whisper-1", file=SOUND, extra_headers=headers
        )
    assert answer.text == text(7)


@CALLS.add("openai_speech")
def speech_stream(client: openai.OpenAI, headers: dict[str, str]) -> None:
    """Usage comes with the last event."""
    with client.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts",
        voice="alloy",
        input="A river.",
        stream_format="sse",
        extra_headers=headers,
    ) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data")]
    assert [event["type"] for event in events] == ["speech.audio.delta"] * 7 + ["speech.audio.done"]


@pytest.mark.parametrize("name", CALLS.by_name)
def test_a_call_is_charged_what_the_provider_produced(sdk_root: StackClient, name: str) -> None:
    CALLS.make(name, sdk_root.openai, sdk_root)


def test_the_root_has_what_the_journal_has(sdk_root: StackClient) -> None:
    """Stands last: it looks at all calls until now."""
    assert Calls.drift(sdk_root, CALLS) == 0
