"""AWS's Bedrock: Converse, InvokeModel, each with its stream, and CountTokens.

Shapes follow AWS's API reference of the runtime; what InvokeModel carries is the model's own
(``bedrock_models``).
"""

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from extproc.demo.fake_answers import Frame
from extproc.demo.fake_apis import bedrock_models as models
from extproc.demo.fake_apis.api import Api, Call, Job
from extproc.demo.fake_apis.event_messages import event, exception
from extproc.demo.fake_apis.reading import (
    cap_of,
    capped,
    json_object,
    packed,
    required,
    thoughts_and_text,
)
from extproc.demo.fake_orders import OrderError
from extproc.demo.provider_script import Script

_EVENT_STREAM = "application/vnd.amazon.eventstream"
_EXCEPTIONS = {
    400: "ValidationException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    424: "ModelErrorException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
}
# AWS fills its events up, so that their sizes do not tell the text.
_PADDING = "abcdefghijklm"


def _converse(call: Call, script: Script) -> Job:
    body = json_object(call.body)
    messages = required(body, "messages", list)
    for said in messages:
        if not isinstance(said, dict) or not isinstance(said.get("content"), list):
            raise OrderError("messages: each needs a list of content blocks.", param="messages")
    cap = cap_of(body.get("inferenceConfig"), "maxTokens")
    output, was_capped = capped(script.output, cap)
    counted = models.text_input([messages, body.get("system"), body.get("toolConfig")])
    return Job(
        model=call.match["model"],
        stream=call.path.endswith("-stream"),
        input_tokens=counted if script.input is None else script.input,
        output_tokens=output,
        capped=was_capped,
    )


def _metadata(job: Job, script: Script) -> dict[str, Any]:
    metrics = {"metrics": {"latencyMs": 7}}
    if script.usage in ("none", "null"):
        return metrics
    return metrics | {"usage": models.aws_usage(job, script, job.output_tokens)}


def _converse_plain(job: Job, script: Script, _number: int) -> Frame:
    thoughts, said = ("".join(part) for part in thoughts_and_text(job, script))
    content: list[dict[str, Any]] = [{"text": said}]
    if thoughts:
        content.insert(0, {"reasoningContent": {"reasoningText": {"text": thoughts}}})
    body = {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": models.stop_reason(job),
        **_metadata(job, script),
    }
    return Frame(packed(body), job.output_tokens, "usage" in body)


def _converse_event(name: str, *, tokens: int = 0, **fields: Any) -> Frame:
    payload = packed({**fields, "p": _PADDING})
    return Frame(event(name, payload), tokens, has_usage="usage" in fields)


def _converse_stream(job: Job, script: Script, _number: int) -> Iterator[Frame]:
    yield _converse_event("messageStart", role="assistant")
    thoughts, said = thoughts_and_text(job, script)
    blocks: list[list[dict[str, Any]]] = [
        [{"reasoningContent": {"text": word}} for word in thoughts],
        [{"text": word} for word in said],
    ]
    for index, deltas in enumerate(block for block in blocks if block):
        for delta in deltas:
            yield _converse_event(
                "contentBlockDelta", tokens=1, contentBlockIndex=index, delta=delta
            )
        yield _converse_event("contentBlockStop", contentBlockIndex=index)
    yield _converse_event("messageStop", stopReason=models.stop_reason(job))
    yield _converse_event("metadata", **_metadata(job, script))


def _invoke(call: Call, script: Script) -> Job:
    body = json_object(call.body)
    family = models.family_of(call.match["model"])
    asked, cap = family.read(body)
    output, was_capped = capped(script.output, cap)
    return Job(
        model=call.match["model"],
        stream=call.path.endswith("-stream"),
        input_tokens=asked if script.input is None else script.input,
        output_tokens=output if family.stream is not None else 0,
        capped=was_capped,
        details={"family": family},
    )


def _invoke_plain(job: Job, script: Script, number: int) -> Frame:
    family: models.Family = job.details["family"]
    body = family.plain(job, script, number)
    return Frame(packed(body), job.output_tokens, family.tells_usage(script))


def _invoke_headers(job: Job, script: Script) -> dict[str, str]:
    """AWS's numbers, whatever the model's body says."""
    if script.usage in ("none", "null"):
        return {}
    metrics = models.invocation_metrics(job, script)
    return {
        "x-amzn-bedrock-input-token-count": str(metrics["inputTokenCount"]),
        "x-amzn-bedrock-output-token-count": str(metrics["outputTokenCount"]),
        "x-amzn-bedrock-invocation-latency": str(metrics["invocationLatency"]),
    }


def _chunk(body: Mapping[str, Any], *, tokens: int, has_usage: bool) -> Frame:
    inner = base64.b64encode(packed(body)).decode()
    return Frame(event("chunk", packed({"bytes": inner, "p": _PADDING})), tokens, has_usage)


def _invoke_stream(job: Job, script: Script, number: int) -> Iterator[Frame]:
    """The model's own events; AWS adds its numbers to the last."""
    family: models.Family = job.details["family"]
    assert family.stream is not None
    *events, (last, tokens) = family.stream(job, script, number)
    for body, produced in events:
        yield _chunk(body, tokens=produced, has_usage=False)
    reports = script.usage not in ("none", "null")
    if reports:
        last = last | {"amazon-bedrock-invocationMetrics": models.invocation_metrics(job, script)}
    yield _chunk(last, tokens=tokens, has_usage=reports)


def _count(call: Call, _script: Script) -> Job:
    """Counting is free: it has no input that anybody bills."""
    asked = json_object(call.body).get("input")
    inner = required(asked if isinstance(asked, dict) else {}, "converse", dict)
    counted = models.text_input([inner.get("messages"), inner.get("system")])
    return Job(
        model=call.match["model"], stream=False, input_tokens=0, details={"counted": counted}
    )


def _count_plain(job: Job, _script: Script, _number: int) -> Frame:
    return Frame(packed({"inputTokens": job.details["counted"]}))


def _name_of(status: int) -> str:
    return _EXCEPTIONS.get(
        status, "InternalServerException" if status >= 500 else "ValidationException"
    )


def error_body(_status: int, message: str) -> bytes:
    """Which error it is, stands in a header."""
    return packed({"message": message})


def error_headers(status: int) -> dict[str, str]:
    """The exception's name, with the address of its namespace as AWS has it."""
    space = "http://internal.amazon.com/coral/com.amazon.bedrock/"
    return {"x-amzn-errortype": f"{_name_of(status)}:{space}"}


def _error_frame() -> Frame:
    return Frame(exception("throttlingException", packed({"message": "The model is overloaded."})))


def _api(action: str, **fields: Any) -> Api:
    return Api(
        name=f"bedrock_{action}",
        pattern=f"/model/{{model}}/{action}",
        error_body=error_body,
        error_headers=error_headers,
        error_frame=_error_frame,
        stream_type=_EVENT_STREAM,
        **fields,
    )


APIS = (
    _api("converse", read=_converse, plain=_converse_plain),
    _api("converse-stream", read=_converse, plain=_converse_plain, stream=_converse_stream),
    _api("invoke", read=_invoke, plain=_invoke_plain, plain_headers=_invoke_headers),
    _api("invoke-with-response-stream", read=_invoke, plain=_invoke_plain, stream=_invoke_stream),
    _api("count-tokens", read=_count, plain=_count_plain),
)
