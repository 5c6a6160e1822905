"""OpenAI's Responses API: create, compact, count input tokens; and decisions, which are alike.

After OpenAI's API reference ("Create a model response", "Streaming events").
"""

import json
from collections.abc import Iterator, Mapping
from itertools import count as numbers_from
from typing import Any

from extproc.demo.fake_answers import Frame, as_json
from extproc.demo.fake_apis.api import Call, Job
from extproc.demo.fake_apis.openai_shared import CREATED, openai_api, sse
from extproc.demo.fake_orders import OrderError, json_object, positive, required
from extproc.demo.fake_shapes import Shape, openai_shape
from extproc.demo.fake_tokens import chat_input_tokens, count, encoding_of, words
from extproc.demo.provider_script import Script

# What a picture takes that the model makes with its tool: reported beside the model's own usage.
_IMAGE_INPUT, _IMAGE_OUTPUT = 50, 272


def _input_tokens(body: dict[str, Any], model: str) -> int:
    """The rule for chat, for the items as messages."""
    given = body.get("input")
    if not isinstance(given, str | list) or not given:
        raise OrderError("Missing required parameter: 'input'.", param="input")
    items: list[Any] = [{"role": "user", "content": given}] if isinstance(given, str) else [*given]
    if isinstance(body.get("instructions"), str):
        items.append({"role": "system", "content": body["instructions"]})
    messages = [{**item, "content": item.get("content", item.get("output"))} for item in items]
    tools = body.get("tools")
    return chat_input_tokens({"messages": messages, "tools": tools}, encoding_of(model))


def _read(call: Call, script: Script) -> Job:
    body = json_object(call.body)
    model = required(body, "model", str)
    counted = _input_tokens(body, model) if script.input is None else script.input
    cap = positive(body, "max_output_tokens")
    output = script.output if cap is None else min(script.output, cap)
    draws = any(tool.get("type") == "image_generation" for tool in body.get("tools") or ())
    waits = body.get("background") is True
    text_format = (body.get("text") or {}).get("format")
    return Job(
        model=model,
        stream=body.get("stream") is True,
        input_tokens=counted + (_IMAGE_INPUT if draws else 0),
        output_tokens=0 if waits else output,
        capped=cap is not None and cap < script.output,
        details={
            "shape": openai_shape(body, text_format),
            "reasoning": min(script.reasoning, output),
            "own_input": counted,
            "draws": draws,
            "waits": waits,
        },
    )


def _usage(job: Job, script: Script) -> dict[str, Any] | None:
    if script.usage in ("none", "null") or job.details["waits"]:
        return None
    zero = script.usage == "zero"
    given = 0 if zero else job.details["own_input"]
    produced = 0 if zero else job.output_tokens
    return {
        "input_tokens": given,
        "input_tokens_details": {
            "cached_tokens": min(script.cached, given),
            "cache_write_tokens": min(script.written, given),
        },
        "output_tokens": produced,
        "output_tokens_details": {"reasoning_tokens": 0 if zero else job.details["reasoning"]},
        "total_tokens": given + produced,
    }


def _item(job: Job, number: int, text: str) -> dict[str, Any]:
    """The message, or the call of a function, that holds all words."""
    shape: Shape = job.details["shape"]
    name = f"fake{number:08d}"
    if shape.function:
        call = {"type": "function_call", "id": f"fc_{name}", "call_id": f"call_{name}"}
        return {**call, "name": shape.function, "arguments": text, "status": "completed"}
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "type": "message",
        "id": f"msg_{name}",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def _items(job: Job, number: int) -> list[dict[str, Any]]:
    shape: Shape = job.details["shape"]
    items: list[dict[str, Any]] = []
    if job.details["reasoning"]:
        thought: dict[str, Any] = {"type": "reasoning", "id": f"rs_fake{number:08d}"}
        items.append({**thought, "summary": []})
    if job.details["draws"]:
        items.append(
            {
                "type": "image_generation_call",
                "id": f"ig_fake{number:08d}",
                "status": "completed",
                "result": "cG5n",
            }
        )
    spoken = "".join(words(job.output_tokens - job.details["reasoning"]))
    return [*items, _item(job, number, f"{shape.before}{spoken}{shape.after}")]


