"""Anthropic's messages: checks and counts of the request."""

from extproc.providers.counting import Counter
from extproc.providers.fields import flag, model_of, objects, optional_list, positive_int, wrong
from extproc.providers.input_factors import factor_percent
from extproc.providers.media_rules import image_rule
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.tokens import DEFAULT_ENCODING
from extproc.providers.wire_formats import Target

# Anthropic's tool-use page: the system prompt that tools add is 290 to 804 tokens by model and
# tool_choice; 346 is the one of most Claude 4 models with "auto" (as of November 2026).
TOOLS_PROMPT = 346
# What is used where only the format is known.
FACTOR_PERCENT = factor_percent("anthropic", "")


def read_messages(body: JsonObject, limits: ReadLimits, _target: Target) -> RequestFacts:
    """``POST /v1/messages``."""
    model = model_of(body)
    stream = flag(body, "stream")
    cap = positive_int(body, "max_tokens", at_most=limits.max_output_tokens)
    messages = objects(body, "messages")
    system = body.get("system")
    if system is not None and not isinstance(system, str | list):
        raise wrong("system", "a string or a list of blocks")
    tools = optional_list(body, "tools")
    counter = Counter(DEFAULT_ENCODING, images=image_rule("anthropic", model))
    counted = counter.content(system, "system") + sum(
        counter.message(message) for message in messages
    )
    counted += counter.json(tools)
    factor = factor_percent("anthropic", model)
    return RequestFacts(
        wire_format="anthropic_messages",
        model=model,
        stream=stream,
        input_tokens=counter.scaled(counted, factor) + (TOOLS_PROMPT if tools else 0),
        output_cap_tokens=cap,
        choices=1,
        encoding=DEFAULT_ENCODING,
        factor_percent=factor,
        parts=counter.parts,
        media_tokens=counter.media_tokens,
    )
