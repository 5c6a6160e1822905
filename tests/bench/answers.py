"""Streamed answers of four providers, one event a piece, as long as in production.

Shapes after the providers' API references: OpenAI's chat completion chunks, Anthropic's streaming
events, Gemini's ``streamGenerateContent?alt=sse``, Bedrock's ``ConverseStream``.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from tests.unit.event_streams import event as bedrock_event

CHUNKS = 200
INPUT_TOKENS = 700
_WORDS = (" The", " lamp", " was", " sent", " on", " Tuesday", ",", " 4711", " and", " is", " late")
_GZIP_WINDOW = 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One answer. ``pieces`` is what arrives, ``plain`` the same without its content encoding;
    ``CHUNKS`` of them carry text. ``output_tokens`` is what its usage says."""

    wire_format: str
    content_type: str
    pieces: tuple[bytes, ...]
    plain: tuple[bytes, ...]
    content_encoding: str | None = None
    hides_usage: bool = False
    output_tokens: int = CHUNKS


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _words() -> Iterator[str]:
    return islice(cycle(_WORDS), CHUNKS)


def _sse(wire_format: str, pieces: list[bytes], *, hides_usage: bool = False) -> Stream:
    return Stream(
        wire_format=wire_format,
        content_type="text/event-stream",
        pieces=tuple(pieces),
        plain=tuple(pieces),
        hides_usage=hides_usage,
    )


def openai_chat(*, hides_usage: bool = False) -> Stream:
    """A chat with its usage at the end, asked for by the client or on its behalf."""
    head = {
        "id": "chatcmpl-bench000000000000000000000",
        "object": "chat.completion.chunk",
        "created": 1_760_000_000,
        "model": "gpt-4o-2024-08-06",
        "service_tier": "default",
        "system_fingerprint": "fp_bench00000",
    }

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return b"data: " + _json({**head, "choices": [choice], "usage": None}) + b"\n\n"

    usage = {
        "prompt_tokens": INPUT_TOKENS,
        "completion_tokens": CHUNKS,
        "total_tokens": INPUT_TOKENS + CHUNKS,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }
    pieces = [
        chunk({"role": "assistant", "content": "", "refusal": None}),
        *(chunk({"content": word}) for word in _words()),
        chunk({}, "stop"),
        b"data: " + _json({**head, "choices": [], "usage": usage}) + b"\n\n",
        b"data: [DONE]\n\n",
    ]
    return _sse("openai_chat", pieces, hides_usage=hides_usage)


def gzipped(stream: Stream) -> Stream:
    """The same, compressed as a server does that streams: flushed after each event."""
    packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WINDOW)
    pieces = [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in stream.plain]
    pieces.append(packer.flush())
    return Stream(
        wire_format=stream.wire_format,
        content_type=stream.content_type,
        pieces=tuple(pieces),
        plain=stream.plain,
        content_encoding="gzip",
    )


def anthropic() -> Stream:
    """A message of one text block."""

    def event(name: str, **fields: Any) -> bytes:
        return b"event: %s\ndata: " % name.encode() + _json({"type": name, **fields}) + b"\n\n"

    message: dict[str, Any] = {
        "id": "msg_bench0000000000000000000",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5-20250929",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": INPUT_TOKENS,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 1,
        },
    }
    ending = {"stop_reason": "end_turn", "stop_sequence": None}
    pieces = [
        event("message_start", message=message),
        event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        *(
            event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
            for word in _words()
        ),
        event("content_block_stop", index=0),
        event("message_delta", delta=ending, usage={"output_tokens": CHUNKS}),
        event("message_stop"),
    ]
    return _sse("anthropic_messages", pieces)


def gemini() -> Stream:
    """Every chunk carries the usage so far."""

    def chunk(number: int, word: str) -> bytes:
        candidate: dict[str, Any] = {
            "content": {"parts": [{"text": word}], "role": "model"},
            "index": 0,
        }
        if number == CHUNKS:
            candidate["finishReason"] = "STOP"
        usage = {
            "promptTokenCount": INPUT_TOKENS,
            "candidatesTokenCount": number,
            "totalTokenCount": INPUT_TOKENS + number,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": INPUT_TOKENS}],
        }
        body = {
            "candidates": [candidate],
            "usageMetadata": usage,
            "modelVersion": "gemini-2.5-flash",
            "responseId": "bench0000000000000000000",
        }
        return b"data: " + _json(body) + b"\r\n\r\n"

    return _sse("gemini", [chunk(number, word) for number, word in enumerate(_words(), 1)])


def bedrock() -> Stream:
    """ConverseStream in AWS's binary event stream."""
    padding = "abcdefghijklmnopqrstuvwxyz"
    usage = {
        "inputTokens": INPUT_TOKENS,
        "outputTokens": CHUNKS,
        "totalTokens": INPUT_TOKENS + CHUNKS,
    }
    pieces = [
        bedrock_event("messageStart", {"role": "assistant", "p": padding}),
        *(
            bedrock_event(
                "contentBlockDelta",
                {"contentBlockIndex": 0, "delta": {"text": word}, "p": padding},
            )
            for word in _words()
        ),
        bedrock_event("contentBlockStop", {"contentBlockIndex": 0, "p": padding}),
        bedrock_event("messageStop", {"stopReason": "end_turn", "p": padding}),
        bedrock_event("metadata", {"usage": usage, "metrics": {"latencyMs": 900}, "p": padding}),
    ]
    return Stream(
        wire_format="bedrock_converse_stream",
        content_type="application/vnd.amazon.eventstream",
        pieces=tuple(pieces),
        plain=tuple(pieces),
    )