def _response(job: Job, number: int, *, status: str) -> dict[str, Any]:
    reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
    return {
        "id": f"resp_fake{number:08d}",
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "error": None,
        "incomplete_details": reason,
        "instructions": None,
        "metadata": {},
        "model": job.model,
        "output": [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
    }


def _whole(job: Job, script: Script, number: int) -> dict[str, Any]:
    body = _response(job, number, status="incomplete" if job.capped else "completed")
    body |= {"output": _items(job, number), "usage": _usage(job, script)}
    if script.usage == "none":
        del body["usage"]
    if job.details["draws"]:
        body["tool_usage"] = {
            "image_gen": {
                "input_tokens": _IMAGE_INPUT,
                "input_tokens_details": {"image_tokens": 0, "text_tokens": _IMAGE_INPUT},
                "output_tokens": _IMAGE_OUTPUT,
                "total_tokens": _IMAGE_INPUT + _IMAGE_OUTPUT,
            },
            "web_search": {"num_requests": 0},
        }
    return body


def _produced(job: Job) -> int:
    return job.output_tokens + (_IMAGE_OUTPUT if job.details["draws"] else 0)


def _plain(job: Job, script: Script, number: int) -> Frame:
    if job.details["waits"]:
        return Frame(as_json(_response(job, number, status="queued")))
    body = _whole(job, script, number)
    return Frame(as_json(body), _produced(job), body.get("usage") is not None)


def _item_events(job: Job, number: int, index: int) -> Iterator[Frame]:
    """The item with the words; those that were thought go with the first."""
    item = _items(job, number)[-1]
    place = {"output_index": index, "item_id": item["id"]}
    calls = item["type"] == "function_call"
    empty: dict[str, Any] = {"arguments": ""} if calls else {"content": []}
    begun = {**item, "status": "in_progress", **empty}
    yield sse({"type": "response.output_item.added", "output_index": index, "item": begun})
    if calls:
        kind, key, whole = "response.function_call_arguments", "arguments", item["arguments"]
    else:
        (part,) = item["content"]
        place |= {"content_index": 0}
        kind, key, whole = "response.output_text", "text", part["text"]
        added = {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
        yield sse(added)
    more: dict[str, Any] = {"logprobs": []} if not calls else {}
    shape: Shape = job.details["shape"]
    thought = job.details["reasoning"]
    if shape.before:
        yield sse({"type": f"{kind}.delta", **place, "delta": shape.before, **more})
    for at, word in enumerate(words(job.output_tokens - thought)):
        tokens = 1 if at else 1 + thought
        yield sse({"type": f"{kind}.delta", **place, "delta": word, **more}, tokens=tokens)
    if shape.after:
        yield sse({"type": f"{kind}.delta", **place, "delta": shape.after, **more})
    ending = {key: whole, **more} | ({"name": item["name"]} if calls else {})
    yield sse({"type": f"{kind}.done", **place, **ending})
    if not calls:
        yield sse({"type": "response.content_part.done", **place, "part": part})
    yield sse({"type": "response.output_item.done", "output_index": index, "item": item})


def _unnumbered(job: Job, script: Script, number: int) -> Iterator[Frame]:
    begun = _response(job, number, status="in_progress")
    for kind in ("response.created", "response.in_progress"):
        yield sse({"type": kind, "response": begun})
    items = _items(job, number)
    for index, item in enumerate(items[:-1]):
        is_picture = item["type"] == "image_generation_call"
        added = {**item, "status": "in_progress"}
        yield sse({"type": "response.output_item.added", "output_index": index, "item": added})
        done = {"type": "response.output_item.done", "output_index": index, "item": item}
        yield sse(done, tokens=_IMAGE_OUTPUT if is_picture else 0)
    yield from _item_events(job, number, len(items) - 1)
    body = _whole(job, script, number)
    kind = f"response.{body['status']}"
    yield sse({"type": kind, "response": body}, has_usage=body.get("usage") is not None)


def _stream(job: Job, script: Script, number: int) -> Iterator[Frame]:
    """Every event carries its number."""
    numbers = numbers_from()
    for frame in _unnumbered(job, script, number):
        marked = b',"sequence_number":%d}\n\n' % next(numbers)
        yield Frame(frame.data.removesuffix(b"}\n\n") + marked, frame.tokens, frame.has_usage)


def _read_compact(call: Call, script: Script) -> Job:
    job = _read(call, script)
    return Job(
        model=job.model,
        stream=False,
        input_tokens=job.input_tokens,
        output_tokens=script.output,
        details=job.details,
    )


def _compacted(job: Job, script: Script, number: int) -> Frame:
    body: dict[str, Any] = {
        "id": f"resp_fake{number:08d}",
        "object": "response.compaction",
        "created_at": CREATED,
        "output": [
            {
                "type": "compaction",
                "id": f"cmp_fake{number:08d}",
                "encrypted_content": "c2VhbGVk" * job.output_tokens,
            }
        ],
        "usage": _usage(job, script),
    }
    return Frame(as_json(body), job.output_tokens, body["usage"] is not None)


def _read_decisions(call: Call, script: Script) -> Job:
    body = json_object(call.body)
    model = required(body, "model", str)
    questions = required(body, "questions", list)
    asked = count(json.dumps(questions), encoding_of(model))
    counted = _input_tokens(body, model) + asked if script.input is None else script.input
    return Job(
        model=model,
        stream=False,
        input_tokens=counted,
        output_tokens=script.output,
        details={
            "own_input": counted,
            "reasoning": 0,
            "waits": False,
            "names": [question.get("name") for question in questions],
        },
    )


def _decided(job: Job, script: Script, number: int) -> Frame:
    del number
    answers = [
        {"type": "predicate", "name": name, "probability": 0.75} for name in job.details["names"]
    ]
    body = {"model": job.model, "answers": answers, "usage": _usage(job, script)}
    return Frame(as_json(body), job.output_tokens, body["usage"] is not None)


def _read_count(call: Call, script: Script) -> Job:
    """Free of charge, so nothing is due."""
    body = json_object(call.body)
    model = str(body.get("model") or "gpt-4o")
    counted = _input_tokens(body, model) if script.input is None else script.input
    return Job(model=model, stream=False, input_tokens=0, details={"counted": counted})


def _counted(job: Job, script: Script, number: int) -> Frame:
    del script, number
    details: Mapping[str, Any] = job.details
    body = {"object": "response.input_tokens", "input_tokens": details["counted"]}
    return Frame(as_json(body))


APIS = tuple(
    api
    for base in ("/v1", "/openai", "/openai/v1")
    for api in (
        openai_api(
            name="openai_responses",
            pattern=f"{base}/responses",
            read=_read,
            plain=_plain,
            stream=_stream,
        ),
        openai_api(
            name="openai_compact",
            pattern=f"{base}/responses/compact",
            read=_read_compact,
            plain=_compacted,
        ),
        openai_api(
            name="openai_decisions",
            pattern=f"{base}/decisions",
            read=_read_decisions,
            plain=_decided,
        ),
        openai_api(
            name="openai_input_tokens",
            pattern=f"{base}/responses/input_tokens",
            read=_read_count,
            plain=_counted,
        ),
    )
)
