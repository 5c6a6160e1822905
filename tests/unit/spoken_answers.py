"""Streamed answers in every framing, made of texts and running reports of usage."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from extproc.providers.answers import AnswerReader, answer_reader
from tests.unit.event_streams import chunk, event

Report = tuple[int, int]  # input and output tokens so far
Framing = Literal["sse", "lines", "array", "binary"]


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _chat(texts: Sequence[str], reports: Sequence[Report]) -> list[bytes]:
    events = [_json({"choices": [{"index": 0, "delta": {"content": text}}]}) for text in texts]
    for prompt, output in reports:
        usage = {"prompt_tokens": prompt, "completion_tokens": output}
        events.append(_json({"choices": [], "usage": usage}))
    return [*events, b"[DONE]"]


def _completions(texts: Sequence[str], reports: Sequence[Report]) -> list[bytes]:
    events = [_json({"choices": [{"index": 0, "text": text}]}) for text in texts]
    for prompt, output in reports:
        usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": 0}
        usage["total_tokens"] = prompt + output
        events.append(_json({"choices": [{"index": 0, "text": ""}], "usage": usage}))
    return [*events, b"[DONE]"]


def _responses(texts: Sequence[str], reports: Sequence[Report]) -> list[bytes]:
    kind = "response.output_text.delta"
    events = [_json({"type": kind, "output_index": 0, "delta": text}) for text in texts]
    for prompt, output in reports:
        usage = {"input_tokens": prompt, "output_tokens": output}
        response = {"status": "completed", "usage": usage}
        events.append(_json({"type": "response.completed", "response": response}))
    return events


def _anthropic(texts: Sequence[str], reports: Sequence[Report]) -> list[bytes]:
    start: dict[str, Any] = {"type": "message_start", "message": {"usage": None}}
    if reports:
        start["message"]["usage"] = {"input_tokens": reports[0][0], "output_tokens": 1}
    events = [_json(start)]
    for text in texts:
        delta = {"type": "text_delta", "text": text}
        events.append(_json({"type": "content_block_delta", "index": 0, "delta": delta}))
    for prompt, output in reports:
        usage = {"input_tokens": prompt, "output_tokens": output}
        events.append(_json({"type": "message_delta", "delta": {}, "usage": usage}))
    return [*events, _json({"type": "message_stop"})]


def _gemini(texts: Sequence[str], reports: Sequence[Report]) -> list[bytes]:
    events = [_json({"candidates": [{"content": {"parts": [{"text": text}]}}]}) for text in texts]
    for prompt, output in reports:
        usage = {"promptTokenCount": prompt, "candidatesTokenCount": output}
        events.append(_json({"usageMetadata": usage}))
    return events


def _converse(texts: Sequence[str], reports: Sequence[Report]) -> list[bytes]:
    events = [
        event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": text}})
        for text in texts
    ]
    events.append(event("messageStop", {"stopReason": "end_turn"}))
    for prompt, output in reports:
        usage = {"inputTokens": prompt, "outputTokens": output}
        events.append(event("metadata", {"usage": usage}))
    return events


def _invoke(texts: Sequence[str], reports: Sequence[Report]) -> list[bytes]:
    events = [chunk(json.loads(value)) for value in _anthropic(texts, ())[1:-1]]
    for prompt, output in reports:
        metrics = {"inputTokenCount": prompt, "outputTokenCount": output}
        stop = {"type": "message_stop", "amazon-bedrock-invocationMetrics": metrics}
        events.append(chunk(stop))
    return events


def _ollama(texts: Sequence[str], reports: Sequence[Report]) -> list[bytes]:
    events = [_json({"message": {"content": text}, "done": False}) for text in texts]
    for prompt, output in reports:
        counts = {"prompt_eval_count": prompt, "eval_count": output}
        events.append(_json({"message": {"content": ""}, "done": True, **counts}))
    return events


def _cohere(texts: Sequence[str], reports: Sequence[Report]) -> list[bytes]:
    events = []
    for text in texts:
        delta = {"message": {"content": {"text": text}}}
        events.append(_json({"type": "content-delta", "index": 0, "delta": delta}))
    for prompt, output in reports:
        usage = {"billed_units": {"input_tokens": prompt, "output_tokens": output}}
        delta_end = {"finish_reason": "COMPLETE", "usage": usage}
        events.append(_json({"type": "message-end", "delta": delta_end}))
    return events


@dataclass(frozen=True, slots=True)
class Spoken:
    """How one format streams. ``events`` are framed by ``body``."""

    wire_format: str
    framing: Framing
    events: Callable[[Sequence[str], Sequence[Report]], list[bytes]]

    @property
    def content_type(self) -> str:
        if self.framing == "sse":
            return "text/event-stream"
        if self.framing == "binary":
            return "application/vnd.amazon.eventstream"
        return "application/x-ndjson" if self.framing == "lines" else "application/json"

    def body(
        self, texts: Sequence[str], reports: Sequence[Report], *, newline: bytes = b"\n"
    ) -> bytes:
        """The whole stream. ``newline`` matters where lines are the framing."""
        events = self.events(texts, reports)
        if self.framing == "sse":
            return b"".join(b"data: " + one + newline + newline for one in events)
        if self.framing == "lines":
            return b"".join(one + newline for one in events)
        if self.framing == "array":
            return b"[" + (b"," + newline).join(events) + b"]"
        return b"".join(events)

    def reader(
        self, *, content_type: str | None = "", content_encoding: str | None = None
    ) -> AnswerReader:
        """``content_type`` "" is the format's own."""
        return answer_reader(
            self.wire_format,
            content_type=self.content_type if content_type == "" else content_type,
            content_encoding=content_encoding,
            hides_usage=False,
            encoding="o200k_base",
        )


SPOKEN = {
    "chat": Spoken("openai_chat", "sse", _chat),
    "completions": Spoken("openai_completions", "sse", _completions),
    "responses": Spoken("openai_responses", "sse", _responses),
    "anthropic": Spoken("anthropic_messages", "sse", _anthropic),
    "gemini": Spoken("gemini", "sse", _gemini),
    "gemini array": Spoken("gemini", "array", _gemini),
    "converse": Spoken("bedrock_converse_stream", "binary", _converse),
    "invoke": Spoken("bedrock_invoke_stream", "binary", _invoke),
    "ollama": Spoken("ollama_chat", "lines", _ollama),
    "cohere": Spoken("cohere_v2", "sse", _cohere),
}


def fed(reader: AnswerReader, chunks: Sequence[bytes]) -> AnswerReader:
    """The same reader at the end of an answer that nothing may change."""
    for at, piece in enumerate(chunks):
        assert reader.feed(piece, end=at == len(chunks) - 1) is None
    return reader
