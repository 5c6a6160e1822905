"""Changes of a JSON object that leave every other byte as it was.

Big integers, the spelling of floats, the order of keys and white space stay what the client sent
(its signature or cache may depend on it). The text was parsed before, so it is well-formed.
"""

import re
from json.decoder import JSONDecoder, scanstring  # type: ignore[attr-defined]

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


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None  # it matches the empty string
    return space.end()
