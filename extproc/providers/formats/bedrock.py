"""AWS Bedrock: Converse and InvokeModel, each with its stream, and the paths beside them."""

import re
from dataclasses import replace

from extproc.core.usage import Usage
from extproc.providers.anthropic_requests import FACTOR_PERCENT
from extproc.providers.aws_eventstream import AWS_EVENTSTREAM
from extproc.providers.bedrock_answers import ConverseAnswer
from extproc.providers.bedrock_invoke_answers import InvokeAnswer
from extproc.providers.bedrock_requests import (
    is_input_only,
    model_segments,
    read_converse,
    read_input_only,
    read_invoke,
)
from extproc.providers.error_bodies import Refusal
from extproc.providers.json_answer import token_number
from extproc.providers.known_paths import known
from extproc.providers.wire_formats import ANY_END, Header, KnownPath, Target, WireFormat

_DIGITS = re.compile(r"[0-9]{1,18}")

# The exceptions of the service's model, with the statuses that AWS gives them.
_EXCEPTIONS = {
    401: "AccessDeniedException",
    402: "ServiceQuotaExceededException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
    504: "ModelTimeoutException",
}


def _exception(status: int) -> str:
    by_class = "InternalServerException" if status >= 500 else "ValidationException"
    return _EXCEPTIONS.get(status, by_class)


def bedrock_error(refusal: Refusal) -> dict[str, object]:
    """Smithy's restJson1. The exception's name stands here as well as in its header: a client may
    look at either ("Operation error serialization")."""
    return {"__type": _exception(refusal.status), "message": refusal.message}


def bedrock_error_headers(status: int) -> dict[str, str]:
    """Where AWS itself names the exception, and its SDKs look first."""
    return {"x-amzn-errortype": _exception(status)}


def _header_usage(header: Header) -> Usage:
    """AWS's numbers of an InvokeModel without a stream. Its input is without the cache, so a body
    that tells more goes before (github.com/vercel/ai/pull/15973: seen live with Cohere's vectors,
    whose body tells nothing)."""
    return Usage(
        input_tokens=_positive(header("x-amzn-bedrock-input-token-count")),
        output_tokens=_positive(header("x-amzn-bedrock-output-token-count")),
    )


def _input_header_usage(header: Header) -> Usage:
    usage = _header_usage(header)
    return Usage() if usage.input_tokens is None else replace(usage, output_tokens=0)


def _positive(text: str) -> int | None:
    return (token_number(int(text)) or None) if _DIGITS.fullmatch(text) else None


def _has_model(target: Target) -> bool:
    return bool(model_segments(target))


def _has_input_only_model(target: Target) -> bool:
    return is_input_only("/".join(model_segments(target)).lower())


def _is_async_invoke(target: Target) -> bool:
    return target.lowered == ("async-invoke",)


def _is_guardrail(target: Target) -> bool:
    # The guardrail may be an ARN, with its slash.
    return "guardrail" in target.lowered[:-3] and target.lowered[-3] == "version"


def _is_agent(target: Target) -> bool:
    last, lead = target.lowered[-1], target.lowered[:-1]
    if last == "text":
        return "agentaliases" in lead and "sessions" in lead
    if last.startswith("retrieveandgenerate"):
        return True
    if last == "retrieve":
        return "knowledgebases" in lead
    return len(lead) > 2 and (lead[-1], lead[-3]) == ("aliases", "flows")


