"""Error bodies: the client's own shape, valid JSON for any text."""

import json

import pytest

from extproc.providers.errors_shape import error_body


def body(shape: str, status: int = 429, message: str = "slow down", **more: str) -> object:
    raw = error_body(shape, status=status, code="rate_limit_exceeded", message=message, **more)
    return json.loads(raw)


def test_openai_shape_is_the_default() -> None:
    expected = {
        "error": {
            "message": "slow down",
            "type": "tokens",
            "param": "n",
            "code": "rate_limit_exceeded",
        }
    }
    for shape in ("/v1/chat/completions", "openai_chat", "openai", "/unknown"):
        assert body(shape, param="n", error_type="tokens") == expected


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_anthropic_shape_has_its_own_words(status: int, word: str) -> None:
    expected = {"type": "error", "error": {"type": word, "message": "slow down"}}
    for shape in ("/v1/messages?beta=true", "/v1/messages/count_tokens", "anthropic_messages"):
        # The word that OpenAI's shape gets is not one that Anthropic's SDK knows.
        assert body(shape, status, error_type="tokens") == expected


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (400, "INVALID_ARGUMENT"),
        (401, "UNAUTHENTICATED"),
        (429, "RESOURCE_EXHAUSTED"),
        (503, "UNAVAILABLE"),
        (500, "INTERNAL"),
    ],
)
def test_gemini_shape(status: int, word: str) -> None:
    expected = {"error": {"code": status, "message": "slow down", "status": word}}
    for shape in (
        "gemini",
        "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse",
        "/v1beta/models/gemini-2.5-pro:generateAnswer",
        "/upload/v1/files?uploadType=resumable",
        "/v1beta1/projects/p/locations/l/tuningJobs",
    ):
        assert body(shape, status) == expected
    assert body("/v1beta/openai/files", status) != expected


def test_ollamas_shape_holds_for_what_is_not_metered() -> None:
    for shape in ("/api/chat", "/api/show", "/api/pull"):
        assert body(shape) == {"error": "slow down"}
    assert body("/api/keys") != {"error": "slow down"}


def test_any_text_gives_valid_json() -> None:
    for message in ('"\\\n\x00', "\ud83d", "汉字" * 1000, "</script>"):
        answer = body("openai", message=message)
        assert isinstance(answer, dict)
        assert answer["error"]["message"] == message
