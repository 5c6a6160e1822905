"""What tokens cost, as far as cost limits need it: one price for input and one for output.

Whole micro-USD for a million tokens. Versioned price books come with the ledger; until then a price
is a setting.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Micro-USD for a million tokens, for models that match the glob ``model``."""

    model: str
    input_micros: int
    output_micros: int


# For requests that meet no cost limit.
FREE = Price(model="*", input_micros=0, output_micros=0)


@dataclass(frozen=True, slots=True)
class PriceList:
    """Prices in order; the first whose glob matches counts.

    No provider known tells models apart by case, so a glob in another case than the request counts
    where none matches exactly: a slip of the pen must not leave a model without a price.
    """

    prices: tuple[Price, ...] = ()

    def of(self, model: str) -> Price | None:
        """The price of a requested model; None where no glob matches, which is not free."""
        for price in self.prices:
            if fnmatchcase(model, price.model):
                return price
        folded = model.lower()
        for price in self.prices:
            if fnmatchcase(folded, price.model.lower()):
                return price
        return None
