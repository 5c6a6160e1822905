"""Who a request was, as the note of its refusal says it, so that `explain` can ask the same again.

Small, for it travels with every request and is written only when one is refused. A key of an API is
a secret, so it is not told: only that there was one.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from extproc.core.policies import Descriptor, Scope

MAX_BYTES = 512
# The same few ask again and again.
_MOST_KEPT = 1024
_SECRET = frozenset({Scope.API_KEY})
# The model is noted by itself.
_UNTOLD = frozenset({Scope.MODEL})
_UNPRICED = "unpriced"
_HIDDEN = "hidden"
_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """``values`` are known, ``hidden`` are scopes that had a value which is not told: a secret, or
    one too long. ``is_priced`` is False where the model had no price."""

    values: Mapping[Scope, str] = field(default_factory=dict)
    hidden: tuple[Scope, ...] = ()
    is_priced: bool = True


def told_values(descriptor: Descriptor) -> dict[str, str]:
    """The values that may be written down for people."""
    return _told(descriptor.values.items())


def _told(values: Iterable[tuple[Scope, str]]) -> dict[str, str]:
    untold = _SECRET | _UNTOLD
    return {str(scope): value for scope, value in values if scope not in untold}


def subject_text(descriptor: Descriptor, *, is_priced: bool) -> str:
    """ASCII of at most ``MAX_BYTES``; where it would be longer, the longest values are hidden."""
    values = tuple(descriptor.values.items())
    if sum(len(value) for _, value in values) > MAX_BYTES:
        return _subject_text.__wrapped__(values, is_priced=is_priced)
    return _subject_text(values, is_priced=is_priced)


@lru_cache(maxsize=_MOST_KEPT)
def _subject_text(values: tuple[tuple[Scope, str], ...], *, is_priced: bool) -> str:
    told: dict[str, object] = dict(_told(values))
    hidden = [str(scope) for scope, _ in values if scope in _SECRET]
    if not is_priced:
        told[_UNPRICED] = 1
    while True:
        whole = {**told, _HIDDEN: hidden} if hidden else told
        text = _encode(whole)
        if len(text) <= MAX_BYTES:
            return text
        longest = max((name for name in told if name != _UNPRICED), key=lambda n: len(str(told[n])))
        del told[longest]
        hidden.append(longest)


def read_subject(text: str) -> Subject:
    """The reverse. Raises ValueError for anything else; what has no text is of an older release."""
    if not text:
        return Subject()
    plain = json.loads(text)
    if not isinstance(plain, dict):
        raise ValueError("a subject is an object")
    is_priced = not plain.pop(_UNPRICED, 0)
    hidden = tuple(Scope(name) for name in plain.pop(_HIDDEN, ()))
    values = {Scope(name): value for name, value in plain.items()}
    if not all(isinstance(value, str) for value in values.values()):
        raise ValueError("a subject's values are text")
    return Subject(values=values, hidden=hidden, is_priced=is_priced)
