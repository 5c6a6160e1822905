"""Every format's richest request and answer with each value of another type: never an exception.

Beside the recorded cases (test_wrong_types.py), because some shapes were never recorded.
"""

import json
from typing import Any

import pytest

from extproc.providers.answers import answer_reader
from tests.unit.event_streams import chunk, event
from tests.unit.test_request_parts import CASES
from tests.unit.test_wrong_types import accepts, twisted


@pytest.mark.parametrize(("path", "body"), [case[:2] for case in CASES], ids=lambda v: str(v)[:40])
def test_a_request_with_a_value_of_another_type(path: str, body: dict[str, Any]) -> None:
    small = json.loads(json.dumps(body).replace("Some words to count. " * 10, "Some words. "))
    # Each is read or refused, none raises; what has still the right types is read.
    accepted = [accepts(path, raw) for raw in twisted(small)]
    assert any(accepted)


USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 1},
    "completion_tokens_details": {"reasoning_tokens": 2},
    "server_tool_use": {"web_search_requests": 1},
}
CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
DELTA = {
    "role": "assistant",
    "content": [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": [{"text": "b"}]}],
    "reasoning_content": "c",
    "tool_calls": [CALL],
    "function_call": {"name": "f", "arguments": "x"},
    "audio": {"transcript": "t"},
}
CHOICE = {"index": 0, "delta": DELTA, "finish_reason": "stop", "usage": USAGE}
ITEM = {
    "type": "function_call",
    "name": "f",
    "arguments": "{}",
    "content": [{"type": "output_text", "text": "a", "refusal": "b"}],
    "summary": [{"text": "s"}],
}
RESPONSE = {
    "id": "r",
    "model": "m",
    "status": "completed",
    "error": None,
    "output": [ITEM, {"type": "web_search_call"}, {"type": "image_generation_call"}],
    "usage": {"input_tokens": 1, "output_tokens": 2, "output_tokens_details": {}},
}
METRICS = {"inputTokenCount": 1, "outputTokenCount": 2, "cacheReadInputTokenCount": 3}
STREAMS: dict[str, list[dict[str, Any]]] = {
    "openai_chat": [
        {"id": "c", "model": "m", "choices": [CHOICE], "usage": USAGE, "x_groq": {"usage": USAGE}},
        {"choices": [{"index": 0, "text": "a", "message": {"content": "b"}}], "error": None},
    ],
    "openai_responses": [
        {"type": "response.output_item.added", "output_index": 0, "item": ITEM},
        {
            "type": "response.output_text.delta",
            "output_index": 0,
            "content_index": 0,
            "delta": "a",
        },
        {"type": "response.audio.delta", "delta": "a"},
        {"type": "response.image_generation_call.partial_image"},
        {"type": "response.completed", "response": RESPONSE},
    ],
    "openai_images": [{"type": "image_generation.completed", "usage": {"output_tokens": 5}}],
    "openai_transcription": [
        {"type": "transcript.text.delta", "delta": "a"},
        {"type": "transcript.text.done", "text": "a", "usage": {"input_tokens": 1}},
    ],
    "openai_speech": [{"type": "speech.audio.done", "usage": {"input_tokens": 1}}],
    "anthropic_messages": [
        {
            "type": "message_start",
            "message": {"id": "a", "model": "m", "usage": {"input_tokens": 1}},
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "a"}},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "name": "f", "input": {"a": 1}},
        },
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "b"}},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {
                "output_tokens": 5,
                "cache_creation": {"ephemeral_5m_input_tokens": 1},
                "server_tool_use": {"web_search_requests": 1},
                "output_tokens_details": {"thinking_tokens": 2},
            },
        },
    ],
    "gemini": [
        {
            "responseId": "r",
            "modelVersion": "m",
            "promptFeedback": {"blockReason": "X"},
            "candidates": [
                {
                    "index": 0,
                    "finishReason": "STOP",
                    "content": {
                        "parts": [
                            {"text": "a", "thought": True},
                            {"functionCall": {"name": "f", "args": {"a": 1}}},
                            {"executableCode": {"code": "x"}},
                            {"inlineData": {"data": "A"}},
                        ]
                    },
                    "groundingMetadata": {"webSearchQueries": ["a"]},
                }
            ],
            "usageMetadata": {
                "promptTokenCount": 5,
                "candidatesTokenCount": 3,
                "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 2}],
            },
        }
    ],
    "gemini_embeddings": [
        {
            "embedding": {"values": [1]},
            "predictions": [{"embeddings": {"statistics": {"token_count": 3}}}],
        }
    ],
    "cohere_v2": [
        {
            "type": "content-delta",
            "index": 0,
            "delta": {
                "message": {
                    "content": {"text": "a", "thinking": "b"},
                    "tool_calls": CALL,
                    "tool_plan": "c",
                }
            },
        },
        {
            "type": "message-end",
            "delta": {
                "finish_reason": "COMPLETE",
                "usage": {
                    "billed_units": {"input_tokens": 1, "output_tokens": 2, "image_tokens": 3},
                    "tokens": {"input_tokens": 1},
                    "cached_tokens": 1,
                },
            },
        },
    ],
    "cohere_v1": [
        {"event_type": "text-generation", "text": "a"},
        {
            "event_type": "tool-calls-chunk",
            "text": "a",
            "tool_call_delta": {"index": 0, "name": "f", "parameters": {"a": 1}},
        },
        {
            "event_type": "stream-end",
            "finish_reason": "COMPLETE",
            "response": {
                "generation_id": "g",
                "text": "a",
                "tool_calls": [{"name": "f", "parameters": {"a": 1}}],
                "meta": {"billed_units": {"input_tokens": 1}},
            },
        },
    ],
    "ollama_chat": [
        {
            "model": "m",
            "message": {
                "content": "a",
                "thinking": "b",
                "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
            },
        },
        {"done": True, "done_reason": "stop", "prompt_eval_count": 3, "eval_count": 4},
    ],
    "rerank": [{"results": [{"index": 0}], "meta": {"billed_units": {"search_units": 1}}}],
}


