"""What a request cost, computed again from its row in the ledger and the prices standing there."""

import re

from extproc.core.bills import Priced
from extproc.core.ledger_rows import INPUT, OUTPUT, LedgerRow, usage_of
from extproc.core.prices import PriceClass, Rate, plan_from_text
from extproc.core.pricing import class_micros, cost

# A record's two prices, of input and output, in micro-USD for a million tokens.
_TWO_PRICES = re.compile(r"([0-9]{1,16}) ([0-9]{1,16})", re.ASCII)


def cost_of(row: LedgerRow) -> dict[str, Priced]:
    """By class of price. Raises ValueError where the row has no prices that can be read."""
    two = _TWO_PRICES.fullmatch(row.prices)
    if two is None:
        lines = cost(usage_of(row), plan_from_text(row.prices)).lines
        return {str(line.price_class): Priced(line.quantity, line.micros) for line in lines}
    usage = usage_of(row)
    return {
        name: Priced(tokens or 0, _micros(tokens or 0, price_class, int(price)))
        for name, tokens, price_class, price in (
            (INPUT, usage.input_tokens, PriceClass.INPUT, two[1]),
            (OUTPUT, usage.output_tokens, PriceClass.OUTPUT, two[2]),
        )
    }


def _micros(tokens: int, price_class: PriceClass, price: int) -> int:
    return class_micros(tokens, Rate(price_class=price_class, micros_per_million=price))
