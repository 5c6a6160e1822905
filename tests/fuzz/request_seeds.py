"""Requests to begin with: one or more for every wire format, recorded ones and our own."""

import json
from functools import cache
from typing import Any, NamedTuple

from extproc.providers.formats import BUILT_IN
from extproc.providers.registry import route_at
from extproc.providers.wire_formats import WireFormat
from tests.unit.provider_cases import request_cases

# A recorded body that is larger says nothing that a smaller one does not, and is slow to change.
_MOST_BYTES = 20_000
_FORM = "multipart/form-data; boundary=XyZ"
_HOST = "api.example"


class RequestSeed(NamedTuple):
    """One request. ``host`` is what ``:authority`` says."""

    path: str
    body: bytes
    content_type: str | None = None
    content_encoding: str | None = None
    host: str = _HOST


WIRE_FORMATS: dict[str, WireFormat] = {
    route.name: route for route in BUILT_IN if isinstance(route, WireFormat)
}
_PNG = "iVBORw0KGgoAAAANSUhEUgAAAyAAAAJYCAIAAAAVFBUnAAAA"
_WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA="
_TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
_CHAT = {
    "model": "gpt-4o",
    "n": 2,
    "max_tokens": 50,
    "max_completion_tokens": 60,
    "stream": True,
    "stream_options": {"include_usage": False},
    "messages": [
        {"role": "system", "name": "a", "content": "Be short."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this? 汉字 👩‍👩‍👧"},
                {
                    "type": "image_url",
                    "image_url": {"url": f"data:image/png;base64,{_PNG}", "detail": "high"},
                },
                {"type": "input_audio", "input_audio": {"data": _WAV, "format": "wav"}},
                {"type": "file", "file": {"file_data": "AAAA"}},
            ],
        },
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "15 degrees"},
    ],
    "tools": [{"type": "function", "function": _TOOL}],
    "functions": [_TOOL],
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}},
}
_RESPONSES = {
    "model": "gpt-4o",
    "max_output_tokens": 9,
    "stream": True,
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning", "encrypted_content": "AAAA", "summary": []},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "image_generation_call", "id": "i", "status": "completed"},
        {"type": "item_reference", "id": "m"},
    ],
    "instructions": "x",
    "text": {"format": {"type": "json_schema", "schema": {}}},
    "prompt": {"id": "x", "variables": {"a": "b"}},
    "conversation": "c",
    "tools": [{"type": "web_search"}],
}
_MESSAGES: dict[str, Any] = {
    "anthropic_version": "2023-06-01",
    "max_tokens": 64,
    "stream": True,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "image", "source": {"type": "base64", "data": _PNG}},
                {"type": "document", "source": {"type": "text", "data": "x"}, "title": "t"},
                {"type": "tool_result", "tool_use_id": "i", "content": [{"type": "text"}]},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "AAAA"},
                {"type": "redacted_thinking", "data": "AAAA"},
                {"type": "tool_use", "name": "f", "input": {"a": 1}, "id": "i"},
            ],
        },
    ],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
}
_GEMINI = {
    "contents": [
        {
            "role": "user",
            "parts": [
                {"text": "Hi"},
                {"inlineData": {"mimeType": "image/png", "data": _PNG}},
                {"inline_data": {"mime_type": "audio/wav", "data": _WAV}},
                {"fileData": {"mimeType": "video/mp4", "fileUri": "u"}, "mediaResolution": "LOW"},
                {"inlineData": {"mimeType": "text/plain", "data": "SGVsbG8"}},
                {"functionCall": {"name": "f", "args": {"a": 1}}},
                {"functionResponse": {"name": "f", "response": {"b": 2}, "parts": []}},
            ],
        }
    ],
    "systemInstruction": {"parts": [{"text": "s"}]},
    "generationConfig": {
        "maxOutputTokens": 10,
        "candidateCount": 2,
        "responseSchema": {"type": "OBJECT"},
        "mediaResolution": "MEDIA_RESOLUTION_LOW",
    },
    "tools": [{"functionDeclarations": [_TOOL]}],
    "cachedContent": "cachedContents/a",
}
_EMBED_CONTENT = {"content": {"parts": [{"text": "a"}]}, "title": "t"}
_CONVERSE = {
    "system": [{"text": "s"}, {"cachePoint": {"type": "default"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"text": "x"},
                {"image": {"format": "png", "source": {"bytes": _PNG}}},
                {"document": {"format": "pdf", "name": "d", "source": {"bytes": "AAAA"}}},
                {"document": {"format": "txt", "name": "d", "source": {"text": "AAAA"}}},
                {"video": {"format": "mp4", "source": {"bytes": "AAAA"}}},
                {"audio": {"format": "wav", "source": {"s3Location": {"uri": "u"}}}},
                {"toolResult": {"toolUseId": "t", "content": [{"json": {"a": 1}}]}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "t", "signature": "AAAA"}}},
                {"reasoningContent": {"redactedContent": "AAAA"}},
                {"toolUse": {"toolUseId": "t", "name": "f", "input": {"a": 1}}},
            ],
        },
    ],
    "inferenceConfig": {"maxTokens": 7},
    "toolConfig": {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {}}}}]},
    "additionalModelRequestFields": {"max_tokens": 3, "inferenceConfig": {"max_new_tokens": 2}},
    "promptVariables": {"a": {"text": "b"}},
    "outputConfig": {"textFormat": {"type": "json_schema"}},
}
_TITAN = {
    "inputText": "x",
    "textGenerationConfig": {"maxTokenCount": 5, "stopSequences": []},
    "n": 2,
    "tools": [_TOOL],
    "chat_history": [{"role": "USER", "message": "x"}],
    "documents": [{"title": "t"}],
}
_COHERE_V1 = {
    "model": "command-r",
    "message": "x",
    "preamble": "p",
    "chat_history": [{"role": "USER", "message": "x"}, "y"],
    "max_tokens": 5,
    "stream": True,
    "tools": [_TOOL],
    "tool_results": [{"call": {}, "outputs": [{}]}],
    "documents": [{"text": "x"}, "y"],
    "response_format": {"type": "json_object"},
}
_OLLAMA = {
    "model": "llama3.2",
    "messages": [
        {"role": "user", "content": "x", "images": [_PNG]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
    ],
    "tools": [{"type": "function", "function": _TOOL}],
    "options": {"num_predict": 9, "temperature": 0.5},
    "stream": False,
    "format": "json",
}
_RERANK = {"model": "r", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1}
_IMAGES = {"model": "gpt-image-1", "prompt": "x", "n": 2, "size": "1536x1024", "stream": True}
_VERTEX = "/v1/projects/p/locations/l/publishers"
_VALUES: tuple[tuple[str, object], ...] = (
    ("/v1beta/openai/chat/completions", _CHAT),
    ("/v1beta/openai/embeddings", {"model": "m", "input": ["a", "b"]}),
    ("/v1beta/openai/images/generations", _IMAGES | {"quality": "high", "partial_images": 2}),
    ("/v1/projects/p/locations/l/endpoints/openapi/chat/completions", _CHAT),
    ("/v1/projects/p/locations/l/endpoints/openapi/embeddings", {"model": "m", "input": "a"}),
    ("/v1/chat/completions", _CHAT),
    ("/openai/deployments/d/chat/completions", {"messages": []}),
    ("/v1/completions", {"model": "m", "prompt": ["a", "b"], "best_of": 3, "max_tokens": 9}),
    ("/v1/completions", {"model": "m", "prompt": [[1, 2], [3]], "suffix": "s", "stream": True}),
    ("/v1/responses", _RESPONSES),
    ("/v1/embeddings", {"model": "text-embedding-3-small", "input": [1, 2, 3]}),
    ("/v1/embeddings", {"model": "e", "messages": [{"role": "user", "content": "x"}]}),
    ("/v1/images/generations", _IMAGES),
    ("/v1/audio/transcriptions", {"model": "whisper-1", "url": "u", "prompt": "p"}),
    ("/v1/audio/speech", {"model": "tts-1", "input": "x", "instructions": "y"}),
    ("/v1/moderations", {"input": ["a", {"type": "text", "text": "x"}]}),
    ("/v1/fim/completions", {"model": "m", "prompt": "a", "suffix": "b", "max_tokens": 9}),
    ("/v1/agents/completions", {"agent_id": "ag:1", "messages": _CHAT["messages"], "n": 2}),
    (
        "/v1/decisions",
        {"model": "gpt-5", "input": _RESPONSES["input"], "questions": [{"question": "x"}]},
    ),
    ("/v1/messages", _MESSAGES | {"model": "claude-opus-4-7"}),
    ("/v2/rerank", _RERANK),
    ("/v1/rerank", _RERANK),
    (f"{_VERTEX}/google/models/gemini-3-pro:streamGenerateContent", _GEMINI),
    (f"{_VERTEX}/google/models/e:embedContent", _EMBED_CONTENT),
    (f"{_VERTEX}/google/models/text-embedding-004:predict", {"instances": [{"content": "a"}]}),
    (f"{_VERTEX}/anthropic/models/claude-x:streamRawPredict", _MESSAGES),
    ("/v1beta/models/gemini-2.5-pro:generateContent", _GEMINI),
    ("/v1beta/models/e:batchEmbedContents", {"requests": [_EMBED_CONTENT]}),
    ("/model/anthropic.claude-3-haiku/converse", _CONVERSE),
    ("/model/us.amazon.nova-pro-v1%3A0/converse-stream", _CONVERSE),
    ("/model/amazon.titan-embed-text-v2/invoke", {"inputText": "x", "dimensions": 256}),
    ("/model/amazon.titan-text/invoke", _TITAN),
    ("/model/amazon.nova-pro/invoke-with-response-stream", _CONVERSE),
    ("/model/anthropic.claude-3/invoke-with-response-stream", _MESSAGES),
    ("/v2/chat", {"model": "c", "messages": _CHAT["messages"], "max_tokens": 3, "tools": [_TOOL]}),
    ("/v1/chat", _COHERE_V1),
    (
        "/v2/embed",
        {"model": "e", "texts": ["a"], "images": ["data:,"], "inputs": [{"content": []}]},
    ),
    ("/api/chat", _OLLAMA),
    ("/api/generate", {"model": "l", "prompt": "x", "images": [_PNG], "context": [1, 2]}),
    ("/api/embed", {"model": "l", "input": ["a", "b"]}),
)


def _form(*parts: tuple[str, bytes]) -> bytes:
    head = b"--XyZ\r\nContent-Disposition: form-data; "
    body = b"".join(head + name.encode() + b"\r\n\r\n" + data + b"\r\n" for name, data in parts)
    return body + b"--XyZ--\r\n"


_FORMS = (
    RequestSeed(
        "/v1/audio/transcriptions",
        _form(
            ('name="model"', b"whisper-1"),
            ('name="file"; filename="a.wav"', b"RIFF\x24\0\0\0WAVEfmt " + bytes(40)),
            ('name="stream"', b"true"),
        ),
        _FORM,
    ),
    RequestSeed(
        "/v1/images/edits",
        _form(
            ('name="prompt"', b"x"),
            ('name="n"', b"2"),
            ('name="image[]"; filename="a.png"', b"\x89PNG"),
            ('name="image[]"; filename="b.png"', b"\x89PNG"),
        ),
        _FORM,
    ),
)


@cache
def request_seeds() -> dict[str, list[RequestSeed]]:
    """By the name of the format; every format has at least one that is read without an error."""
    seeds = [
        RequestSeed(path, json.dumps(value, ensure_ascii=False).encode()) for path, value in _VALUES
    ]
    for case in request_cases():
        if len(case.body) < _MOST_BYTES:
            headers = case.headers
            seeds.append(
                RequestSeed(
                    case.path,
                    case.body,
                    headers.get("content-type"),
                    headers.get("content-encoding"),
                )
            )
    found: dict[str, list[RequestSeed]] = {name: [] for name in WIRE_FORMATS}
    for seed in [*seeds, *_FORMS]:
        route = route_at(seed.path)
        if route is not None and route.name in found:
            found[route.name].append(seed)
    return found
