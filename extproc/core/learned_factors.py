"""What a provider's input tokens are to ours, learned from answers: one factor a model.

A tokenizer that nobody publishes, or tokens that a provider adds, make an estimate wrong by the
same ratio again and again. The factor corrects what the next requests reserve; what they pay is
always the usage. It lives in memory: the hot path looks it up in a dictionary.

It moves slowly and cannot be thrown: an answer moves it by at most a fiftieth of the way, ratios
are clipped, and those that no tokenizer explains (a conversation that the provider remembers) do
not count at all.
"""

import re
from collections import OrderedDict
from dataclasses import dataclass

PLAIN = 1000
LEAST, MOST = 500, 2000
MAX_MODELS = 256

_STEP = 0.02
# Beyond these the estimate missed something that is no matter of tokenizers.
_LEAST_RATIO, _MOST_RATIO = 250, 4000
# Of a short request most is overhead, which is exact.
_LEAST_TOKENS = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}", re.ASCII)

# A provider's word and a model's exact name.
Model = tuple[str, str]


@dataclass(slots=True)
class _Learned:
    permille: float = float(PLAIN)
    answers: int = 0  # since the last exchange with other workers


class LearnedFactors:
    """Factors in permille by provider and model, the least recently used forgotten."""

    def __init__(self, *, max_models: int = MAX_MODELS) -> None:
        self._max_models = max_models
        self._models: OrderedDict[Model, _Learned] = OrderedDict()

    def permille(self, provider: str, model: str) -> int:
        """1000 until something was learned; always 500 to 2000."""
        found = self._models.get((provider, model))
        return PLAIN if found is None else round(found.permille)

    def learn(self, provider: str, model: str, *, estimated: float, actual: int) -> None:
        """One answer's reported input against our estimate without any factor, in tokens.

        Only for answers with usage: a model that a provider does not have is never kept.
        """
        if estimated < _LEAST_TOKENS or _NAME.fullmatch(model) is None:
            return
        ratio = actual * PLAIN / estimated
        if not _LEAST_RATIO <= ratio <= _MOST_RATIO:
            return
        learned = self._touched((provider, model))
        learned.permille += (min(max(ratio, LEAST), MOST) - learned.permille) * _STEP
        learned.answers += 1

    def fresh(self) -> dict[Model, tuple[float, int]]:
        """What was learned since the last ``exchanged``: factor and number of answers."""
        return {
            model: (learned.permille, learned.answers)
            for model, learned in self._models.items()
            if learned.answers
        }

    def exchanged(self, model: Model, permille: float, *, answers: int) -> None:
        """Take what all workers together know; ``answers`` of ours are in it.

        What was learned meanwhile stays on top. Values out of bounds are ignored.
        """
        if not LEAST <= permille <= MOST or _NAME.fullmatch(model[1]) is None:
            return
        learned = self._touched(model)
        if learned.answers > answers:
            self._models[model] = _Learned(learned.permille, learned.answers - answers)
        else:
            self._models[model] = _Learned(permille)

    def all(self) -> dict[Model, int]:
        """Every factor, for metrics."""
        return {model: round(learned.permille) for model, learned in self._models.items()}

    def _touched(self, model: Model) -> _Learned:
        learned = self._models.setdefault(model, _Learned())
        self._models.move_to_end(model)
        while len(self._models) > self._max_models:
            self._models.popitem(last=False)
        return learned


def merged(mine: float, answers: int, others: float | None) -> float:
    """One worker's factor and that in Redis; the more answers it saw, the more its word counts."""
    if others is None:
        return mine
    # As much as the moving average itself would have gone with them.
    weight = 1 - (1 - _STEP) ** answers
    return others + (mine - others) * weight
