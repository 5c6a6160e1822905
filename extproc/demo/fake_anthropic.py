"""The fake provider's answers in the wire format of Anthropic's messages and their events."""

import json
from collections.abc import Iterator
from typing import Any

from extproc.demo.fake_answers import Frame, answer_id, as_json, said
from extproc.demo.fake_orders import Order
from extproc.demo.fake_tokens import words
from extproc.demo.provider_script import Script

_SIGNATURE = "c2lnbmVk"


def _usage(order: Order, script: Script, output_tokens: int) -> dict[str, Any]:
    """Anthropic's ``input_tokens`` does not include what was read from a cache or written to it."""
    if script.usage == "zero":
        return {"input_tokens": 0, "output_tokens": 0}
    cached = min(script.cached, order.input_tokens)
    written = min(script.written, order.input_tokens - cached)
    return {
        "input_tokens": order.input_tokens - cached - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "output_tokens": output_tokens,
    }


def _iterations(order: Order, output_tokens: int) -> dict[str, Any]:
    """Per sampling; nothing where there was only one."""
    samplings = (*order.others, ("message", order.input_tokens, output_tokens))
    entries = [
        {
            "type": kind,
            "input_tokens": given,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "output_tokens": produced,
        }
        for kind, given, produced in samplings
    ]
    return {"iterations": entries} if order.others else {}


def _summary(order: Order) -> dict[str, Any] | None:
    compacts = any(kind == "compaction" for kind, _, _ in order.others)
    return {"type": "compaction", "content": "All that was said."} if compacts else None


def _stop_reason(order: Order) -> str:
    if order.capped:
        return "max_tokens"
    return "tool_use" if order.shape.function else "end_turn"


def _message(order: Order, number: int) -> dict[str, Any]:
    return {
        "id": answer_id(order, number),
        "type": "message",
        "role": "assistant",
        "model": order.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _tool_use(order: Order, arguments: Any) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": "toolu_fake",
        "name": order.shape.function,
        "input": arguments,
    }


def message_frame(order: Order, script: Script, number: int) -> Frame:
    """The whole body of an answer that is not streamed."""
    summary = _summary(order)
    content: list[dict[str, Any]] = [summary] if summary else []
    if order.reasoning and order.shows_thinking:
        thoughts = "".join(words(order.reasoning, start=1))
        content.append({"type": "thinking", "thinking": thoughts, "signature": _SIGNATURE})
    if order.shape.function:
        content.append(_tool_use(order, json.loads(said(order))))
    else:
        content.append({"type": "text", "text": said(order)})
    body = {**_message(order, number), "content": content, "stop_reason": _stop_reason(order)}
    usage = _usage(order, script, order.output_tokens) | _iterations(order, order.output_tokens)
    if order.reasoning:
        usage["output_tokens_details"] = {"thinking_tokens": order.reasoning}
    if script.usage == "null":
        body["usage"] = None
    elif script.usage != "none":
        body["usage"] = usage
    sent = script.usage not in ("null", "none")
    return Frame(as_json(body), order.output_tokens + _by_others(order), sent)


def _by_others(order: Order) -> int:
    return sum(produced for _, _, produced in order.others)


def _event(name: str, *, has_usage: bool = False, tokens: int = 0, **fields: Any) -> Frame:
    body = as_json({"type": name, **fields})
    return Frame(b"event: " + name.encode() + b"\ndata: " + body + b"\n\n", tokens, has_usage)


def _delta(index: int, delta: dict[str, str], *, tokens: int = 0) -> Frame:
    return _event("content_block_delta", tokens=tokens, index=index, delta=delta)


def _compaction(block: dict[str, Any]) -> Iterator[Frame]:
    empty = {"type": "compaction", "content": None}
    yield _event("content_block_start", index=0, content_block=empty)
    yield _delta(0, {"type": "compaction_delta", "content": block["content"]})
    yield _event("content_block_stop", index=0)


def _thinking(order: Order, index: int) -> Iterator[Frame]:
    block = {"type": "thinking", "thinking": "", "signature": ""}
    yield _event("content_block_start", index=index, content_block=block)
    for word in words(order.reasoning, start=1):
        yield _delta(index, {"type": "thinking_delta", "thinking": word}, tokens=1)
    yield _delta(index, {"type": "signature_delta", "signature": _SIGNATURE})
    yield _event("content_block_stop", index=index)


def _answer(order: Order, index: int, hidden: int) -> Iterator[Frame]:
    """Text or a call. ``hidden`` tokens of thought go with the first word."""
    kind, key, block = "text_delta", "text", {"type": "text", "text": ""}
    if order.shape.function:
        kind, key, block = "input_json_delta", "partial_json", _tool_use(order, {})
    yield _event("content_block_start", index=index, content_block=block)
    yield _event("ping")
    if order.shape.before:
        yield _delta(index, {"type": kind, key: order.shape.before})
    for at, word in enumerate(words(order.output_tokens - order.reasoning)):
        yield _delta(index, {"type": kind, key: word}, tokens=1 if at else 1 + hidden)
    if order.shape.after:
        yield _delta(index, {"type": kind, key: order.shape.after})
    yield _event("content_block_stop", index=index)


def message_frames(order: Order, script: Script, number: int) -> Iterator[Frame]:
    """The events of a streamed answer, in order, the terminal one included."""
    reports = script.usage not in ("none", "null")
    message = _message(order, number)
    if reports:
        # The first report has the whole input and one output token; later ones are totals.
        message["usage"] = _usage(order, script, 1)
    elif script.usage == "null":
        message["usage"] = None
    yield _event("message_start", has_usage=reports, message=message, tokens=_by_others(order))
    summary = _summary(order)
    index = 0
    if summary:
        yield from _compaction(summary)
        index += 1
    shown = bool(order.reasoning and order.shows_thinking)
    if shown:
        yield from _thinking(order, index)
        index += 1
    yield from _answer(order, index, 0 if shown else order.reasoning)
    ending: dict[str, Any] = {"delta": {"stop_reason": _stop_reason(order), "stop_sequence": None}}
    if reports:
        ending["usage"] = {"output_tokens": 0 if script.usage == "zero" else order.output_tokens}
        ending["usage"] |= _iterations(order, order.output_tokens)
        if order.reasoning:
            ending["usage"]["output_tokens_details"] = {"thinking_tokens": order.reasoning}
    elif script.usage == "null":
        ending["usage"] = None
    yield _event("message_delta", has_usage=reports, **ending)
    yield _event("message_stop")
