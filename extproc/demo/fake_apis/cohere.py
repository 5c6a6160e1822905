"""Cohere's chat (v2 and v1, plain and streamed), embed and rerank.

Shapes follow docs.cohere.com/reference. ``billed_units`` are what Cohere bills, so they are the
truth; ``tokens`` have in addition what Cohere writes around a prompt.
"""

from collections.abc import Iterator
from typing import Any

from extproc.demo.fake_answers import Frame
from extproc.demo.fake_apis.api import Api, Call, Job
from extproc.demo.fake_apis.reading import (
    cap_of,
    capped,
    json_object,
    packed,
    required,
    scaled_tokens,
    text_tokens,
    thoughts_and_text,
)
from extproc.demo.fake_tokens import words
from extproc.demo.provider_script import Script

_PERCENT, _MORE = 121, 13
_UNBILLED_TOKENS = 66


def _is_v2(call: Call) -> bool:
    return call.path.startswith("/v2/")


def _chat(call: Call, script: Script) -> Job:
    body = json_object(call.body)
    if _is_v2(call):
        model = required(body, "model", str)
        said: list[object] = [required(body, "messages", list)]
    else:
        model = body.get("model") or "command"
        said = [required(body, "message", str), body.get("preamble"), body.get("chat_history")]
    output, was_capped = capped(script.output, cap_of(body, "max_tokens"))
    counted = scaled_tokens(said, percent=_PERCENT, more=_MORE)
    return Job(
        model=model,
        stream=body.get("stream") is True,
        input_tokens=counted if script.input is None else script.input,
        output_tokens=output,
        capped=was_capped,
    )


def _units(job: Job, script: Script) -> dict[str, Any]:
    if script.usage == "zero":
        return {"billed_units": {"input_tokens": 0, "output_tokens": 0}}
    return {
        "billed_units": {"input_tokens": job.input_tokens, "output_tokens": job.output_tokens},
        "tokens": {
            "input_tokens": job.input_tokens + _UNBILLED_TOKENS,
            "output_tokens": job.output_tokens,
        },
        "cached_tokens": min(script.cached, job.input_tokens),
    }


def _reports(script: Script) -> bool:
    return script.usage not in ("none", "null")


def _text(job: Job) -> str:
    return "".join(words(job.output_tokens))


def _finish(job: Job) -> str:
    return "MAX_TOKENS" if job.capped else "COMPLETE"


def _chat_plain(job: Job, script: Script, number: int) -> Frame:
    thoughts, said = ("".join(part) for part in thoughts_and_text(job, script))
    content = [{"type": "text", "text": said}]
    if thoughts:
        content.insert(0, {"type": "thinking", "thinking": thoughts})
    message = {"role": "assistant", "content": content}
    body: dict[str, Any] = {
        "id": f"cohere-fake{number:08d}",
        "finish_reason": _finish(job),
        "message": message,
    }
    if _reports(script):
        body["usage"] = _units(job, script)
    return Frame(packed(body), job.output_tokens, _reports(script))


