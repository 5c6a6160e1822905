"""Azure: cost and usage details (CSV of an export, JSON of the API, JSON of a query).

Source: the schema of Cost Management's cost and usage details. Meters have no fixed spelling
("gpt-4o-0806-Inp-glbl Tokens", "5.4 mini cd inp Gl 1M Tokens"): the class is read from known words,
the model is what stands before them. Where no word is known, only the cost is told.
"""

import re
from decimal import Decimal

from extproc.core.exports import Export
from extproc.core.ledger_rows import CACHE_WRITE, CACHED_INPUT, INPUT, OUTPUT
from extproc.providers.exports.collect import Collector
from extproc.providers.exports.tables import Row, table
from extproc.providers.exports.values import EXACT

NAME = "azure"
_CLASSES = (INPUT, CACHED_INPUT, CACHE_WRITE, OUTPUT)
_OURS = ("openai", "foundry model", "foundrymodel")
_WORDS = re.compile(r"[A-Za-z0-9.]+", re.ASCII)
_INPUT_WORDS = {"inp", "input", "in"}
_OUTPUT_WORDS = {"outp", "output", "opt", "out"}
_CACHED_WORDS = {"cached", "cchd", "ccchd", "cd"}
_WRITE_WORDS = {"wr", "write"}
# What may stand between a model and the class: how it was deployed, batch, bands of context.
_OTHER_WORDS = {"batch", "pp", "shortco", "longco", "txt", "text", "std"}
_UNITS = {"1": 1, "1k": 1000, "1m": 1_000_000, "1000": 1000, "1000000": 1_000_000}


def read_azure(data: bytes, file: str) -> Export:
    """Rows of Azure OpenAI and Foundry models; what other services cost is left out."""
    into = Collector(file, NAME)
    left_out = unknown = 0
    for row in table(data, file, into):
        into.look(row.place, row.content())
        if not _is_ours(row):
            left_out += 1
            continue
        meter = row.text("MeterName", "Meter")
        model, token_class = read_meter(meter)
        charge = row.text("ChargeType")
        tokens: dict[str, Decimal] = {}
        if charge not in ("", "Usage"):
            model = f"({charge})"
        elif token_class is not None:
            tokens = _tokens(row, token_class)
        unknown += charge in ("", "Usage") and not tokens
        into.add(
            day=row.day("Date", "UsageDate", "UsageDateTime"),
            model=model,
            key=row.text("ResourceName") or row.text("ResourceId", "InstanceId"),
            tokens=tokens,
            cost=_cost(row),
        )
    if left_out:
        into.warnings.append(f"{left_out} rows of other services are left out")
    if unknown:
        into.warnings.append(f"{unknown} rows have a meter or unit of which no tokens are read")
    return into.export(classes=_CLASSES, tells_cost=True, tells_requests=False)


def read_meter(name: str) -> tuple[str, str | None]:
    """The model and the class of tokens of a meter; None for what is not known."""
    words = _WORDS.findall(name)
    model: list[str] = []
    rest: set[str] = set()
    for word in words:
        low = word.lower()
        if rest or low in _INPUT_WORDS | _OUTPUT_WORDS | _CACHED_WORDS | _WRITE_WORDS:
            rest.add(low)
        elif low not in _OTHER_WORDS:
            model.append(word)
    if not model or not rest:
        return name, None
    is_cached = bool(rest & _CACHED_WORDS)
    token_class = None
    if rest & _WRITE_WORDS:
        token_class = CACHE_WRITE if is_cached else None
    elif rest & _OUTPUT_WORDS:
        token_class = None if is_cached else OUTPUT
    elif is_cached:
        token_class = CACHED_INPUT
    else:
        token_class = INPUT
    return "-".join(model), token_class


def _is_ours(row: Row) -> bool:
    names = ("MeterCategory", "MeterSubCategory", "ServiceName", "ProductName", "Product")
    told = [row.text(name).lower() for name in names]
    return any(word in text for word in _OURS for text in told)


def _cost(row: Row) -> Decimal:
    if row.text("CostInUsd", "CostUSD"):
        return row.place.decimal("CostInUsd", row.text("CostInUsd", "CostUSD"))
    return row.dollars(
        ("CostInBillingCurrency", "Cost", "PreTaxCost"),
        ("BillingCurrency", "BillingCurrencyCode", "Currency"),
    )


def _tokens(row: Row, token_class: str) -> dict[str, Decimal]:
    unit = row.text("UnitOfMeasure").lower().removesuffix("tokens").replace(",", "").strip()
    quantity = row.decimal("Quantity", "UsageQuantity")
    if quantity is None or unit not in _UNITS:
        return {}
    return {token_class: EXACT.multiply(quantity, Decimal(_UNITS[unit]))}
