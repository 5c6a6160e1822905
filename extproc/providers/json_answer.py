"""Reads JSON that a provider sent: leniently, because an answer is never refused."""

import json
import math
from collections.abc import Iterable

from extproc.providers.large_json import LARGE_BYTES, bounded
from extproc.providers.requests import JsonObject

_MAX_DIGITS = 30
_MAX_NAME = 128
# No answer has more; a provider that says so is not believed, or one answer would fill a history.
MAX_REPORTED_TOKENS = 2**31 - 1


def _int_or_infinity(literal: str) -> int | float:
    """Python refuses integers above 4,300 digits; such a number must not cost the whole answer."""
    return int(literal) if len(literal) <= _MAX_DIGITS else math.inf


# Both get stripped text, of which `raw_decode` is `json.loads` without looking for space again.
_strict = json.JSONDecoder()
_lenient = json.JSONDecoder(parse_int=_int_or_infinity, strict=False)


def parse_object(data: bytes) -> JsonObject | None:
    """The JSON object in ``data``; None for anything else. Never raises."""
    value = parse_json(data)
    return value if isinstance(value, dict) else None


def parse_json(data: bytes) -> object:
    """The JSON value in ``data``; None for anything else. Never raises.

    Bytes that are not UTF-8 are replaced, control characters in strings accepted. A large text of
    very many values is not read.
    """
    if len(data) > LARGE_BYTES:
        few = bounded(data)
        if few is None:
            return None
        data = few
    text = data.decode("utf-8", "replace").strip("\ufeff \t\r\n")
    value: object
    try:
        value, end = _strict.raw_decode(text)
    except RecursionError:
        return None
    except ValueError:
        try:
            value, end = _lenient.raw_decode(text)
        except (ValueError, RecursionError):
            return None
    return value if end == len(text) else None


def first_object(text: str, start: int) -> tuple[JsonObject, int] | None:
    """The object that begins at the first brace from ``start`` on, and where it ends; None when
    there is no brace, or no whole object behind it."""
    begin = text.find("{", start)
    if begin < 0:
        return None
    try:
        value, end = _lenient.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None
    return value, end


def child(value: object, key: str) -> JsonObject | None:
    """``value[key]`` when both are objects."""
    if isinstance(value, dict):
        inner = value.get(key)
        if isinstance(inner, dict):
            return inner
    return None


def children(value: JsonObject, key: str) -> list[JsonObject]:
    """The objects in the list ``value[key]``; empty when there is no such list."""
    inner = value.get(key)
    return [item for item in inner if isinstance(item, dict)] if isinstance(inner, list) else []


def name_of(value: JsonObject, key: str) -> str | None:
    """A provider's id or model, shortened; None when it has none."""
    name = value.get(key)
    return name[:_MAX_NAME] if isinstance(name, str) and name else None


def token_number(value: object) -> int | None:
    """A reported number of tokens; None when it cannot be one.

    Fractions are rounded up. Negative, non-finite and absurdly large numbers (Redis computes in
    doubles, so above 2**53 - 1) are not reports: they would credit or break a counter.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and math.isfinite(value):
        value = math.ceil(value)
    if isinstance(value, int) and 0 <= value <= MAX_REPORTED_TOKENS:
        return value
    return None


def first_positive(*values: object) -> int | None:
    """The first positive number of tokens, else 0 if any was reported, else None.

    Gateways report the same number under two names and leave a placeholder zero in one.
    """
    numbers = [number for value in values if (number := token_number(value)) is not None]
    return next((number for number in numbers if number), 0 if numbers else None)


def is_absurd(report: JsonObject | None, names: Iterable[str]) -> bool:
    """Whether one of these numbers cannot be one of tokens: then the report is not believed at all.

    Who says -500 or 1e308 of the prompt may say anything of the output. What is no number is only
    not reported.
    """
    if report is None:
        return False
    return any(
        isinstance(value := report.get(name), int | float)
        and not isinstance(value, bool)
        and token_number(value) is None
        for name in names
    )
