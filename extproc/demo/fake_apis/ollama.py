"""Ollama's chat, generate and embed (docs/api.md of ollama/ollama): streams of JSON lines, unless
``stream`` is false."""

from collections.abc import Iterator
from typing import Any

from extproc.demo.fake_answers import Frame
from extproc.demo.fake_apis.api import Api, Call, Job
from extproc.demo.fake_apis.reading import (
    capped,
    json_object,
    packed,
    required,
    scaled_tokens,
    thoughts_and_text,
)
from extproc.demo.provider_script import Script

_PERCENT, _MORE = 119, 23
_CREATED = "2026-11-30T12:00:00.000000Z"


def _read(call: Call, script: Script) -> Job:
    body = json_object(call.body)
    is_chat = call.path.endswith("/chat")
    said: list[object] = [body.get("system"), body.get("tools")]
    said.append(required(body, "messages", list) if is_chat else required(body, "prompt", str))
    limit = (body.get("options") or {}).get("num_predict", -1)
    output, was_capped = capped(script.output, limit if limit > 0 else None)
    counted = scaled_tokens(said, percent=_PERCENT, more=_MORE)
    return Job(
        model=required(body, "model", str),
        stream=body.get("stream") is not False,
        input_tokens=counted if script.input is None else script.input,
        output_tokens=output,
        capped=was_capped,
        details={"is_chat": is_chat},
    )


def _piece(job: Job, text: str, thoughts: str = "", **fields: Any) -> dict[str, Any]:
    thought = {"thinking": thoughts} if thoughts else {}
    said: dict[str, Any] = {"response": text, **thought}
    if job.details["is_chat"]:
        said = {"message": {"role": "assistant", "content": text, **thought}}
    return {"model": job.model, "created_at": _CREATED, **said, **fields}


def _end(job: Job, script: Script) -> dict[str, Any]:
    """Counts of zero are left out, as Ollama does."""
    end: dict[str, Any] = {
        "done": True,
        "done_reason": "length" if job.capped else "stop",
        "total_duration": 7_000_000,
        "load_duration": 1_000_000,
    }
    counts = {"prompt_eval_count": job.input_tokens, "eval_count": job.output_tokens}
    is_told = script.usage not in ("none", "null", "zero")
    return end | ({name: count for name, count in counts.items() if count} if is_told else {})


def _plain(job: Job, script: Script, _number: int) -> Frame:
    end = _end(job, script)
    thoughts, said = ("".join(part) for part in thoughts_and_text(job, script))
    body = _piece(job, said, thoughts, **end)
    return Frame(packed(body), job.output_tokens, "prompt_eval_count" in end)


def _stream(job: Job, script: Script, _number: int) -> Iterator[Frame]:
    thoughts, said = thoughts_and_text(job, script)
    for word in thoughts:
        yield Frame(packed(_piece(job, "", word, done=False)) + b"\n", 1)
    for word in said:
        yield Frame(packed(_piece(job, word, done=False)) + b"\n", 1)
    end = _end(job, script)
    yield Frame(packed(_piece(job, "", **end)) + b"\n", 0, "prompt_eval_count" in end)


def _embed(call: Call, script: Script) -> Job:
    body = json_object(call.body)
    given = required(body, "input", str, list)
    texts = given if isinstance(given, list) else [given]
    counted = scaled_tokens(texts, percent=_PERCENT)
    return Job(
        model=required(body, "model", str),
        stream=False,
        input_tokens=counted if script.input is None else script.input,
        details={"count": len(texts)},
    )


def _embed_plain(job: Job, script: Script, _number: int) -> Frame:
    vectors = [[0.25, -0.5, index / 8] for index in range(job.details["count"])]
    body: dict[str, Any] = {"model": job.model, "embeddings": vectors, "total_duration": 7_000_000}
    reports = script.usage not in ("none", "null")
    if reports:
        body["prompt_eval_count"] = job.input_tokens
    return Frame(packed(body), 0, reports)


def error_body(_status: int, message: str) -> bytes:
    """Only a text."""
    return packed({"error": message})


def _error_frame() -> Frame:
    return Frame(error_body(500, "an error was encountered while running the model") + b"\n")


def _api(verb: str, **fields: Any) -> Api:
    return Api(
        name=f"ollama_{verb}",
        pattern=f"/api/{verb}",
        error_body=error_body,
        error_frame=_error_frame,
        stream_type="application/x-ndjson",
        **fields,
    )


APIS = (
    _api("chat", read=_read, plain=_plain, stream=_stream),
    _api("generate", read=_read, plain=_plain, stream=_stream),
    _api("embed", read=_embed, plain=_embed_plain),
)
