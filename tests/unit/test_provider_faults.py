"""Errors of providers in one shape: their own words, their advice, and what they have left."""

import json
import random
from datetime import UTC, datetime
from typing import Any

import pytest

from extproc.core.provider_errors import RETRYABLE, Dimension, ErrorCode, ProviderError, Room
from extproc.providers.provider_faults import provider_error
from extproc.providers.provider_room import duration_seconds, retry_after, rooms_of

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
TPM = (
    "Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, "
    "Used 14567, Requested 24754. Please try again in 18.642s."
)
TOO_LARGE = (
    "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, "
    "Requested 30601. The input or output tokens must be reduced in order to run successfully."
)
ANTHROPIC_TPM = (
    "This request would exceed the rate limit for your organization of 20,000 input tokens per "
    "minute."
)


def openai(message: str, kind: str | None = None, code: str | int | None = None) -> Any:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def anthropic(kind: str, message: str = "") -> Any:
    return {"type": "error", "error": {"type": kind, "message": message}}


def google(status: str, code: int, *details: Any, message: str = "") -> Any:
    return {"error": {"code": code, "message": message, "status": status, "details": [*details]}}


RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36s"}


def violation(limit: str) -> Any:
    return {
        "@type": "type.googleapis.com/google.rpc.QuotaFailure",
        "violations": [{"quotaId": limit, "quotaMetric": "generate_content"}],
    }