def framed(name: str, values: list[bytes]) -> tuple[bytes, str]:
    if name in ("ollama_chat", "cohere_v1"):
        return b"\n".join(values) + b"\n", "application/x-ndjson"
    return b"".join(b"data: " + value + b"\n\n" for value in values), "text/event-stream"


def look_at(name: str, body: bytes, content_type: str) -> None:
    reader = answer_reader(
        name,
        content_type=content_type,
        content_encoding=None,
        hides_usage=True,
        encoding="o200k_base",
    )
    reader.feed(body, end=True)
    usage = reader.usage
    for number in (usage.input_tokens, usage.output_tokens, usage.reasoning_tokens):
        assert number is None or number >= 0
    assert reader.counted_output_tokens() >= 0
    assert isinstance(reader.error, bool)
    assert isinstance(reader.unread, bool)


@pytest.mark.parametrize(
    ("name", "at"), [(name, at) for name, events in STREAMS.items() for at in range(len(events))]
)
def test_an_event_with_a_value_of_another_type(name: str, at: int) -> None:
    events = json.loads(json.dumps(STREAMS[name]))
    for changed in twisted(events[at]):
        values = [json.dumps(event).encode() for event in events]
        values[at] = changed
        body, content_type = framed(name, values)
        look_at(name, body, content_type)
        look_at(name, changed, "application/json")


CONVERSE = {
    "contentBlockStart": {"contentBlockIndex": 0, "start": {"toolUse": {"name": "f"}}},
    "contentBlockDelta": {
        "contentBlockIndex": 0,
        "delta": {
            "text": "a",
            "toolUse": {"input": "x"},
            "reasoningContent": {"text": "b", "redactedContent": "c"},
            "citationsContent": {"content": [{"text": "d"}]},
        },
    },
    "messageStop": {"stopReason": "end_turn"},
    "metadata": {
        "usage": {"inputTokens": 1, "outputTokens": 2, "cacheDetails": [{"ttl": "5m"}]},
        "trace": {"promptRouter": {"invokedModelId": "m"}},
    },
}


@pytest.mark.parametrize("name", CONVERSE)
def test_bedrocks_events_with_a_value_of_another_type(name: str) -> None:
    for changed in twisted(json.loads(json.dumps(CONVERSE[name]))):
        body = event(name, json.loads(changed))
        look_at("bedrock_converse_stream", body, "application/vnd.amazon.eventstream")
    plain = {"outputs": [{"text": "a"}], "results": [{"outputText": "b", "tokenCount": 2}]}
    for whole in (
        {name: CONVERSE[name], "amazon-bedrock-invocationMetrics": METRICS, "index": 0},
        {**plain, "meta": {"tokens": {"input_tokens": 1}}},
    ):
        for changed in twisted(json.loads(json.dumps(whole))):
            body = chunk(json.loads(changed))
            look_at("bedrock_invoke_stream", body, "application/vnd.amazon.eventstream")
            look_at("bedrock_invoke", changed, "application/json")
