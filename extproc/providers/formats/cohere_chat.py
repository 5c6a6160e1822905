"""Cohere's chat, v2 and v1 (docs.cohere.com/reference/chat, /v1/reference/chat)."""

from extproc.providers.cohere_answers import CohereChatAnswer, CohereV1ChatAnswer
from extproc.providers.counting import Counter, kind_of
from extproc.providers.error_bodies import cohere_error
from extproc.providers.fields import (
    flag,
    model_of,
    objects,
    optional_list,
    optional_object,
    positive_int,
    wrong,
)
from extproc.providers.media_rules import image_rule
from extproc.providers.ndjson import NDJSON
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.tokens import DEFAULT_ENCODING
from extproc.providers.wire_formats import Target, WireFormat

# v1 chooses a model itself when none is named.
_V1_MODEL = "command"
# What brings in text that stands with Cohere.
_REMEMBERED = ("conversation_id", "connectors")


def read_chat(body: JsonObject, limits: ReadLimits, _target: Target) -> RequestFacts:
    """``POST /v2/chat``. Thinking has a budget of its own, but ``max_tokens`` bounds both."""
    model = model_of(body)
    counter = Counter(DEFAULT_ENCODING, images=image_rule("cohere", model))
    counted = sum(_turn(message, counter) for message in objects(body, "messages"))
    counted += _extras(body, counter)
    return _facts(
        body, limits, wire_format="cohere_v2", model=model, counted=counted, counter=counter
    )


def read_v1_chat(body: JsonObject, limits: ReadLimits, _target: Target) -> RequestFacts:
    """``POST /v1/chat``: the message stands beside the history.

    What ``conversation_id`` and connectors bring in is known to Cohere only.
    """
    model = model_of(body, default=_V1_MODEL)
    counter = Counter(DEFAULT_ENCODING, images=image_rule("cohere", model))
    message, preamble = body.get("message"), body.get("preamble")
    if not isinstance(message, str):
        raise wrong("message", "a string")
    if preamble is not None and not isinstance(preamble, str):
        raise wrong("preamble", "a string")
    system = {"role": "SYSTEM", "message": preamble}
    turns = [{"message": message}, system, *optional_list(body, "chat_history")]
    counted = sum(
        _turn(turn, counter) if isinstance(turn, dict) else counter.content(turn, "messages")
        for turn in turns
    )
    counted += counter.json(optional_list(body, "tool_results"), "retrieved")
    counted += _extras(body, counter)
    return _facts(
        body, limits, wire_format="cohere_v1", model=model, counted=counted, counter=counter
    )


def _turn(message: JsonObject, counter: Counter) -> int:
    """A message, which has no type, whose documents are texts, not files."""
    rest = {key: value for key, value in message.items() if key not in ("type", "content")}
    content, kind = message.get("content"), kind_of(message)
    total = counter.message(rest)
    for part in content if isinstance(content, list) else [content]:
        is_document = isinstance(part, dict) and part.get("type") == "document"
        if is_document:
            total += counter.json(part, "retrieved")
        else:
            total += counter.content(part, kind)
    return total


def _extras(body: JsonObject, counter: Counter) -> int:
    return (
        counter.json(optional_list(body, "tools"))
        + counter.json(optional_list(body, "documents"), "retrieved")
        + counter.json(optional_object(body, "response_format"), "schema")
    )


def _facts(
    body: JsonObject,
    limits: ReadLimits,
    *,
    wire_format: str,
    model: str,
    counted: int,
    counter: Counter,
) -> RequestFacts:
    return RequestFacts(
        wire_format=wire_format,
        model=model,
        stream=flag(body, "stream"),
        input_tokens=counted,
        output_cap_tokens=positive_int(body, "max_tokens", at_most=limits.max_output_tokens),
        choices=1,
        encoding=DEFAULT_ENCODING,
        cap_path=("max_tokens",),
        parts=counter.parts,
        media_tokens=counter.media_tokens,
        hidden_input=any(body.get(name) for name in _REMEMBERED),
    )


def _is_v2(target: Target) -> bool:
    return target.before == "v2"


def _is_v1(target: Target) -> bool:
    return target.before == "v1"


COHERE_V2 = WireFormat(
    name="cohere_v2",
    provider="cohere",
    ends=("chat",),
    matches=_is_v2,
    error_shape=cohere_error,
    read=read_chat,
    answer=CohereChatAnswer,
)
COHERE_V1 = WireFormat(
    name="cohere_v1",
    provider="cohere",
    ends=("chat",),
    matches=_is_v1,
    error_shape=cohere_error,
    read=read_v1_chat,
    answer=CohereV1ChatAnswer,
    framings=(NDJSON,),
)
