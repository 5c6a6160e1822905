"""JSON of exports: bounded, without floats, and with nothing said twice."""

import json
from collections.abc import Iterator
from typing import Any, NoReturn

from extproc.providers.exports.values import Number, Place

MAX_BYTES = 64 * 1024 * 1024
_GZIP = b"\x1f\x8b"
_ZIP = b"PK\x03\x04"


def decoded(data: bytes, file: str) -> str:
    """The text of a file. Raises ExportError: too large, compressed, not UTF-8."""
    place = Place(file)
    if len(data) > MAX_BYTES:
        place.wrong("", f"may have {MAX_BYTES} bytes")
    if data.startswith((_GZIP, _ZIP)):
        place.wrong("", "is compressed: unpack it first")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place.wrong("", f"byte {error.start + 1} is not UTF-8")


def is_json(text: str) -> bool:
    """Whether it begins as JSON does that holds rows; no header of a table does."""
    return text.lstrip()[:1] in ("{", "[")


def documents(text: str, file: str) -> Iterator[tuple[str, Any]]:
    """The values in a file with their names: one value, a list of them, or one a line."""
    plain, error = _loads(text, file)
    if error is None:
        values = plain if isinstance(plain, list) else [plain]
        for number, one in enumerate(values):
            yield f"[{number}]" if len(values) > 1 else "", one
        return
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(lines) < 2 or _loads(lines[0][1], file)[1] is not None:
        Place(file).wrong("", error)
    for number, line in lines:
        plain, error = _loads(line, file)
        if error is not None:
            Place(file, f"line {number}").wrong("", error)
        yield f"line {number}", plain


def an_object(value: object, place: Place, field: str) -> dict[str, Any]:
    """``value`` if it is an object."""
    if not isinstance(value, dict):
        place.wrong(field, "must be an object")
    return value


def a_list(value: object, place: Place, field: str) -> list[Any]:
    """``value`` if it is a list."""
    if not isinstance(value, list):
        place.wrong(field, "must be a list")
    return value


def _loads(text: str, file: str) -> tuple[Any, str | None]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            Place(file).wrong("", f"a name stands twice in one object with {list(found)[:3]}")
        return found

    try:
        return (
            json.loads(text, parse_float=Number, parse_constant=_constant, object_pairs_hook=pairs),
            None,
        )
    except RecursionError:
        return None, "is nested too deeply"
    except json.JSONDecodeError as error:
        return None, f"is not JSON: {error.msg}, line {error.lineno} column {error.colno}"
    except ValueError:
        return None, "is not JSON that can be read: NaN, Infinity or an endless number"


def _constant(name: str) -> NoReturn:
    raise ValueError(name)
