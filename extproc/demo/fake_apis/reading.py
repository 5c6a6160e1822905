"""What the fake APIs have in common: JSON in and out, and how their input is counted.

No provider here publishes a vocabulary, so the numbers are made up, and far enough from any guess
of the product, which has to settle to them.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from extproc.demo.fake_apis.api import Job
from extproc.demo.fake_orders import OrderError
from extproc.demo.fake_tokens import count, words
from extproc.demo.provider_script import Script

_ENCODING = "o200k_base"


def packed(value: Any) -> bytes:
    """A value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":")).encode()


def json_object(raw: bytes) -> dict[str, Any]:
    """The body as an object. Raises OrderError."""
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise OrderError("The body is not JSON.") from error
    if not isinstance(value, dict):
        raise OrderError("The body must be a JSON object.")
    return value


def required(body: Mapping[str, Any], field: str, *kinds: type) -> Any:
    """A field that must be there and not empty. Raises OrderError."""
    value = body.get(field)
    if not value or not isinstance(value, kinds):
        raise OrderError(f"{field}: missing or of a wrong type.", param=field)
    return value


def cap_of(holder: object, field: str) -> int | None:
    """A positive number, None where it is absent. Raises OrderError."""
    value = holder.get(field) if isinstance(holder, dict) else None
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise OrderError(f"{field}: must be at least 1.", param=field)
    return value


def capped(wanted: int, cap: int | None) -> tuple[int, bool]:
    """How much is produced, and whether the cap cut it."""
    return (wanted, False) if cap is None or cap >= wanted else (cap, True)


def thoughts_and_text(job: Job, script: Script) -> tuple[Iterator[str], Iterator[str]]:
    """The words of the output that are thought, and those that are said."""
    thoughts = min(script.reasoning, job.output_tokens)
    return words(thoughts, start=1), words(job.output_tokens - thoughts)


def text_tokens(text: str) -> int:
    """Tokens of one text alone."""
    return count(text, _ENCODING)


def scaled_tokens(value: object, *, percent: int, more: int = 0) -> int:
    """All strings anywhere in ``value``, times ``percent``, rounded up, and ``more``."""
    counted = sum(text_tokens(text) for text in _strings(value))
    return math.ceil(counted * percent / 100) + more


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
