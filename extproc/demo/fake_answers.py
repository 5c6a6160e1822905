"""The fake provider's answers as bytes: OpenAI's chat completions, completions and embeddings.

Nothing here knows about sockets: a stream is a sequence of frames, and the server decides how many
of them are written. Formats follow OpenAI's public API reference.
"""

import base64
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from extproc.demo.fake_orders import Order
from extproc.demo.fake_tokens import words
from extproc.demo.provider_script import Script

_CREATED = 1_760_000_000  # a fixed time: the same request always has the same answer
_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of a stream (or a whole plain body), and the output tokens that it carries."""

    data: bytes
    tokens: int = 0
    has_usage: bool = False


def said(order: Order, *, choice: int = 0) -> str:
    """What a choice says, thoughts left out, in the shape that was asked for."""
    text = "".join(words(order.output_tokens - order.reasoning, start=choice))
    return f"{order.shape.before}{text}{order.shape.after}"


def _usage(order: Order, script: Script, output_tokens: int) -> dict[str, Any]:
    if script.usage == "zero":
        return {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    usage: dict[str, Any] = {
        "prompt_tokens": order.input_tokens,
        "total_tokens": order.input_tokens + output_tokens,
    }
    if order.wire != "embeddings":
        usage["completion_tokens"] = output_tokens
        usage["prompt_tokens_details"] = {"cached_tokens": min(script.cached, order.input_tokens)}
        reasoning = order.reasoning * order.choices
        usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return usage


def _finish(order: Order) -> str:
    if order.capped:
        return "length"
    return "tool_calls" if order.shape.function else "stop"


def answer_id(order: Order, number: int) -> str:
    """The id that the answer carries, in the provider's own style."""
    prefix = {"chat": "chatcmpl-", "completions": "cmpl-", "anthropic": "msg_"}
    return f"{prefix.get(order.wire, 'embd-')}fake{number:08d}"


def as_json(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def _call(order: Order, arguments: str, *, index: int) -> dict[str, Any]:
    function = {"name": order.shape.function, "arguments": arguments}
    return {"id": f"call_fake{index}", "type": "function", "function": function}


def _plain(order: Order, number: int) -> dict[str, Any]:
    finish = _finish(order)
    choices: list[dict[str, Any]] = []
    for index in range(order.choices):
        choice: dict[str, Any] = {"index": index, "finish_reason": finish, "logprobs": None}
        text = said(order, choice=index)
        if order.wire != "chat":
            choice["text"] = text
        elif order.shape.function:
            call = _call(order, text, index=index)
            choice["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
        else:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        choices.append(choice)
    return {
        "id": answer_id(order, number),
        "object": "chat.completion" if order.wire == "chat" else "text_completion",
        "created": _CREATED,
        "model": order.model,
        "choices": choices,
    }


def _plain_embeddings(order: Order) -> dict[str, Any]:
    vectors: list[dict[str, Any]] = []
    for index in range(order.inputs):
        vector: Any = [0.25, -0.5, index / 8]
        if order.as_base64:
            vector = base64.b64encode(struct.pack("<3f", *vector)).decode()
        vectors.append({"object": "embedding", "index": index, "embedding": vector})
    return {"object": "list", "data": vectors, "model": order.model}


def plain_frame(order: Order, script: Script, number: int) -> Frame:
    """The whole body of an answer that is not streamed."""
    produced = order.output_tokens * order.choices
    body = _plain_embeddings(order) if order.wire == "embeddings" else _plain(order, number)
    usage = _usage(order, script, produced)
    if script.usage == "null":
        body["usage"] = None
    elif script.usage == "in_choice" and "choices" in body:
        body["choices"][0]["usage"] = usage
    elif script.usage != "none":
        body["usage"] = usage
    sent = script.usage not in ("null", "none")
    return Frame(as_json(body), produced, sent)


def _choice(order: Order, index: int, text: str, finish: str | None) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "finish_reason": finish, "logprobs": None}
    if order.wire == "chat":
        delta: dict[str, Any] = {"content": text} if text else {}
        if text and order.shape.function:
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        choice["delta"] = delta
    else:
        choice["text"] = text
    return choice


def stream_frames(order: Order, script: Script, number: int) -> Iterator[Frame]:
    """The events of a streamed answer, in order, the terminal one included.

    What was thought goes with the first word, because it was produced before it."""
    head = {
        "id": answer_id(order, number),
        "object": "chat.completion.chunk" if order.wire == "chat" else "text_completion",
        "created": _CREATED,
        "model": order.model,
    }
    mode = script.usage
    final_usage = order.asks_usage and mode in ("normal", "zero", "late")
    sent = 0

    def frame(choices: list[dict[str, Any]], *, tokens: int = 0) -> Frame:
        body: dict[str, Any] = {**head, "choices": choices}
        if mode == "every_chunk":
            body["usage"] = _usage(order, script, sent)
        elif mode == "null" or final_usage:
            body["usage"] = None  # OpenAI sends null in all chunks but the last when asked
        return Frame(b"data: " + as_json(body) + b"\n\n", tokens, mode == "every_chunk")

    if order.wire == "chat":
        for index in range(order.choices):
            delta: dict[str, Any] = {"role": "assistant", "content": ""}
            if order.shape.function:
                delta = {**delta, "tool_calls": [{"index": 0, **_call(order, "", index=index)}]}
            start = {"index": index, "delta": delta}
            yield frame([{**start, "finish_reason": None, "logprobs": None}])
    if order.shape.before:
        for index in range(order.choices):
            yield frame([_choice(order, index, order.shape.before, None)])
    spoken = order.output_tokens - order.reasoning
    texts = [words(spoken, start=index) for index in range(order.choices)]
    for at, step in enumerate(zip(*texts, strict=True)):
        for index, word in enumerate(step):
            tokens = 1 if at else 1 + order.reasoning
            sent += tokens
            yield frame([_choice(order, index, word, None)], tokens=tokens)
    if order.shape.after:
        for index in range(order.choices):
            yield frame([_choice(order, index, order.shape.after, None)])
    for index in range(order.choices):
        last = _choice(order, index, "", _finish(order))
        if mode == "in_choice":
            last["usage"] = _usage(order, script, sent)
        ending = frame([last])
        yield Frame(ending.data, 0, ending.has_usage or mode == "in_choice")
    usage_body: dict[str, Any] = {
        **head,
        "choices": [],
        "usage": _usage(order, script, sent),
    }
    usage_frame = Frame(b"data: " + as_json(usage_body) + b"\n\n", 0, has_usage=True)
    if final_usage and mode != "late":
        yield usage_frame
    yield Frame(_DONE)
    if final_usage and mode == "late":
        yield usage_frame


_OPENAI_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 429: "tokens"}
_ANTHROPIC_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def error_body(wire: str, status: int, message: str, *, param: str | None = None) -> bytes:
    """An error in the shape of the provider whose API was called."""
    if wire == "anthropic":
        kind = _ANTHROPIC_ERRORS.get(status, "api_error")
        error: dict[str, Any] = {"type": kind, "message": message}
        return as_json({"type": "error", "error": error, "request_id": "req_fake"})
    kind = _OPENAI_ERRORS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = "rate_limit_exceeded" if status == 429 else None
    return as_json({"error": {"message": message, "type": kind, "param": param, "code": code}})


def error_frame(wire: str) -> Frame:
    """An error in the middle of a stream that began with status 200."""
    body = error_body(wire, 529 if wire == "anthropic" else 500, "The model is overloaded.")
    name = b"event: error\n" if wire == "anthropic" else b""
    return Frame(name + b"data: " + body + b"\n\n")
