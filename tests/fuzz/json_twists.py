"""Changes of a JSON value into a hostile one, and how it is written down.

What Python's own writer would never write (NaN, a key twice, a number of 5,000 digits) stands in
the value as a marked string and is put in at the end.
"""

import copy
import json
import re
from contextlib import suppress
from typing import Any

from tests.fuzz.choices import Choices
from tests.fuzz.words import KEYS

_LITERALS = (
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-999", "-0", "-0.0", "1E308", "0.1e1"),
    *("9" * 29, "9" * 31, "-" + "9" * 31, "9" * 5000, "0." + "9" * 5000, "1" + "0" * 400 + ".5"),
    *("01", "+1", ".5", "1.", "0x10", "tru", "nul", "undefined", "'a'", "", "}", "]", "[1,]"),
    *(r'"\ud800"', r'"\udc00\ud800"', r'"\u0000"', r'"\x"', '"\n"', '"\t\x01"', '"', '"\\"'),
    "[" * 120 + "]" * 120,
    '{"a":' * 120 + "1" + "}" * 120,
    "[" * 1200 + "]" * 1200,
    "[" * 3000,
    "/* c */ 1",
)
_TEXT = "Hello 汉字 👩‍👩‍👧 \u0301 <|endoftext|> "
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 5, 2**31 - 1, 2**31, 2**53, 2**63, -(2**63), 10**29),
    *(0.0, -0.0, 1.5, 5.0, -2.5, 1e300, 2.0**53, 1e-300),
    *("", " ", "0", "5", "-1", "1e5", "true", "x", "x" * 300, "\ud83d", "\x00", "\ufeff", _TEXT),
    *("a" * 4000, "[DONE]", 'data: {"usage":{}}\n\n', "data:image/png;base64,iVBORw0KGgo"),
    *([], {}, [[]], [{}], [None], [0], [""], ["a", 1], {"": ""}, {"type": []}, {"type": {}}),
    *({"type": "text", "text": {}}, {"content": [{"type": "image"}]}, {"usage": {}}, [[[[]]]]),
)
_LITERAL, _DOUBLE, _ESCAPED = "@literal", "@again", "@escaped"
_MOST_CHARS = 200_000
_TOO_DEEP = 2000
_MOST_WRAPS = 110
_MOST_COPIES = 60


def twisted(value: Any, choices: Choices) -> Any:
    """``value``, changed at one place. Containers are changed where they are."""
    holder = {"": value}
    container, key = _place(holder, choices)
    kind = choices.below(9)
    if kind == 0:
        container[key] = _hostile(choices)
    elif kind == 1:
        container[key] = f"{_LITERAL}{choices.below(len(_LITERALS))}@"
    elif kind == 2 and container is not holder:
        del container[key]
    elif kind == 3:
        _insert(container[key], choices)
    elif kind == 4 and container is not holder:
        _copy(container, key, choices)
    elif kind == 5:
        for _ in range(1 + choices.below(_MOST_WRAPS)):
            container[key] = [container[key]] if choices.below(2) else {"a": container[key]}
    elif kind == 6:
        other, at = _place(holder, choices)
        with suppress(RecursionError):
            container[key] = json.loads(json.dumps(other[at]))
    elif kind == 7 and isinstance(container, dict) and container is not holder:
        container[choices.pick(KEYS)] = container.pop(key)
    else:
        container[key] = choices.below(2**32) - 2**16
    return holder.get("")


def _hostile(choices: Choices) -> Any:
    """A value of its own each time, because it may be changed in its turn."""
    return copy.deepcopy(choices.pick(_VALUES))


def _place(holder: dict[str, Any], choices: Choices) -> tuple[Any, Any]:
    """A container in it and one of its keys; the deeper the rarer."""
    container: Any = holder
    keys: list[Any] = [""]
    while True:
        key = choices.pick(keys)
        inner = container[key]
        if not isinstance(inner, dict | list) or not inner or choices.one_in(5):
            return container, key
        container = inner
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))


def _insert(inner: Any, choices: Choices) -> None:
    if isinstance(inner, dict):
        inner[choices.pick(KEYS)] = _hostile(choices)
    elif isinstance(inner, list):
        inner.append(_hostile(choices))


def _copy(container: Any, key: Any, choices: Choices) -> None:
    """The same key twice, the same key spelled with an escape, or many equal items."""
    if isinstance(container, list):
        container.extend([container[key]] * choices.below(_MOST_COPIES))
    elif choices.below(2):
        container[f"{key}{_DOUBLE}"] = _hostile(choices)
    else:
        container[f"{_ESCAPED}{key}"] = _hostile(choices)


_MARKED = re.compile(rf'"{_LITERAL}(\d+)@"')
_MARKED_KEY = re.compile(rf'"{_ESCAPED}(\w)')


def written(value: Any, choices: Choices) -> bytes:
    """``value`` as JSON, with what marks stand for; lone surrogates as escapes."""
    spaced = choices.one_in(4)
    ascii_only = not choices.one_in(3)
    try:
        text = json.dumps(
            value,
            ensure_ascii=ascii_only,
            separators=None if spaced else (",", ":"),
            indent=1 if choices.one_in(8) else None,
        )
    except RecursionError:
        text = "[" * _TOO_DEEP + "]" * _TOO_DEEP
    text = _MARKED.sub(lambda match: _LITERALS[int(match[1])], text)
    text = _MARKED_KEY.sub(lambda match: f'"\\u{ord(match[1]):04x}', text.replace(_DOUBLE, ""))
    return text[:_MOST_CHARS].encode("utf-8", "surrogatepass" if spaced else "backslashreplace")
