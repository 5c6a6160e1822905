"""Bytes read as decisions: one input of a fuzzer, whoever made it, is one case."""

from collections.abc import Sequence
from typing import TypeVar

_T = TypeVar("_T")


class Choices:
    """Reads ``data`` from its begin. At its end every number is 0 and every blob empty, so that
    shorter inputs make simpler cases (what a shrinker needs)."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def below(self, limit: int) -> int:
        """A number from 0 to ``limit`` - 1."""
        size = max(1, (limit - 1).bit_length() + 7 >> 3)
        return int.from_bytes(self.blob(size)) % limit

    def one_in(self, count: int) -> bool:
        """True about once in ``count`` times, never when nothing is left."""
        return self.below(count) == count - 1

    def pick(self, options: Sequence[_T]) -> _T:
        return options[self.below(len(options))]

    def blob(self, size: int) -> bytes:
        """Up to ``size`` bytes."""
        taken = self._data[self._at : self._at + size]
        self._at += len(taken)
        return taken
