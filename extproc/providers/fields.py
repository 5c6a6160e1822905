"""Typed access to the fields of a request; every error is a 400 that names the field.

null counts as absent, as the providers have it. True is not a number, although Python thinks so.
"""

from extproc.core.errors import RequestError
from extproc.providers.requests import JsonObject


def wrong(name: str, expected: str) -> RequestError:
    """A 400 for a field of the wrong type or range."""
    return RequestError(400, "invalid_value", f"'{name}' must be {expected}", param=name)


def model_of(body: JsonObject, *, default: str | None = None) -> str:
    """The required model; ``default`` where the API has one."""
    model = body.get("model")
    if model is None and default is not None:
        return default
    if not isinstance(model, str) or not model.strip():
        raise wrong("model", "a non-empty string")
    if len(model) > 256:
        raise wrong("model", "at most 256 characters long")
    try:
        model.encode()
    except UnicodeEncodeError:
        raise wrong("model", "valid Unicode") from None
    return model


def flag(body: JsonObject, name: str) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong(name, "a boolean")
    return value


def positive_int(body: JsonObject, name: str, *, at_most: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= at_most:
        raise wrong(name, f"an integer between 1 and {at_most}")
    return value


def objects(body: JsonObject, name: str) -> list[JsonObject]:
    """A required list of objects."""
    value = body.get(name)
    if not isinstance(value, list):
        raise wrong(name, "a list of objects")
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise wrong(f"{name}[{index}]", "an object")
    return value


def optional_object(body: JsonObject, name: str) -> JsonObject | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, dict):
        raise wrong(name, "an object")
    return value


def optional_list(body: JsonObject, name: str) -> list[object]:
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong(name, "a list")
    return value
