"""Changes of a JSON object that leave every other byte as it was.

Big integers, the spelling of floats, the order of keys and white space stay what the client sent
(its signature or cache may depend on it). The text was parsed before, so it is well-formed.
"""

import json
import re
from collections.abc import Sequence
from json.decoder import JSONDecoder, scanstring  # type: ignore[attr-defined]

from extproc.providers.requests import JsonObject

_SPACE = re.compile(r"[ \t\n\r]*")
_decoder = JSONDecoder()


def inserted(text: str, member: str) -> str:
    """The JSON object ``text`` with ``member`` (and its comma) as its first."""
    brace = text.index("{") + 1
    return text[:brace] + member + text[brace:]


def member_span(text: str, key: str) -> tuple[int, int]:
    """Where the value of ``key``, which is there, stands in the JSON object ``text``."""
    at = _skip(text, text.index("{") + 1)
    while True:
        name, at = scanstring(text, at + 1, True)  # noqa: FBT003 - the C function takes no keywords
        start = _skip(text, _skip(text, at) + 1)
        _, end = _decoder.raw_decode(text, start)
        if name == key:
            return start, end
        at = _skip(text, _skip(text, end) + 1)


def with_member(text: str, value: JsonObject, path: Sequence[str], literal: str) -> str:
    """The JSON object ``text``, parsed as ``value``, with ``literal`` as its member at ``path``.

    Objects on the way that are absent or null are made; whatever else stands there is replaced.
    """
    name, rest = path[0], path[1:]
    inner = value.get(name)
    if name not in value:
        comma = "," if value else ""
        return inserted(text, f"{json.dumps(name)}:{_nested(rest, literal)}{comma}")
    start, end = member_span(text, name)
    if rest and isinstance(inner, dict):
        changed = with_member(text[start:end], inner, rest, literal)
    else:
        changed = _nested(rest, literal)
    return text[:start] + changed + text[end:]


def _nested(path: Sequence[str], literal: str) -> str:
    for name in reversed(path):
        literal = f"{{{json.dumps(name)}:{literal}}}"
    return literal


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None  # it matches the empty string
    return space.end()