# status, value, headers -> code, dimension, retryable, seconds
CASES: dict[str, tuple[int, Any, dict[str, str], tuple[str, str, bool, float | None]]] = {
    "openai tokens": (
        429,
        openai(TPM, "tokens", "rate_limit_exceeded"),
        {},
        ("rate_limited", "tokens", True, 18.642),
    ),
    "openai requests by header": (
        429,
        openai("Slow down.", "requests", "rate_limit_exceeded"),
        {"retry-after-ms": "1250", "retry-after": "2"},
        ("rate_limited", "requests", True, 1.25),
    ),
    "openai reset of the dimension": (
        429,
        openai("", "tokens", "rate_limit_exceeded"),
        {"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-reset-requests": "1s"},
        ("rate_limited", "tokens", True, 360.0),
    ),
    "openai never fits": (
        429,
        openai(TOO_LARGE, "tokens", "rate_limit_exceeded"),
        {},
        ("rate_limited", "tokens", False, None),
    ),
    "openai no money": (
        429,
        openai("You exceeded your current quota.", "insufficient_quota", "insufficient_quota"),
        {},
        ("quota_exhausted", "money", False, None),
    ),
    "openai context": (
        400,
        openai("too long", "invalid_request_error", "context_length_exceeded"),
        {},
        ("context_too_long", "", False, None),
    ),
    "openai bad field": (
        400,
        openai("no", "invalid_request_error"),
        {},
        ("invalid_request", "", False, None),
    ),
    "openai key": (
        401,
        openai("no", "invalid_request_error", "invalid_api_key"),
        {},
        ("unauthenticated", "", False, None),
    ),
    "openai overloaded says do not retry": (
        503,
        openai("The engine is overloaded", "server_error"),
        {"x-should-retry": "false"},
        ("server_error", "", False, None),
    ),
    "openai responses event": (
        200,
        {"type": "error", "code": "server_error", "message": "x", "sequence_number": 3},
        {},
        ("server_error", "", True, None),
    ),
    "openai responses failed": (
        200,
        {
            "type": "response.failed",
            "response": {
                "status": "failed",
                "error": {"code": "rate_limit_exceeded", "message": TPM},
            },
        },
        {},
        ("rate_limited", "tokens", True, 18.642),
    ),
    "openrouter code in a 200": (
        200,
        openai("Provider returned error", None, 429),
        {},
        ("rate_limited", "", True, None),
    ),
    "azure": (
        429,
        openai("Please retry after 7 seconds.", None, "429"),
        {"retry-after": "7"},
        ("rate_limited", "", True, 7.0),
    ),
    "anthropic input tokens": (
        429,
        anthropic("rate_limit_error", ANTHROPIC_TPM),
        {"retry-after": "12"},
        ("rate_limited", "input_tokens", True, 12.0),
    ),
    "anthropic by headers": (
        429,
        anthropic("rate_limit_error"),
        {
            "anthropic-ratelimit-requests-remaining": "3",
            "anthropic-ratelimit-output-tokens-remaining": "0",
        },
        ("rate_limited", "output_tokens", True, None),
    ),
    "anthropic overloaded": (
        529,
        anthropic("overloaded_error"),
        {"x-should-retry": "true"},
        ("overloaded", "", True, None),
    ),
    "anthropic overloaded in mid-stream": (
        200,
        anthropic("overloaded_error"),
        {},
        ("overloaded", "", True, None),
    ),
    "anthropic too long": (
        400,
        anthropic("invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum"),
        {},
        ("context_too_long", "", False, None),
    ),
    "anthropic no credit": (
        400,
        anthropic("invalid_request_error", "Your credit balance is too low to access the API."),
        {},
        ("quota_exhausted", "money", False, None),
    ),
    "google minute": (
        429,
        google(
            "RESOURCE_EXHAUSTED",
            429,
            violation("GenerateContentInputTokensPerModelPerMinute-FreeTier"),
            RETRY_INFO,
            message="You exceeded your current quota, please check your plan and billing details.",
        ),
        {},
        ("rate_limited", "input_tokens", True, 36.0),
    ),
    "google day": (
        429,
        google("RESOURCE_EXHAUSTED", 429, violation("GenerateRequestsPerDayPerProjectPerModel")),
        {},
        ("quota_exhausted", "requests", False, None),
    ),
    "google list of a stream": (
        429,
        [google("RESOURCE_EXHAUSTED", 429, message="Resource exhausted. Please try again later.")],
        {},
        ("rate_limited", "", True, None),
    ),
    "google in a 200": (200, google("UNAVAILABLE", 503), {}, ("overloaded", "", True, None)),
    "bedrock header": (
        429,
        {"message": "Too many tokens, please wait before trying again."},
        {
            "x-amzn-errortype": "ThrottlingException:http://internal.amazon.com/coral/"
            "com.amazon.bedrock/"
        },
        ("rate_limited", "tokens", True, None),
    ),
    "bedrock type with namespace": (
        400,
        {"__type": "com.amazon.coral.service#ValidationException", "message": "Input is too long"},
        {},
        ("context_too_long", "", False, None),
    ),
    "bedrock event": (
        200,
        {"__type": "modelStreamErrorException", "message": "x"},
        {},
        ("server_error", "", True, None),
    ),
    "bedrock event error": (200, {"__type": "500"}, {}, ("server_error", "", True, None)),
    "bedrock quota": (
        400,
        {"__type": "ServiceQuotaExceededException"},
        {},
        ("quota_exhausted", "money", False, None),
    ),
    "cohere": (
        429,
        {"id": "x", "message": "You are using a Trial key, limited to 10 API calls / minute."},
        {},
        ("rate_limited", "requests", True, None),
    ),
    "cohere stream": (
        200,
        {"type": "message-end", "delta": {"finish_reason": "ERROR", "error": "went wrong"}},
        {},
        ("unknown", "", False, None),
    ),
    "ollama busy": (
        503,
        {"error": "server busy, please try again.  maximum pending requests exceeded"},
        {},
        ("overloaded", "", True, None),
    ),
    "ollama no model": (
        404,
        {"error": "model 'x' not found"},
        {},
        ("not_found", "", False, None),
    ),
    "a page": (502, None, {}, ("server_error", "", True, None)),
    "a page in a 200": (200, None, {}, ("unknown", "", False, None)),
    "an unknown 4xx": (418, None, {}, ("invalid_request", "", False, None)),
}


@pytest.mark.parametrize("name", CASES)
def test_an_error_is_told_by_its_providers_words(name: str) -> None:
    status, value, headers, expected = CASES[name]
    error = provider_error("p", status=status, headers=headers, value=value, now=NOW)
    found = (error.code, error.dimension, error.retryable, error.retry_after_seconds)
    assert found == expected
    assert (error.provider, error.status) == ("p", status)


