"""Google's generateContent, plain and streamed, embeddings and countTokens, also under Vertex AI.

Shapes follow Google's API reference (GenerateContentResponse). A search adds
some prompt, which is counted apart.
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
)
from extproc.demo.fake_orders import OrderError
from extproc.demo.fake_tokens import words
from extproc.demo.provider_script import Script

_TOOL_PROMPT_TOKENS = 23
_PERCENT, _MORE = 127, 11
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def _read(call: Call, script: Script) -> Job:
    body = json_object(call.body)
    contents = required(body, "contents", list)
    if not all(isinstance(content, dict) and content.get("parts") for content in contents):
        raise OrderError("contents: each needs parts.", param="contents")
    config = body.get("generationConfig") or {}
    output, was_capped = capped(script.output, cap_of(config, "maxOutputTokens"))
    thoughts = min(script.reasoning, output)
    thinking = config.get("thinkingConfig") or {}
    # Google takes both spellings, and its own client uses both.
    shown = thinking.get("includeThoughts") or thinking.get("include_thoughts")
    prompt = scaled_tokens([contents, body.get("systemInstruction")], percent=_PERCENT, more=_MORE)
    tool = sum(_TOOL_PROMPT_TOKENS for each in body.get("tools") or [] if "googleSearch" in each)
    is_stream = call.path.endswith("streamGenerateContent")
    return Job(
        model=call.match["model"],
        stream=is_stream,
        input_tokens=prompt + tool if script.input is None else script.input,
        output_tokens=output - thoughts,
        capped=was_capped,
        choices=cap_of(config, "candidateCount") or 1,
        content_type="application/json" if is_stream and call.query.get("alt") != "sse" else None,
        details={
            "thoughts": thoughts,
            "shows_thoughts": shown is True,
            "tool": tool if script.input is None else min(tool, script.input),
        },
    )


def _usage(job: Job, script: Script, *, visible: int, thoughts: int) -> dict[str, Any]:
    """Numbers so far. Zeros are left out, as JSON of protocol buffers does."""
    if script.usage == "zero":
        return {"promptTokenCount": 0, "candidatesTokenCount": 0, "totalTokenCount": 0}
    prompt = job.input_tokens - job.details["tool"]
    numbers = {
        "promptTokenCount": prompt,
        "candidatesTokenCount": visible,
        "cachedContentTokenCount": min(script.cached, prompt),
        "toolUsePromptTokenCount": job.details["tool"],
        "thoughtsTokenCount": thoughts,
        "totalTokenCount": job.input_tokens + visible + thoughts,
    }
    told: dict[str, Any] = {name: number for name, number in numbers.items() if number}
    return told | {"promptTokensDetails": [{"modality": "TEXT", "tokenCount": prompt}]}


def _candidate(index: int, *parts: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}}
    if finish is not None:
        candidate["finishReason"] = finish
    return candidate | ({"index": index} if index else {})


def _answer(job: Job, number: int, **fields: Any) -> dict[str, Any]:
    return {**fields, "modelVersion": job.model, "responseId": f"gemini-fake{number:08d}"}


def _finish(job: Job) -> str:
    return "MAX_TOKENS" if job.capped else "STOP"


def _plain(job: Job, script: Script, number: int) -> Frame:
    thoughts = job.details["thoughts"]
    candidates = []
    for index in range(job.choices):
        parts: list[dict[str, Any]] = [{"text": "".join(words(job.output_tokens, start=index))}]
        if job.details["shows_thoughts"] and thoughts and not index:
            parts.insert(0, {"text": "".join(words(thoughts)), "thought": True})
        candidates.append(_candidate(index, *parts, finish=_finish(job)))
    visible = job.output_tokens * job.choices
    body = _answer(job, number, candidates=candidates)
    reports = script.usage not in ("none", "null")
    if reports:
        body["usageMetadata"] = _usage(job, script, visible=visible, thoughts=thoughts)
    return Frame(packed(body), visible + thoughts, reports)


def _steps(job: Job) -> Iterator[tuple[list[dict[str, Any]], int, int]]:
    """What each chunk brings: its candidates, visible tokens, thoughts.

    Thoughts that are not shown come with the first chunk that has something to show."""
    unseen = job.details["thoughts"]
    if job.details["shows_thoughts"]:
        for word in words(unseen):
            yield [_candidate(0, {"text": word, "thought": True})], 0, 1
        unseen = 0
    texts = [words(job.output_tokens, start=index) for index in range(job.choices)]
    for step in zip(*texts, strict=True):
        for index, word in enumerate(step):
            yield [_candidate(index, {"text": word})], 1, unseen
            unseen = 0
    last = [_candidate(at, {"text": ""}, finish=_finish(job)) for at in range(job.choices)]
    yield last, 0, unseen


def _stream(job: Job, script: Script, number: int) -> Iterator[Frame]:
    reports = script.usage not in ("none", "null", "late")
    is_array = job.content_type is not None
    begin, end = (b"[", b"") if is_array else (b"data: ", b"\r\n\r\n")
    visible = thoughts = 0
    for candidates, seen, thought in _steps(job):
        visible, thoughts = visible + seen, thoughts + thought
        body = _answer(job, number, candidates=candidates)
        if reports:
            body["usageMetadata"] = _usage(job, script, visible=visible, thoughts=thoughts)
        yield Frame(begin + packed(body) + end, seen + thought, reports)
        begin = b",\r\n" if is_array else begin
    if script.usage == "late":
        usage = _usage(job, script, visible=visible, thoughts=thoughts)
        body = _answer(job, number, usageMetadata=usage)
        yield Frame(begin + packed(body) + end, 0, has_usage=True)
    if is_array:
        yield Frame(b"]")


def _vector(index: int) -> list[float]:
    return [0.25, -0.5, index / 8]


def _read_embedding(call: Call, script: Script) -> Job:
    """``embedContent``, ``batchEmbedContents``, and Vertex's older ``predict``."""
    body = json_object(call.body)
    verb = call.path.rpartition(":")[2]
    field = {"batchEmbedContents": "requests", "predict": "instances"}.get(verb, "content")
    asked = required(body, field, list, dict)
    texts = asked if isinstance(asked, list) else [asked]
    contents = [text.get("content") if field == "requests" else text for text in texts]
    counts = [scaled_tokens(content, percent=_PERCENT, more=_MORE) for content in contents]
    if script.input is not None:
        counts = [script.input, *(0 for _ in counts[1:])]
    return Job(
        model=call.match["model"],
        stream=False,
        input_tokens=sum(counts),
        output_tokens=0,
        details={"counts": counts, "verb": verb},
    )


