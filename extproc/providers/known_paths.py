"""Paths that are known and not metered, written as patterns: ``threads/*/runs``.

A star is one segment without a colon: behind a colon stands a verb (``models/NAME:verb``), which
may be one that is billed.
"""

from extproc.providers.error_bodies import ErrorShape, openai_error
from extproc.providers.paths import has_api_prefix
from extproc.providers.wire_formats import ANY_END, KnownPath, Target

_STAR = "*"


def known(
    name: str,
    provider: str,
    *patterns: str,
    is_free: bool = False,
    anywhere: bool = False,
    error_shape: ErrorShape = openai_error,
) -> KnownPath:
    """A known path. What stands before a pattern is how an API begins, or ``anywhere`` anything."""
    split = tuple(tuple(pattern.split("/")) for pattern in patterns)

    def matches(target: Target) -> bool:
        return any(
            _fits(target.lowered, words) and (anywhere or has_api_prefix(target, words=len(words)))
            for words in split
        )

    lasts = dict.fromkeys(ANY_END if words[-1] == _STAR else words[-1] for words in split)
    return KnownPath(
        name=name,
        provider=provider,
        ends=tuple(lasts),
        matches=matches,
        error_shape=error_shape,
        is_free=is_free,
    )


def _fits(segments: tuple[str, ...], words: tuple[str, ...]) -> bool:
    tail = segments[-len(words) :]
    return len(tail) == len(words) and all(
        ":" not in segment if word == _STAR else segment == word
        for segment, word in zip(tail, words, strict=True)
    )
