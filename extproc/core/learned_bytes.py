"""How many bytes of an answer stand for one token, learned where both are known.

For answers of which only the size is known: those of profile ``native`` that broke off, or whose
format Envoy does not read. A stream of one token an event has some 250 bytes a token, one of many
tokens an event 6, a plain answer 5. Each root, format and model has its own: nobody teaches what
others are charged by.
"""

from collections import OrderedDict

_MOST_KEPT = 1024
_WEIGHT = 0.1  # of the newest answer
_LEAST_TOKENS = 8  # shorter answers are mostly envelope
# Before anything was learned.
_STREAM, _PLAIN = 100.0, 4.0
# Answers with much beside their text (probabilities of tokens) must not make others cheap.
_LOWEST, _HIGHEST = 1.0, 300.0

Key = tuple[str, str, str, bool]


class LearnedBytes:
    """Bytes a token by (root, wire format, model, whether it streams). Bounded, of this
    process alone."""

    def __init__(self) -> None:
        self._ratios: OrderedDict[Key, float] = OrderedDict()

    def learn(self, key: Key, *, size: int, tokens: int) -> None:
        """A complete answer of ``size`` bytes had ``tokens`` of output."""
        if tokens < _LEAST_TOKENS or size <= 0:
            return
        ratio = min(_HIGHEST, max(_LOWEST, size / tokens))
        known = self._ratios.pop(key, None)
        self._ratios[key] = ratio if known is None else known + _WEIGHT * (ratio - known)
        if len(self._ratios) > _MOST_KEPT:
            self._ratios.popitem(last=False)

    def tokens(self, key: Key, size: int) -> int:
        """The output tokens of ``size`` bytes, rounded up."""
        ratio = self._ratios.get(key)
        if ratio is None:
            ratio = _STREAM if key[3] else _PLAIN
        return -int(-size // ratio)