def _plain_embedding(job: Job, script: Script, _number: int) -> Frame:
    counts: list[int] = job.details["counts"]
    reports = script.usage not in ("none", "null")
    if job.details["verb"] == "predict":
        predictions = []
        for index, count in enumerate(counts):
            embeddings: dict[str, Any] = {"values": _vector(index)}
            if reports:
                embeddings["statistics"] = {"truncated": False, "token_count": count}
            predictions.append({"embeddings": embeddings})
        return Frame(packed({"predictions": predictions}), 0, reports)
    vectors = [{"values": _vector(index)} for index in range(len(counts))]
    is_batch = job.details["verb"] == "batchEmbedContents"
    body: dict[str, Any] = {"embeddings": vectors} if is_batch else {"embedding": vectors[0]}
    if reports:
        body["usageMetadata"] = {"promptTokenCount": job.input_tokens}
    return Frame(packed(body), 0, reports)


def _read_count(call: Call, _script: Script) -> Job:
    """Counting is free: it has no input that anybody bills."""
    body = json_object(call.body)
    counted = scaled_tokens(required(body, "contents", list), percent=_PERCENT, more=_MORE)
    return Job(
        model=call.match["model"],
        stream=False,
        input_tokens=0,
        output_tokens=0,
        details={"counted": counted},
    )


def _plain_count(job: Job, _script: Script, _number: int) -> Frame:
    return Frame(packed({"totalTokens": job.details["counted"]}))


def error_body(status: int, message: str) -> bytes:
    """Google's ``google.rpc.Status``."""
    word = _STATUSES.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
    return packed({"error": {"code": status, "message": message, "status": word}})


def _error_frame() -> Frame:
    return Frame(b"data: " + error_body(503, "The model is overloaded.") + b"\r\n\r\n")


def _api(verb: str, **fields: Any) -> Api:
    # Vertex has more before the model than a version.
    return Api(
        name=f"gemini_{verb}",
        pattern=f"/{{base:.+}}/models/{{model}}:{verb}",
        error_body=error_body,
        error_frame=_error_frame,
        **fields,
    )


APIS = (
    _api("generateContent", read=_read, plain=_plain),
    _api("streamGenerateContent", read=_read, plain=_plain, stream=_stream),
    _api("embedContent", read=_read_embedding, plain=_plain_embedding),
    _api("batchEmbedContents", read=_read_embedding, plain=_plain_embedding),
    _api("predict", read=_read_embedding, plain=_plain_embedding),
    _api("countTokens", read=_read_count, plain=_plain_count),
)
