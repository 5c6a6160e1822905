"""Reads a request's body as one JSON object, and refuses what two readers could read differently.

The provider parses the same bytes again. Where parsers disagree (duplicate keys, NaN, numbers too
long for a double, bytes that are not UTF-8), a limiter that guesses can be made to check one value
while the provider uses another; so these are answered with 400 before anything is reserved.
"""

import json
import math
import re

from extproc.core.errors import RequestError
from extproc.providers.content_coding import decode_body
from extproc.providers.requests import JsonObject, ReadLimits

MAX_DIGITS = 30
# Objects and lists of one body: millions of empty ones fit into 16 MB and would take seconds.
MAX_CONTAINERS = 250_000
# Values and keys behind one another: 16 MB of token ids are 3 million, of which no provider takes a
# tenth; a million keys take a second to be read.
MAX_VALUES = 600_000
# Each quote begins one match, also the last one of a text that is cut: never a second try.
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
UTF8_BOM = b"\xef\xbb\xbf"
_MAGIC = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"))
_CHARSET = re.compile(r"charset\s*=\s*\"?([^\s;\"]+)", re.IGNORECASE)
# Shorter than it would take to hold too many values.
_SHORT = 100_000
_UTF8_NAMES = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})
_CONTAINERS = (dict, list)
_Container = dict[str, object] | list[object]
_ASCII_LIKE = frozenset({"iso-8859-1", "latin1", "windows-1252"})


def read_json_object(
    body: bytes, content_encoding: str | None, *, content_type: str | None, limits: ReadLimits
) -> tuple[JsonObject, bytes]:
    """The object in ``body``, and the decoded bytes it was read from.

    The media type is not looked at: providers parse JSON under any label, so a limiter must too.
    Raises RequestError: 400 for anything that is not one unambiguous JSON object, 413 for a body
    that inflates beyond the limit, 415 for an unknown content encoding or charset.
    """
    plain = decode_body(body, content_encoding, max_bytes=limits.max_decoded_bytes)
    _check_charset(content_type, plain)
    text = _decode_utf8(plain)
    lists = plain.count(b"[")  # at most; some may stand in texts
    value = _parse(text, lists=lists)
    if not isinstance(value, dict):
        raise _invalid("the request body must be a JSON object")
    _check_spellings(value)
    # Fewer brackets than the limit cannot nest deeper; nearly every request ends here.
    if lists + plain.count(b"{") > limits.max_depth:
        _check_depth(value, limits.max_depth)
    return value, plain


def _invalid(message: str, *, param: str | None = None, code: str = "invalid_json") -> RequestError:
    return RequestError(400, code, message, param=param)


def _check_charset(content_type: str | None, body: bytes) -> None:
    declared = _CHARSET.search(content_type or "")
    if declared is None:
        return
    name = declared[1].lower()
    if name in _UTF8_NAMES or (name in _ASCII_LIKE and body.isascii()):
        return
    raise RequestError(
        415, "unsupported_charset", "the request body must be UTF-8", param="content-type"
    )


def _decode_utf8(body: bytes) -> str:
    content = body.removeprefix(UTF8_BOM)
    if not content.strip():
        raise _invalid("the request body is empty", code="empty_body")
    for magic, name in _MAGIC:
        if content.startswith(magic):
            raise _invalid(
                f"the request body looks {name}-compressed, but content-encoding does not say so"
            )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(f"the request body is not UTF-8 (at byte {error.start})") from None


class _Unreadable:
    """Stands in the parsed tree for a number that JSON or a double cannot hold."""


_UNREADABLE = _Unreadable()


class _UnusualError(Exception):
    """Something that only the careful reading can judge."""


def _plain_pairs(items: list[tuple[str, object]]) -> JsonObject:
    result = dict(items)
    if len(result) != len(items):
        raise _UnusualError
    return result


def _no_constant(_literal: str) -> object:
    raise _UnusualError


def _plain_int(literal: str) -> int:
    if len(literal) > MAX_DIGITS:
        raise _UnusualError
    return int(literal)


