"""Images, speech and transcripts: what is read of requests and of answers."""

import base64
import json
from typing import Any

import pytest

from extproc.core.usage import Usage
from extproc.providers.tokens import count_tokens
from tests.unit.test_providers_openai_family import IMAGES, SPEECH, answer, events
from tests.unit.test_providers_requests import read, refused


def test_images_reserve_by_quality_and_size() -> None:
    def cap(**fields: object) -> int | None:
        return read(IMAGES, {"model": "gpt-image-2", "prompt": "a cat", **fields}).output_cap_tokens

    best = cap()
    assert best is not None
    assert cap(quality="high", size="1024x1024") == best
    assert cap(n=3) == 3 * best
    assert cap(size="3840x2160") == 2 * best
    assert cap(stream=True, partial_images=2) == best + 200
    low = cap(quality="low")
    assert low is not None
    assert low < best / 10
    assert cap(model="dall-e-3") == 0
    assert read(IMAGES, {"prompt": "a cat"}).model.startswith("gpt-image")
    assert refused(IMAGES, {"prompt": "x", "partial_images": 9}).param == "partial_images"
    assert refused(IMAGES, {"prompt": 5}).param == "prompt"


def test_usage_of_images_is_read_behind_the_picture() -> None:
    usage = {
        "input_tokens": 13,
        "input_tokens_details": {"text_tokens": 10, "image_tokens": 3},
        "output_tokens": 1056,
        "total_tokens": 1069,
    }
    picture = base64.b64encode(bytes(6_000_000)).decode()
    expected = Usage(
        input_tokens=13, output_tokens=1056, image_input_tokens=3, image_output_tokens=1056
    )
    whole = json.dumps({"created": 1, "data": [{"b64_json": picture}], "usage": usage}).encode()
    partial = {"type": "image_generation.partial_image", "b64_json": "AAAA"}
    done = {"type": "image_generation.completed", "b64_json": picture, "usage": usage}
    for body in (whole, events(partial, done)):
        reader = answer("openai_images", body, step=65_536)
        assert reader.usage == expected
        assert not reader.unread
    cut = answer("openai_images", events(partial))
    assert cut.unread
    assert not cut.complete
    assert answer("openai_images", {"data": [{"url": "https://x"}]}).unread


def test_pictures_of_a_tool_are_charged_beside_the_models_own_usage() -> None:
    drawn = {"input_tokens": 50, "output_tokens": 272, "total_tokens": 322}
    searched = [{"type": kind} for kind in ("web_search_call", "web_search_call", "message")]
    response = {
        "status": "completed",
        "output": [{"type": "image_generation_call"}, *searched],
        "usage": {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13},
        "tool_usage": {"image_gen": drawn, "web_search": {"num_requests": 1}},
    }
    whole = Usage(
        input_tokens=59,
        output_tokens=276,
        image_output_tokens=272,
        other_input_tokens=50,
        server_tool_calls=1,
    )
    assert answer("openai_responses", response).usage == whole
    first = {"type": "response.in_progress", "response": {**response, "status": "in_progress"}}
    last = {"type": "response.completed", "response": response}
    assert answer("openai_responses", events(first, last)).usage == whole
    none = {"image_gen": {"input_tokens": 0, "output_tokens": 0}, "web_search": {"num_requests": 0}}
    assert answer("openai_responses", {**response, "tool_usage": none}).usage == Usage(
        input_tokens=9, output_tokens=4
    )
    assert not answer("openai_responses", {**response, "usage": None}).usage.is_known


def test_the_model_that_writes_a_picture_as_svg_is_charged_beside_it() -> None:
    body = {
        "data": [{"b64_json": "x"}],
        "usage": {"input_tokens": 9, "output_tokens": 272, "total_tokens": 281},
        "svg_usage": {
            "model": "m",
            "input_tokens": 90,
            "output_tokens": 400,
            "reasoning_tokens": 100,
            "total_tokens": 490,
        },
    }
    assert answer("openai_images", body).usage == Usage(
        input_tokens=99,
        output_tokens=672,
        image_output_tokens=272,
        reasoning_tokens=100,
        other_input_tokens=90,
    )


def test_speech_is_reserved_by_its_text_and_its_sound_is_not_read() -> None:
    text = "one two three four"
    facts = read(SPEECH, {"model": "gpt-4o-mini-tts", "input": text, "voice": "alloy"})
    assert facts.input_tokens == count_tokens(text)
    assert facts.output_cap_tokens == 10 * count_tokens(text)
    for sound in (b"ID3\x04", b'{"raw pcm', b"data: not an event"):
        reader = answer("openai_speech", sound * 100, content_type="audio/mpeg")
        assert reader.unread
        assert not reader.error
        assert reader.counted_output_tokens() == 0
    assert answer("openai_speech", b"\xff\xfb" * 100).unread
    failed = answer("openai_speech", {"error": {"message": "x"}}, content_type="application/json")
    assert failed.error
    assert not failed.saw_output


def test_usage_of_streamed_speech() -> None:
    usage = {"input_tokens": 4, "output_tokens": 40, "total_tokens": 44}
    delta = {"type": "speech.audio.delta", "audio": "AAAA"}
    reader = answer("openai_speech", events(delta, {"type": "speech.audio.done", "usage": usage}))
    assert reader.usage == Usage(input_tokens=4, output_tokens=40, audio_output_tokens=40)
    assert reader.complete
    assert not reader.unread
    assert answer("openai_speech", events(delta)).unread


@pytest.mark.parametrize("content_type", ["text/plain", "text/vtt; charset=utf-8", None])
def test_transcripts_as_plain_text_are_counted(content_type: str | None) -> None:
    text = "1\n00:00 --> 00:02\nGrüße aus Köln\n"
    reader = answer("openai_transcription", text.encode(), content_type=content_type)
    assert reader.counted_output_tokens() == count_tokens(text)
    assert reader.saw_output
    assert not reader.error


def test_transcripts_report_tokens_or_seconds() -> None:
    usage: dict[str, Any] = {
        "type": "tokens",
        "input_tokens": 14,
        "input_token_details": {"text_tokens": 0, "audio_tokens": 14},
        "output_tokens": 3,
    }
    reader = answer("openai_transcription", {"text": "one two three", "usage": usage})
    assert reader.usage == Usage(input_tokens=14, output_tokens=3, audio_input_tokens=14)
    seconds = {"type": "duration", "seconds": 9}
    reader = answer("openai_transcription", {"text": "one two three", "usage": seconds})
    assert reader.usage == Usage()
    assert reader.counted_output_tokens() == 3
    assert reader.saw_output
