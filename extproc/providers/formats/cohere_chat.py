"""Cohere's chat, v2 and v1 (docs.cohere.com/reference/chat, /v1/reference/chat)."""

from extproc.providers.cohere_answers import CohereChatAnswer, CohereV1ChatAnswer
from extproc.providers.counting import Counter
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
from extproc.providers.ndjson import NDJSON
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.tokens import DEFAULT_ENCODING
from extproc.providers.wire_formats import Target, WireFormat

# Command A Vision cuts a picture into at most 12 tiles, adds a small one of the whole, and takes
# 256 tokens for each (the model's preprocessor_config.json: max_patches 12).
COHERE_IMAGE = 13 * 256
# v1 chooses a model itself when none is named.
_V1_MODEL = "command"


def read_chat(body: JsonObject, limits: ReadLimits, _target: Target) -> RequestFacts:
    """``POST /v2/chat``. Thinking has a budget of its own, but ``max_tokens`` bounds both."""
    counter = Counter(DEFAULT_ENCODING, image_tokens=COHERE_IMAGE)
    messages = objects(body, "messages")
    return _facts(
        body,
        limits,
        wire_format="cohere_v2",
        model=model_of(body),
        input_tokens=sum(_turn(message, counter) for message in messages) + _extras(body, counter),
    )


def read_v1_chat(body: JsonObject, limits: ReadLimits, _target: Target) -> RequestFacts:
    """``POST /v1/chat``: the message stands beside the history."""
    counter = Counter(DEFAULT_ENCODING, image_tokens=COHERE_IMAGE)
    message, preamble = body.get("message"), body.get("preamble")
    if not isinstance(message, str):
        raise wrong("message", "a string")
    if preamble is not None and not isinstance(preamble, str):
        raise wrong("preamble", "a string")
    turns = [{"message": message}, {"message": preamble}, *optional_list(body, "chat_history")]
    return _facts(
        body,
        limits,
        wire_format="cohere_v1",
        model=model_of(body, default=_V1_MODEL),
        input_tokens=sum(
            _turn(turn, counter) if isinstance(turn, dict) else counter.content(turn)
            for turn in turns
        )
        + counter.json(optional_list(body, "tool_results"))
        + _extras(body, counter),
    )


def _turn(message: JsonObject, counter: Counter) -> int:
    """A message, which has no type, whose documents are texts, not files."""
    rest = {key: value for key, value in message.items() if key not in ("type", "content")}
    content = message.get("content")
    total = counter.message(rest)
    for part in content if isinstance(content, list) else [content]:
        is_document = isinstance(part, dict) and part.get("type") == "document"
        total += counter.json(part) if is_document else counter.content(part)
    return total


def _extras(body: JsonObject, counter: Counter) -> int:
    return (
        counter.json(optional_list(body, "tools"))
        + counter.json(optional_list(body, "documents"))
        + counter.json(optional_object(body, "response_format"))
    )


def _facts(
    body: JsonObject, limits: ReadLimits, *, wire_format: str, model: str, input_tokens: int
) -> RequestFacts:
    return RequestFacts(
        wire_format=wire_format,
        model=model,
        stream=flag(body, "stream"),
        input_tokens=input_tokens,
        output_cap_tokens=positive_int(body, "max_tokens", at_most=limits.max_output_tokens),
        choices=1,
        encoding=DEFAULT_ENCODING,
        cap_path=("max_tokens",),
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
