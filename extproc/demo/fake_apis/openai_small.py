"""OpenAI's moderations and batches, the rerank that others serve beside its API, Azure's paths."""

from typing import Any

from extproc.demo.fake_answers import Frame, as_json
from extproc.demo.fake_apis.api import Call, Job
from extproc.demo.fake_apis.openai_shared import CREATED, openai_api
from extproc.demo.fake_apis.wires import wire_api
from extproc.demo.fake_orders import OrderError, json_object, required
from extproc.demo.fake_tokens import content_tokens, count, encoding_of
from extproc.demo.provider_script import Script

_CATEGORIES = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)


def _read_moderations(call: Call, script: Script) -> Job:
    body = json_object(call.body)
    model = str(body.get("model") or "omni-moderation-latest")
    given = body.get("input")
    if not isinstance(given, str | list) or not given:
        raise OrderError("Missing required parameter: 'input'.", param="input")
    encoding = encoding_of(model)
    texts = [given] if isinstance(given, str) else given
    are_texts = all(isinstance(text, str) for text in texts)
    counted = sum(content_tokens(text if are_texts else [text], encoding) for text in texts)
    return Job(
        model=model,
        stream=False,
        input_tokens=counted if script.input is None else script.input,
        details={"results": len(texts) if are_texts else 1},
    )


def _moderated(job: Job, script: Script, number: int) -> Frame:
    """Without usage: OpenAI reports none."""
    del script
    result = {
        "flagged": False,
        "categories": dict.fromkeys(_CATEGORIES, False),
        "category_scores": dict.fromkeys(_CATEGORIES, 0.001),
        "category_applied_input_types": {name: ["text"] for name in _CATEGORIES},
    }
    results = [result] * job.details["results"]
    return Frame(as_json({"id": f"modr-{number}", "model": job.model, "results": results}))


def _read_rerank(call: Call, script: Script) -> Job:
    """The query is read once with each document."""
    body = json_object(call.body)
    model = required(body, "model", str)
    encoding = encoding_of(model)
    documents = [
        str(document.get("text", "")) if isinstance(document, dict) else str(document)
        for document in required(body, "documents", list)
    ]
    query = count(required(body, "query", str), encoding)
    counted = sum(query + count(document, encoding) for document in documents)
    return Job(
        model=model,
        stream=False,
        input_tokens=counted if script.input is None else script.input,
        details={"documents": len(documents)},
    )


def _reranked(job: Job, script: Script, number: int) -> Frame:
    del number
    results = [
        {"index": index, "relevance_score": 1 / (index + 1)}
        for index in range(job.details["documents"])
    ]
    body: dict[str, Any] = {"model": job.model, "results": results}
    reports = script.usage not in ("none", "null")
    if reports:
        body["usage"] = {"total_tokens": job.input_tokens}
    return Frame(as_json(body), 0, reports)


def _read_batch(call: Call, script: Script) -> Job:
    """What a batch takes is known a day later: nothing is due now."""
    del script
    endpoint = required(json_object(call.body), "endpoint", str)
    return Job(model="", stream=False, input_tokens=0, details={"endpoint": endpoint})


def _batch(job: Job, script: Script, number: int) -> Frame:
    del script
    body = {
        "id": f"batch_fake{number}",
        "object": "batch",
        "endpoint": job.details["endpoint"],
        "input_file_id": "file-fake",
        "completion_window": "24h",
        "status": "validating",
        "created_at": CREATED,
    }
    return Frame(as_json(body))


_AZURE = "/openai/deployments/{model}"
APIS = (
    openai_api(
        name="openai_moderations",
        pattern="/v1/moderations",
        read=_read_moderations,
        plain=_moderated,
    ),
    openai_api(name="rerank", pattern="/v1/rerank", read=_read_rerank, plain=_reranked),
    openai_api(name="openai_batches", pattern="/v1/batches", read=_read_batch, plain=_batch),
    wire_api("chat", f"{_AZURE}/chat/completions"),
    wire_api("completions", f"{_AZURE}/completions"),
    wire_api("embeddings", f"{_AZURE}/embeddings"),
)
