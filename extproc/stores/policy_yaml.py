"""YAML of policy files as plain values: bounded, and without the surprises of YAML 1.1.

Numbers are decimal: 0100 is 64 to some readers and 100 to others, 1:30 is 90. Keys are words and
stand once. Aliases and merge keys may be used, but the file must be small even when they are
written out. An error is a PolicyFileError that names the line, whatever the text.
"""

import re
from decimal import Decimal
from typing import Any

import yaml

# With all aliases written out: some thirty thousand policies.
MAX_VALUES = 1_000_000
MAX_DEPTH = 20
_MAX_SHOWN = 64
_MAX_PROBLEM = 200
_MAX_DIGITS = 30
_UNDER_WAY = (0, 0)
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9_]*)", re.ASCII)
_FRACTION = re.compile(r"(?:0|[1-9][0-9]*)\.[0-9]+", re.ASCII)

_TAG = "tag:yaml.org,2002:"
_STR, _INT, _MERGE = f"{_TAG}str", f"{_TAG}int", f"{_TAG}merge"
_FLOAT = f"{_TAG}float"
_SCALARS = {_STR, _INT, *(f"{_TAG}{name}" for name in ("float", "bool", "null", "timestamp"))}


class PolicyFileError(ValueError):
    """The file is wrong; a line for each mistake."""


def read_yaml(text: str, *, exact_fractions: bool = False) -> Any:
    """The one document in ``text``. Raises PolicyFileError and nothing else.

    ``exact_fractions``: 1.25 is a Decimal, and nothing is a float: for money.
    """
    loader = None
    try:
        loader = _Loader(text)
        loader.exact_fractions = exact_fractions
        node = loader.get_single_node()
        if node is None:
            return None
        _weigh(node, {})
        return _plain(loader, node, {})
    except yaml.YAMLError as error:
        raise PolicyFileError(_problem(error)) from error
    except RecursionError as error:
        raise PolicyFileError("nested too deeply") from error
    finally:
        if loader is not None:
            loader.dispose()


def shown(text: str, *, most: int = _MAX_SHOWN) -> str:
    """A part of a file as an error shows it."""
    more = "..." if len(text) > most else ""
    part = text[:most]
    return "".join(letter if letter.isprintable() else "?" for letter in part) + more


class _Loader(yaml.SafeLoader):
    """Bounds the depth while it reads, so that no text can exhaust the stack."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self.exact_fractions = False

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise _wrong(event, "nested too deeply")
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Refuses a key that stands twice, where YAML's last one would silently win."""
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag not in (_STR, _MERGE):
                raise _wrong(key, "a key must be a word, or in quotes")
            if key.value in seen:
                raise _wrong(key, f"{shown(key.value)} stands twice")
            seen.add(key.value)
        return node


def _weigh(node: yaml.Node, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """How many values ``node`` is with its aliases written out, and how deep they are nested.

    What is an alias stands after what it is an alias of, and so is known when it is met.
    """
    found = known.get(id(node))
    if found == _UNDER_WAY:
        raise _wrong(node, "an alias stands in what it is an alias of")
    if found is None:
        known[id(node)] = _UNDER_WAY
        count, depth = 1, 0
        for child in node.value if isinstance(node, yaml.CollectionNode) else ():
            for each in child if isinstance(child, tuple) else (child,):
                more, below = _weigh(each, known)
                count, depth = count + more, max(depth, below)
        found = known[id(node)] = count, depth + 1
        if count > MAX_VALUES:
            raise _wrong(node, f"more than {MAX_VALUES} values, with aliases written out")
        if depth >= MAX_DEPTH:
            raise _wrong(node, "nested too deeply")
    return found


def _plain(loader: _Loader, node: yaml.Node, known: dict[int, Any]) -> Any:
    """``node`` as Python has it. What is an alias there is shared here, and nobody changes it."""
    if id(node) not in known:
        known[id(node)] = _made(loader, node, known)
    return known[id(node)]


def _made(loader: _Loader, node: yaml.Node, known: dict[int, Any]) -> Any:
    if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
        return [_plain(loader, each, known) for each in node.value]
    if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
        loader.flatten_mapping(node)
        return {key.value: _plain(loader, value, known) for key, value in node.value}
    if not isinstance(node, yaml.ScalarNode) or node.tag not in _SCALARS:
        raise _wrong(node, f"{shown(node.tag.replace(_TAG, '!!'))} is not known here")
    if node.tag == _STR:
        return node.value
    text = shown(node.value)
    if node.tag == _INT and (
        _DECIMAL.fullmatch(node.value) is None or len(node.value) > _MAX_DIGITS
    ):
        raise _wrong(
            node, f"{text}: write a number in decimal digits, without zeros before it; quote text"
        )
    if node.tag == _FLOAT and loader.exact_fractions:
        if _FRACTION.fullmatch(node.value) is None or len(node.value) > _MAX_DIGITS:
            raise _wrong(node, f"{text}: write a number in decimal digits, as 0.25")
        return Decimal(node.value)
    try:
        return loader.construct_object(node)
    except Exception as error:  # YAML's own constructors raise whatever comes, for "!!bool x"
        reason = shown(str(error)) if isinstance(error, ValueError) else "cannot be read"
        raise _wrong(node, f"{text}: {reason}") from error


def _wrong(at: Any, problem: str) -> PolicyFileError:
    """``at`` is a node or an event."""
    return PolicyFileError(f"line {at.start_mark.line + 1}: {problem}")


def _problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = shown(getattr(error, "problem", None) or str(error), most=_MAX_PROBLEM)
    where = "" if mark is None else f"line {mark.line + 1}: "
    if "undefined alias" in problem:
        problem += ': put values with an asterisk in quotes, as "*each"'
    return f"{where}{problem}"
