"""What tokens cost, as far as cost limits need it: one price for input and one for output.

Whole micro-USD for a million tokens. Versioned price books come with the ledger; until then a price
is a setting, and a model without one costs nothing here.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Micro-USD for a million tokens, for models that match the glob ``model``."""

    model: str
    input_micros: int
    output_micros: int


_FREE = Price(model="*", input_micros=0, output_micros=0)


@dataclass(frozen=True, slots=True)
class PriceList:
    """Prices in order; the first whose glob matches counts."""

    prices: tuple[Price, ...] = ()

    def of(self, model: str) -> Price:
        """The price of a requested model."""
        for price in self.prices:
            if fnmatchcase(model, price.model):
                return price
        return _FREE
