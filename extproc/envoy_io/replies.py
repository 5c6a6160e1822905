"""Answers to Envoy: prebuilt where they do not vary, and immediate responses to the client."""

import math
import random
from collections.abc import Mapping

from envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.type.v3.http_status_pb2 import HttpStatus

from extproc.core.buckets import Unit
from extproc.core.handles import (
    METERED_KEY,
    NAMESPACE,
    UNMETERED_KEY,
    duration_text,
    limit_fields,
)
from extproc.core.reservations import Admitted, Refusal, Rejected
from extproc.core.resolve import BLOCK_LABEL
from extproc.envoy_io.attributes import fill_struct

_MOST_JITTER_SECONDS = 5
_CONTINUE = pb.CommonResponse.CONTINUE

CONTINUE_REQUEST_BODY = pb.ProcessingResponse(
    request_body=pb.BodyResponse(response=pb.CommonResponse(status=_CONTINUE))
)
CONTINUE_RESPONSE_HEADERS = pb.ProcessingResponse(response_headers=pb.HeadersResponse())
CONTINUE_RESPONSE_BODY = pb.ProcessingResponse(response_body=pb.BodyResponse())
CONTINUE_RESPONSE_TRAILERS = pb.ProcessingResponse(response_trailers=pb.TrailersResponse())

# OpenAI's word for a quota that is used up; its clients do not retry it.
INSUFFICIENT_QUOTA = "insufficient_quota"

# A client that stores no state of ours cannot be asked to come back sooner than this.
_UNAVAILABLE_RETRY_SECONDS = 1
_CONFLICT, _CONFLICT_RETRY_SECONDS = 409, 1


def mark_metered(reply: pb.ProcessingResponse) -> None:
    """Tell the ending that metering has settled this request."""
    struct = reply.dynamic_metadata.fields[NAMESPACE].struct_value
    struct.fields[METERED_KEY].number_value = 1


def _with_mark(plain: pb.ProcessingResponse) -> pb.ProcessingResponse:
    reply = pb.ProcessingResponse()
    reply.CopyFrom(plain)
    mark_metered(reply)
    return reply


METERED_RESPONSE_HEADERS = _with_mark(CONTINUE_RESPONSE_HEADERS)
METERED_RESPONSE_BODY = _with_mark(CONTINUE_RESPONSE_BODY)
METERED_RESPONSE_TRAILERS = _with_mark(CONTINUE_RESPONSE_TRAILERS)


# They are many, and always the same.
_PREBUILT = {
    id(reply): reply.SerializeToString()
    for reply in (
        CONTINUE_RESPONSE_HEADERS,
        CONTINUE_RESPONSE_BODY,
        CONTINUE_RESPONSE_TRAILERS,
        METERED_RESPONSE_HEADERS,
        METERED_RESPONSE_BODY,
        METERED_RESPONSE_TRAILERS,
    )
}


def serialized(reply: pb.ProcessingResponse) -> bytes:
    """The bytes of a reply, known already for those that are never changed."""
    known: bytes | None = _PREBUILT.get(id(reply))
    return reply.SerializeToString() if known is None else known


def admitted_reply(
    verdict: Admitted, fields: Mapping[str, str], *, new_body: bytes | None
) -> pb.ProcessingResponse:
    """Let the request through, with the handle and the headers' values as dynamic metadata."""
    reply = pb.ProcessingResponse()
    common = reply.request_body.response
    common.status = _CONTINUE
    if new_body is not None:
        common.body_mutation.body = new_body
    struct = reply.dynamic_metadata.fields[NAMESPACE].struct_value
    fill_struct(struct, fields)
    fill_struct(struct, limit_fields(verdict))
    return reply


def unmetered_reply(reason: str) -> pb.ProcessingResponse:
    """Let the request through without a reservation, and tell the ending that it is counted."""
    reply = pb.ProcessingResponse()
    reply.CopyFrom(CONTINUE_REQUEST_BODY)
    struct = reply.dynamic_metadata.fields[NAMESPACE].struct_value
    struct.fields[UNMETERED_KEY].string_value = reason
    return reply


def body_reply(replacement: bytes | None, *, metered: bool) -> pb.ProcessingResponse:
    """Answer to a chunk of the response; None passes it unchanged."""
    if replacement is None:
        return METERED_RESPONSE_BODY if metered else CONTINUE_RESPONSE_BODY
    reply = pb.ProcessingResponse(response_body=pb.BodyResponse())
    mutation = reply.response_body.response.body_mutation
    if replacement:
        mutation.body = replacement
    else:
        mutation.clear_body = True
    if metered:
        mark_metered(reply)
    return reply


def immediate(
    status: int, body: bytes, *, headers: Mapping[str, str], details: str
) -> pb.ProcessingResponse:
    """Answer the client at once; the upstream is never called."""
    options = [
        HeaderValueOption(
            header=HeaderValue(key=key, raw_value=value.encode("latin-1", "replace")),
            append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
        )
        for key, value in headers.items()
        if value
    ]
    return pb.ProcessingResponse(
        immediate_response=pb.ImmediateResponse(
            status=HttpStatus(code=status),
            headers=pb.HeaderMutation(set_headers=options),
            body=body,
            details=details,
        )
    )


