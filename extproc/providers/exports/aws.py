"""AWS: Cost and Usage Report, classic (``lineItem/...``) and 2.0 (``line_item_...``), CSV or JSON.

Source: the user guides of the report and of Amazon Bedrock, "Understanding your Amazon Bedrock Cost
and Usage Report data": a usage type is region, model and class, as
``USE1-Claude4.5Sonnet-cache-read-input-token-count``. Amounts are in ``pricing/unit``.
"""

import re
from decimal import Decimal

from extproc.core.exports import Export
from extproc.core.ledger_rows import CACHE_WRITE, CACHED_INPUT, INPUT, OUTPUT
from extproc.providers.exports.collect import Collector
from extproc.providers.exports.tables import Row, table
from extproc.providers.exports.values import EXACT

NAME = "aws"
_CLASSES = (INPUT, CACHED_INPUT, CACHE_WRITE, OUTPUT)
# The region is left out where it is us-east-1, in some products.
_USAGE_TYPE = re.compile(
    r"(?:[A-Z]{2,4}\d{0,2}-)?(?P<model>.+?)-(?:mantle-)?"
    r"(?P<what>cache-read-input|cache-write-input|input|output)-token",
    re.ASCII,
)
_WHAT = {
    "input": INPUT,
    "output": OUTPUT,
    "cache-read-input": CACHED_INPUT,
    "cache-write-input": CACHE_WRITE,
}
_UNITS = {
    "tokens": 1,
    "token": 1,
    "1k tokens": 1000,
    "1ktokens": 1000,
    "1m tokens": 1_000_000,
    "1mtokens": 1_000_000,
    "million tokens": 1_000_000,
}
_USAGE = ("", "Usage", "DiscountedUsage", "SavingsPlanCoveredUsage")


def read_aws(data: bytes, file: str) -> Export:
    """Rows of Amazon Bedrock; what other services cost is left out. Taxes, credits and refunds are
    groups of their own, such as ``(Tax)``."""
    into = Collector(file, NAME)
    left_out = unknown = 0
    for row in table(data, file, into):
        into.look(row.place, row.content())
        usage_type = row.text("lineItem/UsageType", "line_item_usage_type", "UsageType")
        read = _USAGE_TYPE.match(usage_type)
        if not _is_ours(row, is_tokens=read is not None):
            left_out += 1
            continue
        kind = row.text("lineItem/LineItemType", "LineItemType")
        model = read["model"] if read is not None else usage_type
        tokens: dict[str, Decimal] = {}
        if kind not in _USAGE:
            model = f"({kind})"
        elif read is not None:
            tokens = _tokens(row, _WHAT[read["what"]])
        unknown += kind in _USAGE and not tokens
        into.add(
            day=row.day("lineItem/UsageStartDate", "UsageStartDate"),
            model=model,
            key=row.text("lineItem/IamPrincipal", "lineItem/ResourceId", "lineItem/UsageAccountId"),
            tokens=tokens,
            cost=row.dollars(
                ("lineItem/UnblendedCost", "UnblendedCost"),
                ("lineItem/CurrencyCode", "CurrencyCode"),
            ),
        )
    if left_out:
        into.warnings.append(f"{left_out} rows of other services are left out")
    if unknown:
        into.warnings.append(
            f"{unknown} rows have a usage type or unit of which no tokens are read"
        )
    return into.export(classes=_CLASSES, tells_cost=True, tells_requests=False)


def _is_ours(row: Row, *, is_tokens: bool) -> bool:
    names = ("lineItem/ProductCode", "ProductCode", "product/ProductName", "product/servicename")
    # A model that is sold through the marketplace has a product code that says nothing.
    return is_tokens or any("bedrock" in row.text(name).lower() for name in names)


def _tokens(row: Row, token_class: str) -> dict[str, Decimal]:
    unit = row.text("pricing/unit", "lineItem/UsageUnit", "Unit").lower()
    amount = row.decimal("lineItem/UsageAmount", "UsageAmount")
    if amount is None or unit not in _UNITS:
        return {}
    return {token_class: EXACT.multiply(amount, Decimal(_UNITS[unit]))}
