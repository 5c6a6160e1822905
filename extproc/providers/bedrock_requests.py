"""Bedrock's Converse and InvokeModel: checks and counts of the request.

The model stands in the path: an id, or an ARN whose slash may be encoded. Whose tokenizer is behind
it is not public, and an ARN of an inference profile does not even name the model, so counts are
scaled as Anthropic's are. Shapes after AWS's API reference and user guide.
"""

from dataclasses import dataclass, replace

from extproc.providers.anthropic_requests import TOOLS_PROMPT, read_messages
from extproc.providers.bedrock_counting import BlockCounter
from extproc.providers.fields import (
    model_of,
    objects,
    optional_list,
    optional_object,
    positive_int,
    wrong,
)
from extproc.providers.input_factors import factor_percent
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.tokens import DEFAULT_ENCODING
from extproc.providers.wire_formats import Target

_EXTRA = "additionalModelRequestFields"
_CONVERSE_CAP = ("inferenceConfig", "maxTokens")
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """Models that take the same body. ``marks`` are parts of their ids, ``cap`` is where strict
    mode writes one; empty where there is none, or where the model requires it anyway."""

    marks: tuple[str, ...]
    cap: Path


FAMILIES = (
    Family(("anthropic.",), ()),
    Family(("titan-image", "nova-canvas", "nova-reel", "stability.", "embed", "rerank"), ()),
    Family(("amazon.nova",), _CONVERSE_CAP),
    Family(("amazon.titan",), ("textGenerationConfig", "maxTokenCount")),
    Family(("meta.llama",), ("max_gen_len",)),
    Family(("ai21.j2",), ("maxTokens",)),
    Family(("openai.",), ("max_completion_tokens",)),
    Family(("mistral.", "cohere.", "ai21.", "deepseek.", "qwen.", "writer."), ("max_tokens",)),
)
_WITHOUT_TOKENS = FAMILIES[1]
# Every name of a cap and of a number of answers is read, whichever the model: the largest can never
# be an under-estimate.
_CAPS: tuple[Path, ...] = (
    ("max_tokens",),
    ("max_completion_tokens",),
    ("max_tokens_to_sample",),
    ("max_gen_len",),
    ("maxTokens",),
    _CONVERSE_CAP,
    ("inferenceConfig", "max_new_tokens"),
    ("textGenerationConfig", "maxTokenCount"),
)
_CHOICES = ("n", "num_generations", "numResults")
# Settings, no part of any prompt.
_SETTINGS = frozenset(
    {
        *("anthropic_version", "schemaVersion", "model", "metadata", "stream_options", "taskType"),
        *("stop", "stop_sequences", "stopSequences", "logit_bias", "return_likelihoods"),
        *("inferenceConfig", "textGenerationConfig", "imageGenerationConfig", "embeddingConfig"),
        *("return_prompt", "truncate", "prompt_truncation", "citation_quality", "input_type"),
        *("embedding_types", "embeddingTypes"),
        *("presencePenalty", "countPenalty", "frequencyPenalty"),
    }
)
# Counted as the JSON that they are: their members' names are the client's own. With their kind.
_SCHEMAS = {
    **dict.fromkeys(("tools", "toolConfig", "functions"), "tools"),
    **dict.fromkeys(("documents", "tool_results"), "retrieved"),
    "response_format": "schema",
}
_MESSAGES = ("messages", "chat_history")


def model_segments(target: Target) -> Path:
    """The model's part of ``/model/MODEL/ACTION``; empty when the path is another."""
    if "model" not in target.lowered[:-1]:
        return ()
    return target.segments[target.lowered.index("model") + 1 : -1]