def _event(kind: str, *, tokens: int = 0, has_usage: bool = False, **fields: Any) -> Frame:
    body = packed({"type": kind, **fields})
    return Frame(b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n", tokens, has_usage)


def _chat_stream(job: Job, script: Script, number: int) -> Iterator[Frame]:
    start = {"message": {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": []}}
    yield _event("message-start", id=f"cohere-fake{number:08d}", delta=start)
    thoughts, said = ([*part] for part in thoughts_and_text(job, script))
    blocks = [("thinking", thoughts), ("text", said)]
    for index, (kind, parts) in enumerate(block for block in blocks if block[1]):
        block = {"message": {"content": {"type": kind, kind: ""}}}
        yield _event("content-start", index=index, delta=block)
        for word in parts:
            delta = {"message": {"content": {kind: word}}}
            yield _event("content-delta", tokens=1, index=index, delta=delta)
        yield _event("content-end", index=index)
    end: dict[str, Any] = {"finish_reason": _finish(job)}
    if _reports(script):
        end["usage"] = _units(job, script)
    yield _event("message-end", has_usage=_reports(script), delta=end)
    yield Frame(b"data: [DONE]\n\n")


def _v1_answer(job: Job, script: Script, number: int) -> dict[str, Any]:
    text = _text(job)
    meta: dict[str, Any] = {"api_version": {"version": "1"}}
    if _reports(script):
        meta |= _units(job, script)
    return {
        "response_id": f"cohere-fake{number:08d}",
        "text": text,
        "generation_id": f"generation-fake{number:08d}",
        "chat_history": [{"role": "CHATBOT", "message": text}],
        "finish_reason": _finish(job),
        "meta": meta,
    }


def _v1_plain(job: Job, script: Script, number: int) -> Frame:
    return Frame(packed(_v1_answer(job, script, number)), job.output_tokens, _reports(script))


def _line(kind: str, *, tokens: int = 0, has_usage: bool = False, **fields: Any) -> Frame:
    body = packed({"is_finished": kind == "stream-end", "event_type": kind, **fields})
    return Frame(body + b"\n", tokens, has_usage)


def _v1_stream(job: Job, script: Script, number: int) -> Iterator[Frame]:
    yield _line("stream-start", generation_id=f"generation-fake{number:08d}")
    for word in words(job.output_tokens):
        yield _line("text-generation", tokens=1, text=word)
    response = _v1_answer(job, script, number)
    reports = _reports(script)
    yield _line("stream-end", has_usage=reports, finish_reason=_finish(job), response=response)


def _embed(call: Call, script: Script) -> Job:
    body = json_object(call.body)
    texts = required(body, "texts", list)
    counted = scaled_tokens(texts, percent=_PERCENT)
    return Job(
        model=body.get("model") or "embed",
        stream=False,
        input_tokens=counted if script.input is None else script.input,
        details={"texts": texts, "types": body.get("embedding_types"), "is_v2": _is_v2(call)},
    )


def _embed_plain(job: Job, script: Script, number: int) -> Frame:
    texts = job.details["texts"]
    vectors = [[0.25, -0.5, index / 8] for index in range(len(texts))]
    by_type = job.details["is_v2"] or job.details["types"]
    meta: dict[str, Any] = {"api_version": {"version": "2" if job.details["is_v2"] else "1"}}
    if _reports(script):
        meta["billed_units"] = {"input_tokens": job.input_tokens}
    body = {
        "id": f"embed-fake{number:08d}",
        "texts": texts,
        "embeddings": {"float": vectors} if by_type else vectors,
        "response_type": "embeddings_by_type" if by_type else "embeddings_floats",
        "meta": meta,
    }
    return Frame(packed(body), 0, _reports(script))


def _rerank(call: Call, script: Script) -> Job:
    """Billed by searches. As tokens, what the model reads: the query with each document."""
    body = json_object(call.body)
    documents = required(body, "documents", list)
    query = text_tokens(required(body, "query", str))
    read = sum(query + text_tokens(document) for document in documents)
    return Job(
        model=required(body, "model", str),
        stream=False,
        input_tokens=read if script.input is None else script.input,
        details={"count": len(documents)},
    )


def _rerank_plain(job: Job, _script: Script, number: int) -> Frame:
    count = job.details["count"]
    results = [{"index": at, "relevance_score": 1 / (1 + at)} for at in range(count)]
    units = {"search_units": -(-count // 100)}
    meta = {"api_version": {"version": "2"}, "billed_units": units}
    return Frame(packed({"id": f"rerank-fake{number:08d}", "results": results, "meta": meta}))


def error_body(_status: int, message: str) -> bytes:
    """A message and an id."""
    return packed({"id": "fake", "message": message})


def _v2_error() -> Frame:
    delta = {"error": "The model is overloaded.", "finish_reason": "ERROR"}
    return _event("message-end", delta=delta)


def _v1_error() -> Frame:
    return _line("stream-end", finish_reason="ERROR", response={"message": "internal error"})


APIS = (
    Api(
        name="cohere_chat",
        pattern="/v2/chat",
        read=_chat,
        plain=_chat_plain,
        stream=_chat_stream,
        error_body=error_body,
        error_frame=_v2_error,
    ),
    Api(
        name="cohere_v1_chat",
        pattern="/v1/chat",
        read=_chat,
        plain=_v1_plain,
        stream=_v1_stream,
        error_body=error_body,
        error_frame=_v1_error,
        stream_type="application/stream+json",
    ),
    Api(
        name="cohere_embed",
        pattern="/{version:v1|v2}/embed",
        read=_embed,
        plain=_embed_plain,
        error_body=error_body,
    ),
    Api(
        name="cohere_rerank",
        pattern="/v2/rerank",
        read=_rerank,
        plain=_rerank_plain,
        error_body=error_body,
    ),
)
