"""OpenAI's chat completions, completions and embeddings: checks and counts of the request."""

from extproc.providers.counting import PER_ANSWER, Counter
from extproc.providers.fields import (
    flag,
    model_of,
    objects,
    optional_list,
    optional_object,
    positive_int,
    wrong,
)
from extproc.providers.input_factors import factor_percent
from extproc.providers.media_rules import image_rule_by_name
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.tokens import encoding_for
from extproc.providers.wire_formats import Target


def read_chat(body: JsonObject, limits: ReadLimits, _target: Target) -> RequestFacts:
    """``POST /v1/chat/completions``."""
    model = model_of(body)
    stream = flag(body, "stream")
    _check_stream_options(body)
    choices = positive_int(body, "n", at_most=limits.max_choices) or 1
    # Providers read one or the other field; the larger can never be an under-estimate.
    caps = [
        cap
        for name in ("max_tokens", "max_completion_tokens")
        if (cap := positive_int(body, name, at_most=limits.max_output_tokens)) is not None
    ]
    messages = objects(body, "messages")
    tools = optional_list(body, "tools")
    functions = optional_list(body, "functions")
    response_format = optional_object(body, "response_format")
    encoding = encoding_for(model)
    counter = Counter(encoding, images=image_rule_by_name(model))
    input_tokens = PER_ANSWER + sum(counter.message(message) for message in messages)
    input_tokens += counter.json(tools) + counter.json(functions)
    input_tokens += counter.json(response_format, "schema")
    factor = factor_percent("openai", model)
    return RequestFacts(
        wire_format="openai_chat",
        model=model,
        stream=stream,
        input_tokens=counter.scaled(input_tokens, factor),
        output_cap_tokens=max(caps) * choices if caps else None,
        choices=choices,
        encoding=encoding,
        factor_percent=factor,
        cap_path=("max_completion_tokens",),
        parts=counter.parts,
        media_tokens=counter.media_tokens,
    )


def read_completions(body: JsonObject, limits: ReadLimits, _target: Target) -> RequestFacts:
    """``POST /v1/completions``. Each prompt of a list is answered n times, best_of are produced."""
    model = model_of(body)
    stream = flag(body, "stream")
    _check_stream_options(body)
    per_prompt = max(
        positive_int(body, name, at_most=limits.max_choices) or 1 for name in ("n", "best_of")
    )
    cap = positive_int(body, "max_tokens", at_most=limits.max_output_tokens)
    encoding = encoding_for(model)
    counter = Counter(encoding)
    suffix = body.get("suffix")
    if suffix is not None and not isinstance(suffix, str):
        raise wrong("suffix", "a string")
    # Without a prompt the model starts from its end-of-text token.
    prompt = "" if body.get("prompt") is None else body["prompt"]
    prompts, input_tokens = _texts_or_ids(prompt, "prompt", counter)
    choices = per_prompt * max(1, prompts)
    return RequestFacts(
        wire_format="openai_completions",
        model=model,
        stream=stream,
        input_tokens=input_tokens + counter.content(suffix),
        output_cap_tokens=None if cap is None else cap * choices,
        choices=choices,
        encoding=encoding,
        cap_path=("max_tokens",),
        parts=counter.parts,
        media_tokens=counter.media_tokens,
    )


def read_embeddings(body: JsonObject, limits: ReadLimits, _target: Target) -> RequestFacts:
    """``POST /v1/embeddings``: input only. vLLM takes a conversation in its place."""
    del limits  # an embedding has neither choices nor a cap
    model = model_of(body)
    encoding = encoding_for(model)
    counter = Counter(encoding, images=image_rule_by_name(model))
    if body.get("input") is None and body.get("messages") is not None:
        input_tokens = sum(counter.message(message) for message in objects(body, "messages"))
    else:
        _, input_tokens = _texts_or_ids(body.get("input"), "input", counter)
    return RequestFacts(
        wire_format="openai_embeddings",
        model=model,
        stream=False,
        input_tokens=input_tokens,
        output_cap_tokens=0,
        choices=1,
        encoding=encoding,
        parts=counter.parts,
        media_tokens=counter.media_tokens,
    )


def _check_stream_options(body: JsonObject) -> None:
    options = optional_object(body, "stream_options")
    if options is not None:
        include = options.get("include_usage")
        if include is not None and not isinstance(include, bool):
            raise wrong("stream_options.include_usage", "a boolean")


def _texts_or_ids(value: object, name: str, counter: Counter) -> tuple[int, int]:
    """How many inputs, and their tokens: a string, a list of strings, token ids, lists of ids."""
    if isinstance(value, str):
        return 1, counter.text(value)
    if not isinstance(value, list):
        raise wrong(name, "a string, a list of strings, or token ids")
    if all(isinstance(item, str) for item in value):
        return len(value), sum(counter.text(item) for item in value)
    if _are_ids(value):
        return 1, counter.media("token_ids", len(value))
    for index, item in enumerate(value):
        if not isinstance(item, list) or not _are_ids(item):
            raise wrong(f"{name}[{index}]", "of one kind with the others: strings or token ids")
    return len(value), counter.media("token_ids", sum(len(item) for item in value))


def _are_ids(values: list[object]) -> bool:
    return all(type(value) is int and value >= 0 for value in values)