def read_converse(body: JsonObject, limits: ReadLimits, target: Target) -> RequestFacts:
    """``POST /model/MODEL/converse`` and ``converse-stream``."""
    model = _model(target)
    counter = BlockCounter(model, DEFAULT_ENCODING)
    counted = counter.content(optional_list(body, "system"), "system")
    # Not required: the model may be a prompt that AWS keeps.
    for index, message in enumerate(objects(body, "messages") if _has(body, "messages") else []):
        if not isinstance(message.get("content"), list):
            raise wrong(f"messages[{index}].content", "a list of content blocks")
        counted += counter.message(message)
    variables = optional_object(body, "promptVariables") or {}
    counted += counter.content(list(variables.values()))
    tool_config = optional_object(body, "toolConfig") or {}
    tools = optional_list({"toolConfig.tools": tool_config.get("tools")}, "toolConfig.tools")
    counted += counter.json(tools) + counter.json(optional_object(body, "outputConfig"), "schema")
    paths = [_CONVERSE_CAP, *((_EXTRA, *path) for path in _CAPS)]
    cap = _largest([_cap(body, path, limits) for path in paths])
    stream = target.lowered[-1] == "converse-stream"
    factor = factor_percent("bedrock", model)
    return RequestFacts(
        wire_format="bedrock_converse_stream" if stream else "bedrock_converse",
        model=model,
        stream=stream,
        input_tokens=counter.scaled(counted, factor) + (TOOLS_PROMPT if tools else 0),
        output_cap_tokens=cap,
        choices=1,
        encoding=DEFAULT_ENCODING,
        factor_percent=factor,
        cap_path=_CONVERSE_CAP,
        parts=counter.parts,
        media_tokens=counter.media_tokens,
        hidden_input=not _has(body, "messages"),
    )


def read_invoke(body: JsonObject, limits: ReadLimits, target: Target) -> RequestFacts:
    """``POST /model/MODEL/invoke`` and ``invoke-with-response-stream``: the model's own body."""
    model = _model(target)
    stream = target.lowered[-1] == "invoke-with-response-stream"
    name = "bedrock_invoke_stream" if stream else "bedrock_invoke"
    if is_anthropic(body, model):
        facts = read_messages({**body, "model": model}, limits, target)
        return replace(facts, wire_format=name, stream=stream)
    family = _family_of(model)
    counter = BlockCounter(model, DEFAULT_ENCODING)
    counted = _count(body, counter)
    tools = any(body.get(key) for key in ("tools", "toolConfig"))
    counts = [positive_int(body, key, at_most=limits.max_choices) or 1 for key in _CHOICES]
    choices = max(counts)
    cap = _largest([_cap(body, path, limits) for path in _CAPS])
    if family is _WITHOUT_TOKENS:
        cap = 0
    factor = factor_percent("bedrock", model)
    return RequestFacts(
        wire_format=name,
        model=model,
        stream=stream,
        input_tokens=counter.scaled(counted, factor) + (TOOLS_PROMPT if tools else 0),
        output_cap_tokens=None if cap is None else cap * choices,
        choices=choices,
        encoding=DEFAULT_ENCODING,
        factor_percent=factor,
        cap_path=family.cap if family is not None else (),
        parts=counter.parts,
        media_tokens=counter.media_tokens,
    )


def read_input_only(body: JsonObject, limits: ReadLimits, target: Target) -> RequestFacts:
    """InvokeModel of a model that makes vectors or scores."""
    return replace(read_invoke(body, limits, target), wire_format="bedrock_embeddings")


def is_input_only(model: str) -> bool:
    """Whether a model's id, in lower case, is that of one without output: vectors and scores."""
    return "embed" in model or "rerank" in model


def is_anthropic(body: JsonObject, model: str) -> bool:
    """Whether a body is one of Anthropic's messages; ARNs of profiles do not tell it."""
    return "messages" in body and ("anthropic." in model.lower() or "anthropic_version" in body)


def _model(target: Target) -> str:
    return model_of({"model": "/".join(model_segments(target))})


def _family_of(model: str) -> Family | None:
    name = model.lower()
    return next((f for f in FAMILIES if any(mark in name for mark in f.marks)), None)


def _count(body: JsonObject, counter: BlockCounter) -> int:
    total = 0
    for name, value in body.items():
        if name in _SETTINGS or not isinstance(value, str | list | dict):
            continue
        if name in _MESSAGES:
            total += sum(counter.message(message) for message in objects(body, name))
        elif name in _SCHEMAS:
            total += counter.json(value, _SCHEMAS[name])
        else:
            total += counter.body({name: value})
    return total


def _cap(body: JsonObject, path: Path, limits: ReadLimits) -> int | None:
    inner = body
    for name in path[:-1]:
        inner = optional_object(inner, name) or {}
    dotted = ".".join(path)
    return positive_int({dotted: inner.get(path[-1])}, dotted, at_most=limits.max_output_tokens)


def _largest(caps: list[int | None]) -> int | None:
    return max((cap for cap in caps if cap is not None), default=None)


def _has(body: JsonObject, name: str) -> bool:
    return body.get(name) is not None
