"""The fake provider's answers as bytes, in OpenAI's and in Anthropic's wire format.

Nothing here knows about sockets: a stream is a sequence of frames, and the server decides how many
of them are written. Formats follow the two providers' public API references (chat completions,
completions, embeddings; messages and its streaming events).
"""

import json
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


def _text(order: Order, choice: int) -> str:
    return "".join(words(order.output_tokens, start=choice))


def _openai_usage(order: Order, script: Script, output_tokens: int) -> dict[str, Any]:
    if script.usage == "zero":
        return {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    usage: dict[str, Any] = {
        "prompt_tokens": order.input_tokens,
        "total_tokens": order.input_tokens + output_tokens,
    }
    if order.wire != "embeddings":
        usage["completion_tokens"] = output_tokens
        usage["prompt_tokens_details"] = {"cached_tokens": min(script.cached, order.input_tokens)}
        usage["completion_tokens_details"] = {"reasoning_tokens": 0}
    return usage


def _anthropic_usage(order: Order, script: Script, output_tokens: int) -> dict[str, Any]:
    """Anthropic's ``input_tokens`` does not include what was read from the cache."""
    if script.usage == "zero":
        return {"input_tokens": 0, "output_tokens": 0}
    cached = min(script.cached, order.input_tokens)
    return {
        "input_tokens": order.input_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output_tokens,
    }


def _openai_finish(order: Order) -> str:
    return "length" if order.capped else "stop"


def _anthropic_finish(order: Order) -> str:
    return "max_tokens" if order.capped else "end_turn"


def answer_id(order: Order, number: int) -> str:
    """The id that the answer carries, in the provider's own style."""
    prefix = {"chat": "chatcmpl-", "completions": "cmpl-", "anthropic": "msg_"}
    return f"{prefix.get(order.wire, 'embd-')}fake{number:08d}"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _plain_openai(order: Order, script: Script, number: int) -> dict[str, Any]:
    finish = _openai_finish(order)
    choices: list[dict[str, Any]] = []
    for index in range(order.choices):
        choice: dict[str, Any] = {"index": index, "finish_reason": finish, "logprobs": None}
        if order.wire == "chat":
            content = _text(order, index)
            choice["message"] = {"role": "assistant", "content": content, "refusal": None}
        else:
            choice["text"] = _text(order, index)
        choices.append(choice)
    return {
        "id": answer_id(order, number),
        "object": "chat.completion" if order.wire == "chat" else "text_completion",
        "created": _CREATED,
        "model": order.model,
        "choices": choices,
    }


def _plain_embeddings(order: Order) -> dict[str, Any]:
    vectors = [
        {"object": "embedding", "index": index, "embedding": [0.25, -0.5, index / 8]}
        for index in range(order.inputs)
    ]
    return {"object": "list", "data": vectors, "model": order.model}


def plain_frame(order: Order, script: Script, number: int) -> Frame:
    """The whole body of an answer that is not streamed."""
    produced = order.output_tokens * order.choices
    if order.wire == "anthropic":
        body: dict[str, Any] = {
            "id": answer_id(order, number),
            "type": "message",
            "role": "assistant",
            "model": order.model,
            "content": [{"type": "text", "text": _text(order, 0)}],
            "stop_reason": _anthropic_finish(order),
            "stop_sequence": None,
        }
        usage = _anthropic_usage(order, script, produced)
    else:
        embeds = order.wire == "embeddings"
        body = _plain_embeddings(order) if embeds else _plain_openai(order, script, number)
        usage = _openai_usage(order, script, produced)
    if script.usage == "null":
        body["usage"] = None
    elif script.usage == "in_choice" and "choices" in body:
        body["choices"][0]["usage"] = usage
    elif script.usage != "none":
        body["usage"] = usage
    sent = script.usage not in ("null", "none")
    return Frame(_json(body), produced, sent)


def _openai_choice(order: Order, index: int, text: str, finish: str | None) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "finish_reason": finish, "logprobs": None}
    if order.wire == "chat":
        choice["delta"] = {"content": text} if text else {}
    else:
        choice["text"] = text
    return choice


