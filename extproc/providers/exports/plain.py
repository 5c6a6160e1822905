"""A table of requests from anywhere else, such as a provider's log: CSV or JSON.

Columns: ``day`` (or ``time``), ``model``, ``key``, ``request_id``, ``requests``, ``cost_usd``, and
tokens by class: ``input_tokens`` (without what was read from or written to a cache),
``cached_input_tokens``, ``cache_write_5m_tokens``, ``cache_write_1h_tokens``,
``cache_write_tokens``, ``output_tokens``, ``server_tool_calls``. What is not there is not compared.
"""

from decimal import Decimal

from extproc.core.exports import Export
from extproc.core.ledger_rows import CALLS, CLASSES
from extproc.providers.exports.collect import Collector
from extproc.providers.exports.tables import table
from extproc.providers.exports.values import whole

NAME = "plain"
_COLUMNS = {name: name if name == CALLS else f"{name}_tokens" for name in CLASSES}


def read_plain(data: bytes, file: str) -> Export:
    """All rows of the table."""
    into = Collector(file, NAME)
    classes: set[str] = set()
    tells_cost = tells_requests = False
    for row in table(data, file, into):
        into.look(row.place, row.content())
        found = {name: row.decimal(column) for name, column in _COLUMNS.items()}
        tokens: dict[str, Decimal | int] = {
            name: count for name, count in found.items() if count is not None
        }
        cost = row.decimal("cost_usd")
        requests = row.decimal("requests")
        classes.update(tokens)
        tells_cost |= cost is not None
        tells_requests |= requests is not None
        into.add(
            day=row.day("day", "time", "date"),
            model=row.text("model"),
            key=row.text("key"),
            request_id=row.text("request_id") or None,
            tokens=tokens,
            cost=cost,
            requests=None if requests is None else whole(requests),
        )
    return into.export(classes=classes, tells_cost=tells_cost, tells_requests=tells_requests)