BEDROCK_CONVERSE = WireFormat(
    name="bedrock_converse",
    provider="bedrock",
    ends=("converse",),
    matches=_has_model,
    error_shape=bedrock_error,
    error_headers=bedrock_error_headers,
    read=read_converse,
    answer=ConverseAnswer,
    framings=(AWS_EVENTSTREAM,),
    factor_percent=FACTOR_PERCENT,
)
BEDROCK_CONVERSE_STREAM = WireFormat(
    name="bedrock_converse_stream",
    provider="bedrock",
    ends=("converse-stream",),
    matches=_has_model,
    error_shape=bedrock_error,
    error_headers=bedrock_error_headers,
    read=read_converse,
    answer=ConverseAnswer,
    framings=(AWS_EVENTSTREAM,),
    factor_percent=FACTOR_PERCENT,
)
# Before BEDROCK_INVOKE: the same path, but the model's id says that it makes vectors or scores.
BEDROCK_EMBEDDINGS = WireFormat(
    name="bedrock_embeddings",
    provider="bedrock",
    ends=("invoke",),
    matches=_has_input_only_model,
    error_shape=bedrock_error,
    error_headers=bedrock_error_headers,
    read=read_input_only,
    answer=InvokeAnswer,
    factor_percent=FACTOR_PERCENT,
    has_text_output=False,
    header_usage=_input_header_usage,
)
BEDROCK_INVOKE = WireFormat(
    name="bedrock_invoke",
    provider="bedrock",
    ends=("invoke",),
    header_usage=_header_usage,
    matches=_has_model,
    error_shape=bedrock_error,
    error_headers=bedrock_error_headers,
    read=read_invoke,
    answer=InvokeAnswer,
    framings=(AWS_EVENTSTREAM,),
    factor_percent=FACTOR_PERCENT,
)
BEDROCK_INVOKE_STREAM = WireFormat(
    name="bedrock_invoke_stream",
    provider="bedrock",
    ends=("invoke-with-response-stream",),
    matches=_has_model,
    error_shape=bedrock_error,
    error_headers=bedrock_error_headers,
    read=read_invoke,
    answer=InvokeAnswer,
    framings=(AWS_EVENTSTREAM,),
    factor_percent=FACTOR_PERCENT,
)
# "Using the CountTokens API doesn't incur charges" (user guide, "Monitor your token usage").
BEDROCK_COUNT_TOKENS = KnownPath(
    name="bedrock_count_tokens",
    provider="bedrock",
    ends=("count-tokens",),
    matches=_has_model,
    error_shape=bedrock_error,
    error_headers=bedrock_error_headers,
    is_free=True,
)
# Speech over HTTP/2 in both directions at once: its request has no end to be read before.
BEDROCK_BIDIRECTIONAL = KnownPath(
    name="bedrock_bidirectional",
    provider="bedrock",
    ends=("invoke-with-bidirectional-stream",),
    matches=_has_model,
    error_shape=bedrock_error,
    error_headers=bedrock_error_headers,
    is_free=False,
)
# The answer goes to S3 and never passes here.
BEDROCK_ASYNC_INVOKE = KnownPath(
    name="bedrock_async_invoke",
    provider="bedrock",
    ends=("async-invoke",),
    matches=_is_async_invoke,
    error_shape=bedrock_error,
    error_headers=bedrock_error_headers,
    is_free=False,
)
# By units of text; an agent, a flow or a knowledge base runs models of which no usage comes.
BEDROCK_GUARDRAIL = KnownPath(
    name="bedrock_guardrail",
    provider="bedrock",
    ends=("apply",),
    matches=_is_guardrail,
    error_shape=bedrock_error,
    error_headers=bedrock_error_headers,
    is_free=False,
)
BEDROCK_AGENTS = KnownPath(
    name="bedrock_agents",
    provider="bedrock",
    ends=("text", "retrieveandgenerate", "retrieveandgeneratestream", "retrieve", ANY_END),
    matches=_is_agent,
    error_shape=bedrock_error,
    error_headers=bedrock_error_headers,
    is_free=False,
)
# Batches and training, started over the control plane.
BEDROCK_JOBS = known(
    "bedrock_jobs",
    "bedrock",
    *("model-invocation-job", "model-customization-jobs", "provisioned-model-throughput"),
    anywhere=True,
    error_shape=bedrock_error,
)
BEDROCK = (
    BEDROCK_CONVERSE,
    BEDROCK_CONVERSE_STREAM,
    BEDROCK_EMBEDDINGS,
    BEDROCK_INVOKE,
    BEDROCK_INVOKE_STREAM,
    BEDROCK_COUNT_TOKENS,
    BEDROCK_BIDIRECTIONAL,
    BEDROCK_ASYNC_INVOKE,
    BEDROCK_GUARDRAIL,
    BEDROCK_AGENTS,
    BEDROCK_JOBS,
)
