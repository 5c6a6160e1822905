"""What providers say in headers about their own limits, and when to come back.

OpenAI and its copies: ``x-ratelimit-{limit,remaining,reset}-{requests,tokens}``; Anthropic:
``anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset}``.
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from extproc.core.provider_errors import Dimension, Room

_MAX_COUNT = 2**53
# Nobody means a longer wait than a month; a number beyond is not advice.
_MAX_WAIT_SECONDS = 31 * 86_400
_NUMBER = re.compile(r"\d{1,16}(\.\d{1,9})?")
# Go's durations, as OpenAI writes them ("6m0s", "120ms"), and protobuf's ("36.5s").
_DURATION = re.compile(
    r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m(?!s))?(?:(\d{1,9}(?:\.\d{1,9})?)s)?"
    r"(?:(\d{1,9}(?:\.\d{1,9})?)ms)?"
)
_DIMENSIONS = {
    "requests": Dimension.REQUESTS,
    "tokens": Dimension.TOKENS,
    "input-tokens": Dimension.INPUT_TOKENS,
    "output-tokens": Dimension.OUTPUT_TOKENS,
}
# (dimension, header of what is left, header of the limit, header of when it is whole again)
_HEADERS = tuple(
    (_DIMENSIONS[unit], f"x-ratelimit-remaining-{unit}", f"x-ratelimit-limit-{unit}")
    for unit in ("requests", "tokens")
) + tuple(
    (dimension, f"anthropic-ratelimit-{unit}-remaining", f"anthropic-ratelimit-{unit}-limit")
    for unit, dimension in _DIMENSIONS.items()
)
_RESETS = {
    Dimension.REQUESTS: "x-ratelimit-reset-requests",
    Dimension.TOKENS: "x-ratelimit-reset-tokens",
}
_REMAINING = frozenset(name for _, name, _ in _HEADERS)
# Everything that is read here or by ``provider_faults``.
HEADERS = frozenset(
    {
        *(name for _, *names in _HEADERS for name in names),
        *_RESETS.values(),
        "retry-after",
        "retry-after-ms",
        "x-should-retry",
        "x-amzn-errortype",
    }
)


def rooms_of(headers: Mapping[str, str]) -> list[Room]:
    """What is left, by dimension; header names in lower case. Never raises."""
    rooms: list[Room] = []
    if _REMAINING.isdisjoint(headers):  # most providers say nothing
        return rooms
    for dimension, remaining_name, limit_name in _HEADERS:
        if remaining_name in headers:
            remaining = _count(headers[remaining_name])
            if remaining is not None:
                rooms.append(Room(dimension, remaining, _count(headers.get(limit_name, ""))))
    return rooms


def retry_after(
    headers: Mapping[str, str], *, dimension: Dimension = Dimension.NONE, now: datetime
) -> float | None:
    """Seconds that the provider asks to wait; None when it does not say. Never raises.

    ``retry-after-ms`` (OpenAI, Azure) is the finer one, ``retry-after`` is seconds or a date
    (RFC 9110, 10.2.3), and the reset of the dimension that refused stands in for both.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return _wait(milliseconds / 1000)
    text = headers.get("retry-after", "").strip()
    if text:
        seconds = _number(text)
        return _until(text, now) if seconds is None else _wait(seconds)
    reset = _RESETS.get(dimension)
    return duration_seconds(headers.get(reset, "")) if reset is not None else None


def duration_seconds(text: str) -> float | None:
    """``6m0s``, ``120ms``, ``1.5s``, ``1h2m3s`` in seconds; None for anything else."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds, milliseconds = (float(part or 0) for part in found.groups())
    whole = days * 86_400 + hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
    return _wait(whole)


def _until(text: str, now: datetime) -> float | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
    return _wait((moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds())


def _wait(seconds: float) -> float | None:
    if not math.isfinite(seconds) or seconds > _MAX_WAIT_SECONDS:
        return None
    return max(0.0, seconds)


def _number(text: str) -> float | None:
    found = _NUMBER.fullmatch(text.strip())
    return None if found is None else float(found.group())


def _count(text: str) -> int | None:
    """A whole number of requests or tokens; below zero is nothing left."""
    if len(text) < 16 and text.isascii() and text.isdigit():
        return int(text)
    text = text.strip()
    if text.startswith("-") and _number(text[1:]) is not None:
        return 0
    number = _number(text)
    return None if number is None else int(min(number, _MAX_COUNT))
