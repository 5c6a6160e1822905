"""Usage that Envoy's own filters read out of an answer, as dynamic metadata.

Rules write each number under its dotted path in the JSON, such as ``response.usage.input_tokens``.
Here the JSON is built again and read by the format's own reader, so that its rules hold.
"""

from collections.abc import Mapping

from extproc.core.usage import Usage
from extproc.providers.registry import format_named
from extproc.providers.requests import JsonObject
from extproc.providers.tally import TextTally

# Objects that a stream's events wrap around what a plain answer has at its top.
_WRAPPERS = ("message", "response", "delta", "x_groq")
_MAX_FIELDS, _MAX_DEPTH = 128, 6


def usage_of_fields(wire_format: str, fields: Mapping[str, object]) -> Usage:
    """What ``fields`` (dotted path -> number or text) say of one answer.

    Zeros alone are not a report: without the text nobody knows whether something was produced.
    """
    if not fields:
        return Usage()
    spoken = format_named(wire_format)
    answer = spoken.answer(TextTally(""))
    answer.take_json(_answer_of(fields))
    usage = answer.usage
    return usage if usage.output_tokens or not spoken.has_text_output else Usage()


def _answer_of(fields: Mapping[str, object]) -> JsonObject:
    tree = _nested(fields)
    answer: JsonObject = {}
    # The top last: what Anthropic's message_delta says stands over message_start.
    for part in (*(tree.pop(name, None) for name in _WRAPPERS), tree):
        if isinstance(part, dict):
            _overlay(answer, part)
    return answer


def _nested(fields: Mapping[str, object]) -> JsonObject:
    tree: JsonObject = {}
    for path, value in list(fields.items())[:_MAX_FIELDS]:
        *outer, last = path.split(".")[:_MAX_DEPTH]
        at = tree
        for name in outer:
            inner = at.setdefault(name, {})
            if not isinstance(inner, dict):
                break
            at = inner
        else:
            # Numbers in metadata are doubles.
            is_whole = isinstance(value, float) and value.is_integer()
            at[last] = int(value) if is_whole else value  # type: ignore[call-overload]
    return tree


def _overlay(lower: JsonObject, upper: JsonObject) -> None:
    """``upper`` over ``lower``; a zero never stands over a number."""
    for name, value in upper.items():
        below = lower.get(name)
        if isinstance(value, dict) and isinstance(below, dict):
            _overlay(below, value)
        elif value or not below:
            lower[name] = value