def _openai_stream(order: Order, script: Script, number: int) -> Iterator[Frame]:
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
            body["usage"] = _openai_usage(order, script, sent)
        elif mode == "null" or final_usage:
            body["usage"] = None  # OpenAI sends null in all chunks but the last when asked
        return Frame(b"data: " + _json(body) + b"\n\n", tokens, mode == "every_chunk")

    if order.wire == "chat":
        for index in range(order.choices):
            start = {"index": index, "delta": {"role": "assistant", "content": ""}}
            yield frame([{**start, "finish_reason": None, "logprobs": None}])
    texts = [words(order.output_tokens, start=index) for index in range(order.choices)]
    for step in zip(*texts, strict=True):
        for index, word in enumerate(step):
            sent += 1
            yield frame([_openai_choice(order, index, word, None)], tokens=1)
    for index in range(order.choices):
        last = _openai_choice(order, index, "", _openai_finish(order))
        if mode == "in_choice":
            last["usage"] = _openai_usage(order, script, sent)
        ending = frame([last])
        yield Frame(ending.data, 0, ending.has_usage or mode == "in_choice")
    usage_body: dict[str, Any] = {
        **head,
        "choices": [],
        "usage": _openai_usage(order, script, sent),
    }
    usage_frame = Frame(b"data: " + _json(usage_body) + b"\n\n", 0, has_usage=True)
    if final_usage and mode != "late":
        yield usage_frame
    yield Frame(_DONE)
    if final_usage and mode == "late":
        yield usage_frame


def _event(name: str, *, has_usage: bool = False, tokens: int = 0, **fields: Any) -> Frame:
    body = _json({"type": name, **fields})
    return Frame(b"event: " + name.encode() + b"\ndata: " + body + b"\n\n", tokens, has_usage)


def _anthropic_stream(order: Order, script: Script, number: int) -> Iterator[Frame]:
    reports = script.usage not in ("none", "null")
    message: dict[str, Any] = {
        "id": answer_id(order, number),
        "type": "message",
        "role": "assistant",
        "model": order.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }
    if reports:
        # The first report has the whole input and one output token; later ones are totals.
        message["usage"] = _anthropic_usage(order, script, 1)
    elif script.usage == "null":
        message["usage"] = None
    yield _event("message_start", has_usage=reports, message=message)
    block = {"type": "text", "text": ""}
    yield _event("content_block_start", index=0, content_block=block)
    yield _event("ping")
    for word in words(order.output_tokens):
        delta = {"type": "text_delta", "text": word}
        yield _event("content_block_delta", tokens=1, index=0, delta=delta)
    yield _event("content_block_stop", index=0)
    ending: dict[str, Any] = {
        "delta": {"stop_reason": _anthropic_finish(order), "stop_sequence": None}
    }
    if reports:
        produced = 0 if script.usage == "zero" else order.output_tokens
        ending["usage"] = {"output_tokens": produced}
    elif script.usage == "null":
        ending["usage"] = None
    yield _event("message_delta", has_usage=reports, **ending)
    yield _event("message_stop")


def stream_frames(order: Order, script: Script, number: int) -> Iterator[Frame]:
    """The events of a streamed answer, in order, the terminal one included."""
    stream = _anthropic_stream if order.wire == "anthropic" else _openai_stream
    return stream(order, script, number)


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
        return _json({"type": "error", "error": error, "request_id": "req_fake"})
    kind = _OPENAI_ERRORS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = "rate_limit_exceeded" if status == 429 else None
    return _json({"error": {"message": message, "type": kind, "param": param, "code": code}})


def error_frame(wire: str) -> Frame:
    """An error in the middle of a stream that began with status 200."""
    body = error_body(wire, 529 if wire == "anthropic" else 500, "The model is overloaded.")
    name = b"event: error\n" if wire == "anthropic" else b""
    return Frame(name + b"data: " + body + b"\n\n")
