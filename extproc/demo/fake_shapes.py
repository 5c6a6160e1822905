"""The shape of an answer's text: bare, JSON after a schema, or the arguments of a function call.

The words of an answer are what is counted; what stands around them is free of charge here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_HOLE = "\x00"


@dataclass(frozen=True, slots=True)
class Shape:
    """``before`` and ``after`` stand around the words; ``function`` is who is called, if anyone."""

    before: str = ""
    after: str = ""
    function: str | None = None


def json_shape(schema: Mapping[str, Any] | None, *, function: str | None = None) -> Shape:
    """JSON that fits ``schema`` and has the words in its first string; ``{"text": ...}`` without
    one."""
    value, has_words = _fill(schema or {"properties": {"text": {"type": "string"}}}, free=True)
    if not has_words:
        value = {"text": _HOLE}
    before, _, after = json.dumps(value).partition(json.dumps(_HOLE)[1:-1])
    return Shape(before, after, function)


def _fill(schema: Mapping[str, Any], *, free: bool) -> tuple[Any, bool]:
    """A value for a schema, and whether the words stand in it; only where they are ``free`` to."""
    kind = schema.get("type", "object")
    if kind == "string":
        return (_HOLE, True) if free else ("", False)
    if kind == "object":
        value, has_words = {}, False
        for name, part in schema.get("properties", {}).items():
            value[name], took = _fill(part, free=free and not has_words)
            has_words = has_words or took
        return value, has_words
    return {"integer": 0, "number": 0.5, "boolean": False, "array": []}.get(kind), False


def openai_shape(body: Mapping[str, Any], text_format: Any) -> Shape:
    """What OpenAI's ``tool_choice`` and ``text_format`` (chat's ``response_format``) ask for.

    Functions are read both as chat writes them (inside ``function``) and as Responses does."""
    choice = body.get("tool_choice")
    if choice == "required" or isinstance(choice, dict):
        functions = [tool.get("function", tool) for tool in body.get("tools") or ()]
        named = choice.get("function", choice).get("name") if isinstance(choice, dict) else None
        for function in functions:
            if named in (None, function.get("name")):
                return json_shape(function.get("parameters"), function=function.get("name"))
    if isinstance(text_format, dict) and text_format.get("type") in ("json_schema", "json_object"):
        return json_shape(text_format.get("json_schema", text_format).get("schema"))
    return Shape()


def anthropic_shape(body: Mapping[str, Any]) -> Shape:
    """What Anthropic's ``tool_choice`` and ``output_config.format`` ask for."""
    choice = body.get("tool_choice") or {}
    if choice.get("type") in ("any", "tool"):
        for tool in body.get("tools") or ():
            if choice.get("name") in (None, tool.get("name")):
                return json_shape(tool.get("input_schema"), function=tool.get("name"))
    text_format = (body.get("output_config") or {}).get("format") or body.get("output_format")
    return json_shape(text_format.get("schema")) if text_format else Shape()
