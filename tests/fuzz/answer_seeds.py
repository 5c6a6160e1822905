"""Answers to begin with: one or more for every wire format, recorded ones and our own."""

import json
from functools import cache
from typing import NamedTuple

from tests.fuzz.request_seeds import WIRE_FORMATS
from tests.unit.event_streams import chunk as model_event
from tests.unit.event_streams import event
from tests.unit.provider_cases import answer_cases

_MOST_BYTES = 20_000


class AnswerSeed(NamedTuple):
    """One answer's body as it was on the wire, and what its headers say of it."""

    body: bytes
    content_type: str | None = None
    content_encoding: str | None = None


_CHAT = {
    "id": "c",
    "model": "m",
    "choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 5,
        "total_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 3, "audio_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 6},
    },
}
_EMBEDDINGS = {"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 3, "total_tokens": 3}}
_PICTURES = {"data": [{"b64_json": "AAAA"}], "usage": {"input_tokens": 3, "output_tokens": 9}}
_GOOGLE = {
    "candidates": [
        {
            "index": 0,
            "finishReason": "STOP",
            "content": {"parts": [{"text": "Hi"}, {"functionCall": {"name": "f", "args": {}}}]},
            "groundingMetadata": {"webSearchQueries": ["q"]},
        }
    ],
    "usageMetadata": {
        "promptTokenCount": 5,
        "candidatesTokenCount": 4,
        "thoughtsTokenCount": 3,
        "toolUsePromptTokenCount": 2,
        "totalTokenCount": 14,
        "promptTokensDetails": [{"modality": "IMAGE", "tokenCount": 2}],
    },
    "responseId": "r",
    "modelVersion": "v",
}
_ANTHROPIC = {
    "id": "m",
    "model": "claude",
    "type": "message",
    "content": [{"type": "text", "text": "Hi"}, {"type": "tool_use", "name": "f", "input": {}}],
    "usage": {
        "input_tokens": 5,
        "output_tokens": 4,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 2,
        "cache_creation": {"ephemeral_5m_input_tokens": 2},
        "output_tokens_details": {"thinking_tokens": 2},
    },
}
_RANKS = {
    "results": [{"index": 0, "relevance_score": 0.5}],
    "meta": {"billed_units": {"search_units": 1}, "tokens": {"input_tokens": 3}},
}
_METRICS = {
    "amazon-bedrock-invocationMetrics": {
        "inputTokenCount": 5,
        "outputTokenCount": 4,
        "cacheReadInputTokenCount": 3,
    }
}
_UNITS = {"billed_units": {"input_tokens": 5, "output_tokens": 4}, "tokens": {"input_tokens": 9}}
_OLLAMA_END = {"done": True, "done_reason": "stop", "prompt_eval_count": 5, "eval_count": 2}


def _json(value: object) -> AnswerSeed:
    return AnswerSeed(json.dumps(value).encode(), "application/json")


def _events(*values: object) -> AnswerSeed:
    body = "".join(f"data: {json.dumps(value)}\n\n" for value in values)
    return AnswerSeed(body.encode() + b"data: [DONE]\n\n", "text/event-stream")


def _lines(*values: object) -> AnswerSeed:
    body = "".join(json.dumps(value) + "\n" for value in values)
    return AnswerSeed(body.encode(), "application/x-ndjson")


def _binary(*messages: bytes) -> AnswerSeed:
    return AnswerSeed(b"".join(messages), "application/vnd.amazon.eventstream")


_GOOGLE_ANSWERS = (_json(_GOOGLE), _events(_GOOGLE, _GOOGLE), _json([_GOOGLE, _GOOGLE]))
_GOOGLE_VECTORS = _json({"embedding": {"values": [0.5]}, "usageMetadata": {"promptTokenCount": 3}})
_CHAT_STREAM = _events(
    {"id": "c", "choices": [{"index": 0, "delta": {"content": "He", "reasoning": "hm"}}]},
    {"choices": [{"index": 1, "delta": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "usage": _CHAT["usage"]},
)
_BINARY_CONVERSE = _binary(
    event("messageStart", {"role": "assistant"}),
    event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "Hi"}}),
    event("messageStop", {"stopReason": "end_turn"}),
    event("metadata", {"usage": {"inputTokens": 5, "outputTokens": 4}}),
)
_CONVERSE = _json(
    {
        "output": {
            "message": {"content": [{"text": "x"}, {"toolUse": {"name": "f", "input": {}}}]}
        },
        "usage": {"inputTokens": 5, "outputTokens": 4, "cacheReadInputTokens": 3},
    }
)
_OWN: dict[str, tuple[AnswerSeed, ...]] = {
    "gemini_openai_chat": (_json(_CHAT), _CHAT_STREAM),
    "gemini_openai_embeddings": (_json(_EMBEDDINGS),),
    "gemini_openai_images": (_json(_PICTURES),),
    "vertex_openai_chat": (_json(_CHAT), _CHAT_STREAM),
    "vertex_openai_embeddings": (_json(_EMBEDDINGS),),
    "openai_chat": (_json(_CHAT), _CHAT_STREAM),
    "openai_completions": (_json({"choices": [{"text": "x"}], "usage": _CHAT["usage"]}),),
    "mistral_fim": (_json({"choices": [{"text": "x"}], "usage": _CHAT["usage"]}),),
    "mistral_agents": (_json(_CHAT), _CHAT_STREAM),
    "openai_decisions": (
        _json({"answers": [{"value": 1}], "usage": {"input_tokens": 9, "output_tokens": 2}}),
    ),
    "openai_embeddings": (_json(_EMBEDDINGS),),
    "openai_images": (
        _json(_PICTURES),
        _events({"type": "image_generation.completed", "usage": _PICTURES["usage"]}),
    ),
    "openai_transcription": (
        _json({"text": "x", "usage": {"type": "tokens", "input_tokens": 9, "output_tokens": 2}}),
        AnswerSeed("Hello, naïve text".encode(), "text/plain"),
    ),
    "openai_speech": (
        AnswerSeed(b"ID3\x04\x00\xff\xfb", "audio/mpeg"),
        _events(
            {"type": "speech.audio.delta", "audio": "AAAA"},
            {"type": "speech.audio.done", "usage": {"input_tokens": 3, "output_tokens": 9}},
        ),
    ),
    "openai_moderations": (_json({"results": [{"flagged": False}], "usage": _CHAT["usage"]}),),
    "anthropic_messages": (_json(_ANTHROPIC),),
    "vertex_anthropic_messages": (_json(_ANTHROPIC),),
    "cohere_rerank": (_json(_RANKS),),
    "rerank": (_json(_RANKS),),
    "vertex_gemini": _GOOGLE_ANSWERS,
    "gemini": _GOOGLE_ANSWERS,
    "vertex_embeddings": (_GOOGLE_VECTORS,),
    "gemini_embeddings": (_GOOGLE_VECTORS,),
    "vertex_embeddings_predict": (
        _json({"predictions": [{"embeddings": {"statistics": {"token_count": 3}}}]}),
    ),
    "bedrock_converse": (_CONVERSE,),
    "bedrock_converse_stream": (_BINARY_CONVERSE,),
    "bedrock_embeddings": (_json({"embedding": [0.5], "inputTextTokenCount": 3}),),
    "bedrock_invoke": (
        _json({"results": [{"outputText": "x", "tokenCount": 2}], "inputTextTokenCount": 3}),
        _json(_ANTHROPIC),
        _CONVERSE,
    ),
    "bedrock_invoke_stream": (
        _binary(
            model_event({"type": "content_block_delta", "index": 0, "delta": {"text": "Hi"}}),
            model_event({"type": "message_stop"} | _METRICS),
        ),
        _binary(
            model_event({"contentBlockDelta": {"delta": {"text": "Hi"}}}),
            model_event({"metadata": {"usage": {"inputTokens": 5, "outputTokens": 4}}}),
            event("throttlingException", {"message": "slow down"}, kind="exception"),
        ),
    ),
    "cohere_v2": (
        _json({"id": "c", "message": {"content": [{"text": "x"}]}, "usage": _UNITS}),
        _events(
            {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "x"}}}},
            {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": _UNITS}},
        ),
    ),
    "cohere_v1": (
        _json({"text": "x", "generation_id": "g", "meta": _UNITS}),
        _lines(
            {"event_type": "text-generation", "text": "x"},
            {"event_type": "stream-end", "response": {"text": "x", "meta": _UNITS}},
        ),
    ),
    "cohere_embed": (_json({"embeddings": {"float": [[0.5]]}, "meta": _UNITS}),),
    "ollama_chat": (_lines({"message": {"content": "x"}, "done": False}, _OLLAMA_END),),
    "ollama_generate": (_lines({"response": "x", "thinking": "hm"}, _OLLAMA_END),),
    "ollama_embed": (_json({"embeddings": [[0.5]], "prompt_eval_count": 3}),),
}


@cache
def answer_seeds() -> dict[str, list[AnswerSeed]]:
    """By the name of the format; every format has at least one that reports or produces."""
    found: dict[str, list[AnswerSeed]] = {name: [*_OWN.get(name, ())] for name in WIRE_FORMATS}
    for case in answer_cases():
        if len(case.body) < _MOST_BYTES:
            seed = AnswerSeed(case.body, case.content_type, case.content_encoding)
            found[case.wire_format].append(seed)
    return found