def _plain_float(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise _UnusualError
    return value


_plain_decoder = json.JSONDecoder(
    object_pairs_hook=_plain_pairs,
    parse_constant=_no_constant,
    parse_int=_plain_int,
    parse_float=_plain_float,
)


def _parse(text: str, *, lists: int) -> object:
    """The value of a whole text; what is neither large nor strange is read the short way."""
    if len(text) <= _SHORT:
        try:
            return _plain_decoder.decode(text)
        except (_UnusualError, RecursionError, ValueError):
            pass  # read again, and said what is wrong with it
    return _parse_carefully(text, lists=lists)


def _parse_carefully(text: str, *, lists: int) -> object:
    bad: list[str] = []  # what the numbers were that could not be read
    objects = 0

    def refuse(literal: str) -> _Unreadable:
        bad.append(literal if len(literal) <= MAX_DIGITS else "with too many digits")
        return _UNREADABLE

    def pairs(items: list[tuple[str, object]]) -> JsonObject:
        nonlocal objects
        objects += 1
        if objects > MAX_CONTAINERS:
            raise _too_many()
        result = dict(items)
        if len(result) != len(items):
            raise _duplicate(items)
        if bad:
            for key, value in items:
                if isinstance(value, _Unreadable):
                    raise _bad_number(bad[-1], key)
        return result

    def to_int(literal: str) -> object:
        return int(literal) if len(literal) <= MAX_DIGITS else refuse(literal)

    def to_float(literal: str) -> object:
        value = float(literal)
        return value if math.isfinite(value) else refuse(literal)

    if lists > MAX_CONTAINERS or text.count(",") > MAX_VALUES:
        _check_sizes(text)
    try:
        value: object = json.loads(
            text,
            object_pairs_hook=pairs,
            parse_int=to_int,
            parse_float=to_float,
            parse_constant=refuse,
        )
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise _invalid(f"the request body is not JSON: {error}") from None
    if bad:
        raise _bad_number(bad[-1], None)
    return value


def _duplicate(items: list[tuple[str, object]]) -> RequestError:
    seen: set[str] = set()
    for key, _ in items:
        if key in seen:
            break
        seen.add(key)
    shown = _shown(key)
    return _invalid(f"the key '{shown}' occurs twice", param=shown, code="duplicate_key")


def _check_spellings(value: JsonObject) -> None:
    """Two fields that differ in case only are one to readers that match names in any case, as Go's
    encoding/json does. Deeper down such names are the client's own: schemas, arguments."""
    seen: set[str] = set()
    for key in value:
        folded = key.casefold()
        if folded in seen:
            shown = _shown(key)
            raise _invalid(
                f"the key '{shown}' occurs in two spellings", param=shown, code="duplicate_key"
            )
        seen.add(folded)


def _bad_number(literal: str, key: str | None) -> RequestError:
    shown = None if key is None else _shown(key)
    where = "" if shown is None else f" in '{shown}'"
    return _invalid(f"the number {literal}{where} is not valid", param=shown, code="invalid_number")


def _shown(key: str) -> str:
    """A client's key, short enough and encodable for an answer."""
    return key[:64].encode("utf-8", "replace").decode()


def _too_deep() -> RequestError:
    return _invalid("the request body is nested too deeply", code="nested_too_deeply")


def _check_sizes(text: str) -> None:
    """The parser calls us for every object, but makes lists alone, and holds the GIL for as long
    as that takes (3 s for 16 MB of them): so what makes them large is counted before.

    Brackets and commas in texts are none.
    """
    lists = values = begin = 0
    for string in _STRING.finditer(text):
        lists += text.count("[", begin, string.start())
        values += text.count(",", begin, string.start())
        begin = string.end()
        if lists > MAX_CONTAINERS or values > MAX_VALUES:
            break
    if lists + text.count("[", begin) > MAX_CONTAINERS:
        raise _too_many()
    if values + text.count(",", begin) > MAX_VALUES:
        raise _too_many(f"{MAX_VALUES} values")


def _too_many(what: str = f"{MAX_CONTAINERS} objects and lists") -> RequestError:
    return _invalid(f"the request body has more than {what}", code="too_many_values")


def _check_depth(value: object, limit: int) -> None:
    """Level by level, because a recursive walk would itself run out of stack."""
    level: list[_Container] = [value] if isinstance(value, _CONTAINERS) else []
    seen = 0
    for _ in range(limit):
        below: list[_Container] = []
        for container in level:
            children = container.values() if isinstance(container, dict) else container
            below += [child for child in children if isinstance(child, _CONTAINERS)]
        if not below:
            return
        seen += len(below)
        if seen > MAX_CONTAINERS:
            raise _too_many()
        level = below
    raise _too_deep()