def test_the_providers_own_word_is_kept_if_it_is_one() -> None:
    def word(value: Any, **headers: str) -> str:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        return provider_error("p", status=429, headers=named, value=value).provider_code

    assert word(openai("", "tokens", "rate_limit_exceeded")) == "rate_limit_exceeded"
    assert word(anthropic("overloaded_error")) == "overloaded_error"
    assert word(None, x_amzn_errortype="ThrottlingException:http://x") == "ThrottlingException"
    assert word(openai("", "a" * 65, 'x"\n')) == ""


@pytest.mark.parametrize(
    "value",
    [
        7,
        "text",
        [],
        [1, [2]],
        {"error": [1]},
        {"error": {"code": [], "type": {}, "status": None, "details": [{"violations": 5}, 3]}},
        {"error": {"details": [{"retryDelay": "9" * 400 + "s"}], "code": True}},
        {"error": {"message": ["a"], "code": 10**400}},
        {"response": {"error": "text"}, "delta": [1]},
        {"__type": "#", "error": {"error": {"error": "x"}}},
    ],
)
def test_whatever_a_provider_sends_is_some_error(value: Any) -> None:
    headers = {"retry-after": "soon", "retry-after-ms": "nan", "x-amzn-errortype": ":#:"}
    error = provider_error("p", status=429, headers=headers, value=value, now=NOW)
    assert error.code in ErrorCode
    assert error.retry_after_seconds is None


def test_cut_and_scrambled_errors_never_raise() -> None:
    rng = random.Random(7)
    words = [json.dumps(value) for _, value, _, _ in CASES.values()]
    for _ in range(2000):
        text = rng.choice(words)
        at = rng.randrange(len(text))
        try:
            value = json.loads(text[:at] + rng.choice(['"x"', "7", "[", "{}", ""]) + text[at + 1 :])
        except ValueError:
            continue
        error = provider_error("p", status=rng.choice([200, 429, 500]), headers={}, value=value)
        assert isinstance(error, ProviderError)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("6m0s", 360.0),
        ("120ms", 0.12),
        ("1.5s", 1.5),
        ("1h2m3s", 3723.0),
        ("2d", 172_800.0),
        ("36.511943205s", 36.511943205),
        ("", None),
        ("7", None),
        ("ms", None),
        ("1s1h", None),
        ("-1s", None),
        ("99999d", None),
        ("1" * 50 + "s", None),
    ],
)
def test_durations_are_read_as_providers_write_them(text: str, seconds: float | None) -> None:
    assert duration_seconds(text) == seconds


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("30", 30.0),
        ("0", 0.0),
        ("1.5", 1.5),
        ("Mon, 30 Nov 2026 12:00:30 GMT", 30.0),
        ("Mon, 30 Nov 2026 11:00:00 GMT", 0.0),
        ("Mon, 30 Nov 9999 11:00:00 GMT", None),
        ("99999999999", None),
        ("-5", None),
        ("inf", None),
        ("soon", None),
        ("Mon, 99 Nov 2026 99:00:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": value}, now=NOW) == seconds


def test_what_is_left_is_read_by_dimension() -> None:
    assert rooms_of(
        {
            "x-ratelimit-limit-requests": "500",
            "x-ratelimit-remaining-requests": "499",
            "x-ratelimit-remaining-tokens": "29000.0",
            "anthropic-ratelimit-input-tokens-remaining": "-3",
            "anthropic-ratelimit-output-tokens-remaining": "many",
            "anthropic-ratelimit-tokens-limit": "7",
        }
    ) == [
        Room(Dimension.REQUESTS, 499, 500),
        Room(Dimension.TOKENS, 29_000, None),
        Room(Dimension.INPUT_TOKENS, 0, None),
    ]


def test_only_what_passes_by_itself_is_retryable() -> None:
    never = {ErrorCode.INVALID_REQUEST, ErrorCode.QUOTA_EXHAUSTED, ErrorCode.CONTEXT_TOO_LONG}
    assert not never & RETRYABLE
