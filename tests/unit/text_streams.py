"""Streams of every format with text output, in small deltas and without usage.

Each function makes the events of one text as the format sends it; ``STREAMS`` names them.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from tests.unit.event_streams import chunk as aws_chunk
from tests.unit.event_streams import event as aws_event

Made = Iterable[bytes]
Maker = Callable[[list[str]], Made]
SSE, NDJSON_TYPE = "text/event-stream", "application/x-ndjson"
AWS = "application/vnd.amazon.eventstream"


def sse(value: Any, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value)}\n\n".encode()


def line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


def chat(make: Callable[[str], Any]) -> Maker:
    def events(parts: list[str]) -> Made:
        yield sse({"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant"}}]})
        for part in parts:
            yield sse({"id": "c", "choices": [{"index": 0, "delta": make(part)}]})

    return events


def call(part: str) -> Any:
    return {"tool_calls": [{"index": 0, "function": {"arguments": part}}]}


def custom_call(part: str) -> Any:
    return {"tool_calls": [{"index": 0, "type": "custom", "custom": {"input": part}}]}


CHAT: dict[str, Maker] = {
    "text": chat(lambda part: {"content": part}),
    "reasoning": chat(lambda part: {"reasoning_content": part}),
    "reasoning of others": chat(lambda part: {"reasoning": part, "content": None}),
    "refusal": chat(lambda part: {"refusal": part}),
    "tool": chat(call),
    "custom tool": chat(custom_call),
    "function": chat(lambda part: {"function_call": {"arguments": part}}),
    "parts": chat(lambda part: {"content": [{"type": "text", "text": part}]}),
    "thinking in parts": chat(
        lambda part: {"content": [{"type": "thinking", "thinking": [{"text": part}]}]}
    ),
    "transcript": chat(lambda part: {"audio": {"transcript": part}}),
}


def completions(parts: list[str]) -> Made:
    for part in parts:
        yield sse({"id": "c", "choices": [{"index": 0, "text": part, "finish_reason": None}]})


def responses(kind: str) -> Maker:
    def events(parts: list[str]) -> Made:
        yield sse({"type": "response.created", "response": {"id": "r", "status": "in_progress"}})
        for part in parts:
            yield sse({"type": kind, "output_index": 0, "delta": part}, name=kind)

    return events


def whole_items(parts: list[str]) -> Made:
    """Calls that come without deltas."""
    for at, part in enumerate(parts):
        item = {"type": "local_shell_call", "action": {"type": "exec", "command": [part]}}
        yield sse({"type": "response.output_item.done", "output_index": at, "item": item})


RESPONSES: dict[str, Maker] = {
    kind: responses(f"response.{kind}.delta")
    for kind in (
        "output_text",
        "refusal",
        "function_call_arguments",
        "custom_tool_call_input",
        "mcp_call_arguments",
        "code_interpreter_call_code",
        "reasoning_text",
        "reasoning_summary_text",
        "audio.transcript",
    )
} | {"whole items": whole_items}


def anthropic_values(parts: list[str], block: Any, make: Callable[[str], Any]) -> Iterable[Any]:
    usage = {"input_tokens": 10, "output_tokens": 1}
    yield {"type": "message_start", "message": {"id": "m", "usage": usage}}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    for part in parts:
        yield {"type": "content_block_delta", "index": 0, "delta": make(part)}


ANTHROPIC_BLOCKS: dict[str, tuple[Any, Callable[[str], Any]]] = {
    "text": ({"type": "text", "text": ""}, lambda part: {"type": "text_delta", "text": part}),
    "thinking": (
        {"type": "thinking", "thinking": ""},
        lambda part: {"type": "thinking_delta", "thinking": part},
    ),
    "tool": (
        {"type": "tool_use", "name": "look", "input": {}},
        lambda part: {"type": "input_json_delta", "partial_json": part},
    ),
    "compaction": (
        {"type": "compaction", "content": None},
        lambda part: {"type": "compaction_delta", "content": part},
    ),
}


def anthropic(kind: str) -> Maker:
    block, make = ANTHROPIC_BLOCKS[kind]
    return lambda parts: (
        sse(value, name=value["type"]) for value in anthropic_values(parts, block, make)
    )


ANTHROPIC = {kind: anthropic(kind) for kind in ANTHROPIC_BLOCKS}


def gemini_chunk(part: Any) -> Any:
    return {"candidates": [{"index": 0, "content": {"role": "model", "parts": [part]}}]}


def gemini_array(parts: list[str]) -> Made:
    yield b"["
    for at, part in enumerate(parts):
        yield (b",\r\n" if at else b"") + json.dumps(gemini_chunk({"text": part})).encode()


GEMINI: dict[str, Maker] = {
    "text": lambda parts: (sse(gemini_chunk({"text": part})) for part in parts),
    "thoughts": lambda parts: (
        sse(gemini_chunk({"text": part, "thought": True})) for part in parts
    ),
    "calls": lambda parts: (
        sse(gemini_chunk({"functionCall": {"name": "f", "args": {"a": part}}})) for part in parts
    ),
    "code": lambda parts: (sse(gemini_chunk({"executableCode": {"code": part}})) for part in parts),
    "array": gemini_array,
}


def converse_deltas(delta: Callable[[str], Any]) -> Maker:
    return lambda parts: (
        aws_event("contentBlockDelta", {"contentBlockIndex": 0, "delta": delta(part)})
        for part in parts
    )


CONVERSE: dict[str, Maker] = {
    "text": converse_deltas(lambda part: {"text": part}),
    "tool": converse_deltas(lambda part: {"toolUse": {"input": part}}),
    "thinking": converse_deltas(lambda part: {"reasoningContent": {"text": part}}),
}


def invoked(make: Callable[[str], Any]) -> Maker:
    return lambda parts: (aws_chunk(make(part)) for part in parts)


def nova(part: str) -> Any:
    return {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": part}}}


def invoked_claude(parts: list[str]) -> Made:
    return (aws_chunk(v) for v in anthropic_values(parts, *ANTHROPIC_BLOCKS["thinking"]))


INVOKE: dict[str, Maker] = {
    "claude": invoked_claude,
    "claude 2": invoked(
        lambda part: {"type": "completion", "completion": part, "stop_reason": None}
    ),
    "nova": invoked(nova),
    "llama": invoked(lambda part: {"generation": part}),
    "titan": invoked(lambda part: {"outputText": part, "index": 0}),
    "mistral": invoked(lambda part: {"outputs": [{"text": part}]}),
    "cohere": invoked(lambda part: {"event_type": "text-generation", "text": part}),
    "jamba": invoked(lambda part: {"choices": [{"index": 0, "delta": {"content": part}}]}),
}


def cohere_delta(kind: str, message: Callable[[str], Any]) -> Maker:
    return lambda parts: (
        sse({"type": kind, "index": 0, "delta": {"message": message(part)}}) for part in parts
    )


COHERE_V2: dict[str, Maker] = {
    "text": cohere_delta("content-delta", lambda part: {"content": {"text": part}}),
    "thinking": cohere_delta("content-delta", lambda part: {"content": {"thinking": part}}),
    "plan": cohere_delta("tool-plan-delta", lambda part: {"tool_plan": part}),
    "tool": cohere_delta(
        "tool-call-delta", lambda part: {"tool_calls": {"function": {"arguments": part}}}
    ),
}


def lines(make: Callable[[str], Any]) -> Maker:
    return lambda parts: (line(make(part)) for part in parts)


COHERE_V1: dict[str, Maker] = {
    "text": lines(lambda part: {"event_type": "text-generation", "text": part}),
    "tool": lines(
        lambda part: {"event_type": "tool-calls-chunk", "tool_call_delta": {"parameters": part}}
    ),
}
OLLAMA_CHAT: dict[str, Maker] = {
    "text": lines(lambda part: {"message": {"content": part}, "done": False}),
    "thinking": lines(lambda part: {"message": {"thinking": part}, "done": False}),
    "tool": lines(
        lambda part: {
            "message": {"tool_calls": [{"function": {"name": "f", "arguments": {"a": part}}}]},
            "done": False,
        }
    ),
}
OLLAMA_GENERATE: dict[str, Maker] = {
    "text": lines(lambda part: {"response": part, "done": False}),
    "thinking": lines(lambda part: {"thinking": part, "response": "", "done": False}),
}
TRANSCRIPTION: dict[str, Maker] = {
    "events": lambda parts: (sse({"type": "transcript.text.delta", "delta": p}) for p in parts),
    "plain": lambda parts: (part.encode() for part in parts),
}
# wire format -> content type, and its kinds of output
STREAMS: dict[str, tuple[str, dict[str, Maker]]] = {
    "openai_chat": (SSE, CHAT),
    "gemini_openai_chat": (SSE, CHAT),
    "vertex_openai_chat": (SSE, CHAT),
    "openai_completions": (SSE, {"text": completions}),
    "mistral_fim": (SSE, {"text": completions}),
    "mistral_agents": (SSE, CHAT),
    "openai_responses": (SSE, RESPONSES),
    "openai_transcription": (SSE, {"events": TRANSCRIPTION["events"]}),
    "anthropic_messages": (SSE, ANTHROPIC),
    "vertex_anthropic_messages": (SSE, ANTHROPIC),
    "gemini": (SSE, GEMINI),
    "vertex_gemini": (SSE, GEMINI),
    "bedrock_converse": (AWS, CONVERSE),
    "bedrock_converse_stream": (AWS, CONVERSE),
    "bedrock_invoke": (AWS, INVOKE),
    "bedrock_invoke_stream": (AWS, INVOKE),
    "cohere_v2": (SSE, COHERE_V2),
    "cohere_v1": (NDJSON_TYPE, COHERE_V1),
    "ollama_chat": (NDJSON_TYPE, OLLAMA_CHAT),
    "ollama_generate": (NDJSON_TYPE, OLLAMA_GENERATE),
}