def rejected_headers(verdict: Rejected) -> dict[str, str]:
    """Headers of a 429: OpenAI's six, and when to come back.

    A request that can never fit carries no Retry-After but ``x-should-retry: false``, which the
    official OpenAI and Anthropic clients obey.
    """
    headers = {"content-type": "application/json"}
    for noun, view in (("requests", verdict.requests), ("tokens", verdict.tokens)):
        if view is None:
            continue
        headers[f"x-ratelimit-limit-{noun}"] = str(view.limit)
        headers[f"x-ratelimit-remaining-{noun}"] = str(max(0, view.remaining))
        headers[f"x-ratelimit-reset-{noun}"] = duration_text(view.reset_ms)
    if verdict.retry_after_ms is None or is_spent(verdict):
        headers["x-should-retry"] = "false"
    if verdict.retry_after_ms is not None:
        seconds = max(1, math.ceil(verdict.retry_after_ms / 1000))
        # A little later for some, so that not all come back in the same moment.
        seconds += random.randint(0, min(_MOST_JITTER_SECONDS, max(1, seconds // 10)))  # noqa: S311
        headers["retry-after"] = str(seconds)
    return headers


def bad_request_headers(status: int) -> dict[str, str]:
    """Headers of a 4xx: 409 passes by itself, so clients are told when to look again."""
    headers = {"content-type": "application/json"}
    if status == _CONFLICT:
        headers["retry-after"] = str(_CONFLICT_RETRY_SECONDS)
    return headers


def unavailable_headers() -> dict[str, str]:
    """Headers of a 503."""
    return {
        "content-type": "application/json",
        "retry-after": str(_UNAVAILABLE_RETRY_SECONDS),
    }


def rejected_message(verdict: Rejected) -> str:
    """What the 429 says: which limit refused, how much is left, when it fits."""
    binding = _binding(verdict)
    if binding is None or binding.label.startswith(BLOCK_LABEL):
        scope, colon, value = ("" if binding is None else binding.subject).partition(":")
        blocked = f"{scope} {value}" if colon else f"service {verdict.root}"
        return f"{blocked[:1].upper()}{blocked[1:]} is blocked here."
    noun, wanted = {
        Unit.REQUESTS: ("requests per minute (RPM)", 1),
        Unit.SLOT: ("concurrent requests", 1),
        Unit.COST: ("cost in micro-USD", verdict.requested_cost_micros),
        Unit.INPUT: ("input tokens per minute", verdict.requested_input_tokens),
        Unit.OUTPUT: (
            "output tokens per minute",
            verdict.requested_tokens - verdict.requested_input_tokens,
        ),
    }.get(binding.unit, ("tokens per minute (TPM)", verdict.requested_tokens))
    if binding.label not in ("rpm", "tpm"):
        noun = f"{noun.partition(' per ')[0]} of limit {binding.label}"
    if binding.limit == 0:
        advice = "This limit admits nothing: have it raised."
    elif binding.retry_after_ms is None:
        advice = "This request can never fit: make it smaller or have the limit raised."
    else:
        advice = f"Please try again in {duration_text(binding.retry_after_ms)}."
    size, full = f"Limit {binding.limit}", binding.limit
    if binding.burst is not None:
        # What it holds is of the burst, not of the limit, which is only how fast it refills.
        size, full = f"Burst {binding.burst}, refilled by {binding.limit} a minute", binding.burst
    return (
        f"Rate limit reached for service {verdict.root} on {noun}: {size}, "
        f"Used {full - binding.remaining}, Requested {wanted}. {advice}"
    )


def error_type(verdict: Rejected) -> str:
    """OpenAI's word for the kind of limit, as its clients know it."""
    if is_spent(verdict):
        return INSUFFICIENT_QUOTA
    binding = _binding(verdict)
    is_requests = binding is not None and binding.unit in (Unit.REQUESTS, Unit.SLOT)
    return "requests" if is_requests else "tokens"


def is_spent(verdict: Rejected) -> bool:
    """True when waiting a little is no answer: a quota of a day or longer, money, a block."""
    dimension = verdict.refused_by.rpartition("/")[2]
    return verdict.refused_by.startswith(BLOCK_LABEL) or dimension.startswith(("tokens_", "cost_"))


def _binding(verdict: Rejected) -> Refusal | None:
    """The refusal that decides; a simple root's verdict has no list of them."""
    for refusal in verdict.refusals:
        if refusal.label == verdict.refused_by:
            return refusal
    view = verdict.requests if verdict.refused_by == "rpm" else verdict.tokens
    if view is None:
        return None
    return Refusal(
        label=verdict.refused_by,
        unit=Unit.REQUESTS if verdict.refused_by == "rpm" else Unit.TOTAL,
        limit=view.limit,
        remaining=view.remaining,
        retry_after_ms=verdict.retry_after_ms,
    )
