"""Which models an operator knows: those with a price, and those that a setting names."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from extproc.core.price_list import PriceList


@dataclass(frozen=True, slots=True)
class KnownModels:
    """``globs`` are in any case, as prices are. With neither prices nor globs nothing is defined,
    and every model is as good as known."""

    prices: PriceList = field(default_factory=PriceList)
    globs: Sequence[str] = ()
    refuses_others: bool = False

    def has(self, model: str) -> bool:
        """Whether a request for ``model`` is one that the operator expects."""
        if not self.globs and not self.prices.prices:
            return True
        if self.prices.of(model) is not None:
            return True
        folded = model.lower()
        return any(fnmatchcase(folded, glob.lower()) for glob in self.globs)
