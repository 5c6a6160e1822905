"""What is sent and answered: one chat request of about 1 KB, its answer of about 0.5 KB."""

import json
from typing import Any

from extproc.demo.provider_script import SCRIPT_HEADER
from extproc.demo.stack import demo_key
from extproc.providers.registry import read_request
from extproc.providers.requests import ReadLimits, RequestFacts

PATH = "/v1/chat/completions"
MODEL = "gpt-4o"
WIRE_FORMAT = "openai_chat"
OUTPUT_TOKENS = 48
# With this script the benchmark's upstream answers by its stream of 200 chunks; the fake provider
# would give one like it.
STREAM_SCRIPT = "output=200;chunk_delay_ms=2"

_SYSTEM = (
    "You answer questions of customers about their orders. Be brief and friendly, name the order "
    "by its number, never promise a date that the shipping service has not confirmed, and offer "
    "a refund only for orders that are more than fourteen days late. Amounts are in euros."
)
_QUESTION = (
    "Hello! I ordered two lamps and a small table three weeks ago, order number 4711-2206. The "
    "lamps came last Tuesday, and one of them has a scratch near the switch. The table has not "
    "arrived, and the tracking page has said 'in transit' for nine days. I am moving house at the "
    "end of the month, so I need to know whether it will still come to my old address, or whether "
    "it can be sent to the new one. Could you also tell me how I get another lamp without paying "
    "for the parcel again, please? Many thanks for your help."
)
_ANSWER = (
    "I am sorry about order 4711-2206. I have asked for a new lamp, free of charge, and for a word "
    "from the shipping service about the table. Please send me your new address."
)


def chat_body(*, stream: bool = False, max_tokens: int | None = 256) -> bytes:
    """The request's JSON; a streamed one asks for its usage, as it must by OpenAI's API."""
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": _QUESTION},
        ],
        "temperature": 0.2,
    }
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(body).encode()


def raw_request(service: str, body: bytes, *, script: str = "") -> bytes:
    """One HTTP/1.1 request; ``script`` is for the fake provider."""
    lines = [
        f"POST {PATH} HTTP/1.1",
        "host: bench.test",
        f"authorization: Bearer {demo_key(service)}",
        "content-type: application/json",
        f"content-length: {len(body)}",
    ]
    if script:
        lines.append(f"{SCRIPT_HEADER}: {script}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def counted(body: bytes) -> RequestFacts:
    """What tokenweir itself reads from such a request."""
    limits = ReadLimits(max_decoded_bytes=len(body))
    facts = read_request(
        PATH, body, content_type="application/json", content_encoding=None, limits=limits
    )
    assert isinstance(facts, RequestFacts)
    return facts


def answer_body() -> bytes:
    """A chat completion with a usage as OpenAI reports it."""
    prompt = counted(chat_body()).input_tokens
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": OUTPUT_TOKENS,
        "total_tokens": prompt + OUTPUT_TOKENS,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": _ANSWER, "refusal": None},
        "finish_reason": "stop",
    }
    answer = {
        "id": "chatcmpl-bench000000000000000000000",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": MODEL,
        "choices": [choice],
        "usage": usage,
    }
    return json.dumps(answer, separators=(",", ":")).encode()


# What the reserve script replies to such a request (lua/reserve.lua), with plausible numbers.
PLAUSIBLE_REPLY = (
    b"admitted",
    b"202601010000",
    187,
    443,
    2_000_000_000,
    1_999_900_000,
    1_000_000_000_000,
    999_999_900_000,
    30_000,
)
