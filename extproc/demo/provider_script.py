"""What the fake provider is asked to do with one request, by the header ``x-fake``.

The header reads ``key=value;key=value``. It travels through Envoy like any other client header, so
the same provider process can serve many scripted requests at once and hold no state between them.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

SCRIPT_HEADER = "x-fake"
DEFAULT_OUTPUT_TOKENS = 16

UsageMode = Literal["normal", "none", "null", "every_chunk", "zero", "late", "in_choice"]
USAGE_MODES: tuple[str, ...] = get_args(UsageMode)


class ScriptError(ValueError):
    """The ``x-fake`` header says something that this provider does not understand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One request's behaviour.

    ``output`` tokens per choice, before the request's own cap. ``input`` overrides the counted
    input; ``cached`` is the part of it that is reported as read from a cache, ``written`` the part
    that is written to one. ``reasoning`` is the part of the output that is thought, not said.
    ``delay_ms`` passes before the answer's headers, ``chunk_delay_ms`` before every chunk but the
    first (and before a scripted break).
    ``break_after``, ``hang_after`` and ``error_event_after`` count chunks that carry text; a plain
    answer is cut by ``chunk`` into pieces, and there they count pieces.
    ``chunk`` holds byte sizes at which the answer is cut into writes, used in turn.
    ``label`` is copied into the journal, so that a reader can tell whose request it was.
    ``gate`` holds the answer back until the gate of that name is opened.
    """

    output: int = DEFAULT_OUTPUT_TOKENS
    input: int | None = None
    cached: int = 0
    written: int = 0
    reasoning: int = 0
    delay_ms: int = 0
    chunk_delay_ms: int = 0
    usage: UsageMode = "normal"
    status: int = 200
    retry_after: int | None = None
    break_after: int | None = None
    hang_after: int | None = None
    error_event_after: int | None = None
    reset: Literal["before_headers"] | None = None
    content_type: str | None = None
    chunk: tuple[int, ...] = ()
    label: str = ""
    gate: str = ""


_NUMBERS = frozenset(
    {
        "output",
        "input",
        "cached",
        "written",
        "reasoning",
        "delay_ms",
        "chunk_delay_ms",
        "status",
        "retry_after",
        "break_after",
        "hang_after",
        "error_event_after",
    }
)
_WORDS: dict[str, tuple[str, ...]] = {"usage": USAGE_MODES, "reset": ("before_headers",)}
_TEXTS = frozenset({"content_type", "label", "gate"})


def _number(key: str, text: str, *, least: int = 0) -> int:
    if not text.isdigit() or int(text) < least:
        raise ScriptError(f"{key}: expected a whole number of at least {least}, got {text!r}")
    return int(text)


def parse_script(header: str | None) -> Script:
    """Read an ``x-fake`` header; None is the plain, friendly provider. Raises ScriptError.

    A misspelt key is an error: a script that is silently ignored makes a test that cannot fail.
    """
    values: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in (header or "").split(";"))):
        key, equals, text = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ScriptError(f"expected key=value, got {part!r}")
        if key in _NUMBERS:
            values[key] = _number(key, text)
        elif key == "chunk":
            values[key] = tuple(_number(key, size, least=1) for size in text.split(","))
        elif key in _WORDS:
            if text not in _WORDS[key]:
                raise ScriptError(f"{key}: expected one of {', '.join(_WORDS[key])}, got {text!r}")
            values[key] = text
        elif key in _TEXTS:
            values[key] = text
        else:
            raise ScriptError(f"unknown key {key!r}")
    return Script(**values)
