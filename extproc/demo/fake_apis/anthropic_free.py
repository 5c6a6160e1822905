"""What stands beside Anthropic's messages and takes no tokens now: counting, and batches."""

from functools import partial

from extproc.demo.fake_answers import Frame, as_json, error_body
from extproc.demo.fake_apis.api import Api, Call, Job
from extproc.demo.fake_orders import json_object, required
from extproc.demo.fake_tokens import anthropic_input_tokens
from extproc.demo.provider_script import Script


def _read_count(call: Call, script: Script) -> Job:
    body = json_object(call.body)
    required(body, "messages", list)
    counted = anthropic_input_tokens(body) if script.input is None else script.input
    model = required(body, "model", str)
    return Job(model=model, stream=False, input_tokens=0, details={"counted": counted})


def _counted(job: Job, script: Script, number: int) -> Frame:
    del script, number
    return Frame(as_json({"input_tokens": job.details["counted"]}))


def _read_batch(call: Call, script: Script) -> Job:
    del script
    requests = required(json_object(call.body), "requests", list)
    return Job(model="", stream=False, input_tokens=0, details={"requests": len(requests)})


def _batch(job: Job, script: Script, number: int) -> Frame:
    del script
    counts = {"processing": job.details["requests"]}
    body = {
        "id": f"msgbatch_fake{number}",
        "type": "message_batch",
        "processing_status": "in_progress",
        "request_counts": counts
        | dict.fromkeys(("succeeded", "errored", "canceled", "expired"), 0),
        "created_at": "2026-01-01T00:00:00Z",
        "expires_at": "2026-01-02T00:00:00Z",
        "ended_at": None,
        "archived_at": None,
        "cancel_initiated_at": None,
        "results_url": None,
    }
    return Frame(as_json(body))


_api = partial(Api, error_body=lambda status, message: error_body("anthropic", status, message))
APIS = (
    _api(
        name="anthropic_count_tokens",
        pattern="/v1/messages/count_tokens",
        read=_read_count,
        plain=_counted,
    ),
    _api(
        name="anthropic_batches",
        pattern="/v1/messages/batches",
        read=_read_batch,
        plain=_batch,
    ),
)
