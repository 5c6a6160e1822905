"""Refusals and errors as the official clients raise them: each parses its provider's own shape."""

from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

from extproc.demo.stack import demo_key
from tests.support.client import StackClient
from tests.support.sdk_calls import ended

MESSAGES: Any = [{"role": "user", "content": "Say hi"}]
CLAUDE: dict[str, Any] = {"model": "claude-opus-4-8", "max_tokens": 20, "messages": MESSAGES}
SOUND = ("a.mp3", bytes(4000))
OpenAiCall = Callable[[openai.OpenAI], object]
OPENAI_CALLS: dict[str, OpenAiCall] = {
    "chat": lambda c: c.chat.completions.create(model="gpt-4o", messages=MESSAGES),
    "chat stream": lambda c: c.chat.completions.create(
        model="gpt-4o", messages=MESSAGES, stream=True
    ),
    "responses": lambda c: c.responses.create(model="gpt-4o", input="hi"),
    "responses stream": lambda c: c.responses.create(model="gpt-4o", input="hi", stream=True),
    "embeddings": lambda c: c.embeddings.create(model="text-embedding-3-small", input="hi"),
    "images": lambda c: c.images.generate(model="gpt-image-1", prompt="a river"),
    "images form": lambda c: c.images.edit(model="gpt-image-1", prompt="x", image=SOUND),
    "transcription": lambda c: c.audio.transcriptions.create(model="gpt-4o-transcribe", file=SOUND),
    "speech": lambda c: c.audio.speech.create(model="tts-1", voice="alloy", input="hi"),
    "moderations": lambda c: c.moderations.create(input="hi"),
}


def claude(client: anthropic.Anthropic, **fields: Any) -> Any:
    return client.messages.create(**{**CLAUDE, **fields})


def test_our_429(client: StackClient) -> None:
    client.limit(rpm=1, tpm=100_000)
    client.openai.chat.completions.create(model="gpt-4o", messages=MESSAGES)
    for call in OPENAI_CALLS.values():
        with pytest.raises(openai.RateLimitError) as refused:
            call(client.openai)
        error, headers = refused.value, refused.value.response.headers
        assert (error.code, error.type) == ("rate_limit_exceeded", "requests")
        assert client.service in error.message
        assert 1 <= int(headers["retry-after"]) <= 66
        assert headers["x-ratelimit-remaining-requests"] == "0"
    for stream in (False, True):
        with pytest.raises(anthropic.RateLimitError) as slowed:
            claude(client.anthropic, stream=stream)
        assert slowed.value.type == "rate_limit_error"
        assert 1 <= int(slowed.value.response.headers["retry-after"]) <= 66
    assert client.counted("rpm") == 1


def test_a_request_that_nobody_could_take_is_our_400(loose_root: StackClient) -> None:
    client = loose_root.openai
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="gpt-4o", messages=MESSAGES, n=1000)
    assert (wrong.value.param, wrong.value.type) == ("n", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as wrong:
        client.responses.create(model="gpt-4o", input="hi", max_output_tokens=-1)
    assert wrong.value.param == "max_output_tokens"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.images.edit(model="gpt-image-1", prompt="x", image=SOUND, n=-1)
    assert wrong.value.param == "n"
    with pytest.raises(anthropic.BadRequestError) as bad:
        claude(loose_root.anthropic, max_tokens=-1)
    assert bad.value.type == "invalid_request_error"


def test_a_stranger_is_a_401_and_what_is_not_metered_a_403(loose_root: StackClient) -> None:
    with (
        openai.OpenAI(
            base_url=loose_root.openai.base_url, api_key="nobody", max_retries=0
        ) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        OPENAI_CALLS["chat"](stranger)
    with pytest.raises(openai.PermissionDeniedError) as refused:
        loose_root.openai.batches.create(
            completion_window="24h", endpoint="/v1/responses", input_file_id="file-1"
        )
    assert refused.value.type == "permission_error"
    with pytest.raises(openai.PermissionDeniedError):
        loose_root.openai.post("/threads", cast_to=object, body={})
    with pytest.raises(anthropic.PermissionDeniedError) as denied:
        loose_root.anthropic.post("/v1/messages/others", cast_to=object, body={})
    assert denied.value.type == "permission_error"


def test_a_service_without_limits_is_a_403(client: StackClient) -> None:
    with pytest.raises(openai.PermissionDeniedError) as refused:
        OPENAI_CALLS["chat"](client.openai)
    assert refused.value.type == "permission_error"
    with pytest.raises(anthropic.PermissionDeniedError) as denied:
        claude(client.anthropic)
    assert denied.value.type == "permission_error"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "BadRequestError"),
        (404, "NotFoundError"),
        (429, "RateLimitError"),
        (500, "InternalServerError"),
        (529, "InternalServerError"),
    ],
)
def test_the_providers_own_errors_pass_and_cost_nothing(
    loose_root: StackClient, status: int, kind: str
) -> None:
    label = f"refusals-{status}"
    fake = {"x-fake": f"label={label};status={status};retry_after=7"}
    with pytest.raises(getattr(openai, kind)) as theirs:
        loose_root.openai.responses.create(model="gpt-4o", input="hi", extra_headers=fake)
    assert theirs.value.response.headers["retry-after"] == "7"
    _, record = ended(loose_root, label)
    assert (record["state"], record["charged"]) == ("RELEASED", "0")
    fake = {"x-fake": f"label={label}-claude;status={status};retry_after=7"}
    expected = "OverloadedError" if status == 529 else kind
    with pytest.raises(getattr(anthropic, expected, anthropic.APIStatusError)) as errors:
        claude(loose_root.anthropic, extra_headers=fake)
    assert errors.value.response.headers["retry-after"] == "7"
    _, record = ended(loose_root, f"{label}-claude")
    assert (record["state"], record["charged"]) == ("RELEASED", "0")


def test_an_error_in_mid_stream_is_raised_and_what_came_before_it_is_charged(
    loose_root: StackClient,
) -> None:
    script = "output=9;error_event_after=4"
    stacks = loose_root
    fake = {"x-fake": f"label=refusals-chat;{script}"}
    with pytest.raises(openai.APIError, match="overloaded"):
        list(
            stacks.openai.chat.completions.create(
                model="gpt-4o", messages=MESSAGES, stream=True, extra_headers=fake
            )
        )
    fake = {"x-fake": f"label=refusals-responses;{script}"}
    with pytest.raises(openai.APIError, match="overloaded"):
        list(
            stacks.openai.responses.create(
                model="gpt-4o", input="hi", stream=True, extra_headers=fake
            )
        )
    for label in ("refusals-chat", "refusals-responses"):
        entry, record = ended(stacks, label)
        assert (record["state"], record["outcome"]) == ("RECONCILING", "upstream_broken")
        assert int(record["charged"]) == entry.input_tokens + 4
    fake = {"x-fake": f"label=refusals-claude;{script}"}
    with pytest.raises(anthropic.APIStatusError, match="overloaded"):
        list(claude(stacks.anthropic, stream=True, extra_headers=fake))
    entry, record = ended(stacks, "refusals-claude")
    assert (record["state"], record["outcome"]) == ("RECONCILING", "upstream_broken")
    assert entry.output_tokens_produced == 4


def test_a_body_that_is_too_large_is_envoys_413(loose_root: StackClient) -> None:
    with pytest.raises(openai.APIStatusError) as large:
        loose_root.openai.audio.transcriptions.create(
            model="gpt-4o-transcribe", file=("a.mp3", bytes(17_000_000))
        )
    assert large.value.status_code == 413
    assert demo_key(loose_root.service) not in str(large.value)
