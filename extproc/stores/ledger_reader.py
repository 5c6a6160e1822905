"""Reads rows of the ledger for bills and comparisons, never all of them at once."""

from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Engine, Row, select
from sqlalchemy.exc import SQLAlchemyError

from extproc.core.ledger_rows import LedgerRow, row_of
from extproc.stores.ledger_tables import usage_ledger
from extproc.stores.sql import unavailable

_AT_ONCE = 1000


def ledger_rows(
    engine: Engine,
    *,
    start: datetime,
    end: datetime,
    root: str | None = None,
    provider: str | None = None,
    shown_url: str = "",
) -> Iterator[LedgerRow]:
    """What was admitted in [start, end), ordered by admission, reservation and revision. Blocks.

    Raises StoreUnavailableError; ``shown_url`` is where its text says that tables are missing.
    """
    table = usage_ledger.c
    query = select(usage_ledger).where(
        table.admitted_at >= _plain(start), table.admitted_at <= _plain(end)
    )
    if root is not None:
        query = query.where(table.root == root)
    if provider is not None:
        query = query.where(table.provider == provider)
    query = query.order_by(table.admitted_at, table.reservation_id, table.revision)
    try:
        with engine.connect() as connection:
            streamed = connection.execution_options(yield_per=_AT_ONCE)
            for row in streamed.execute(query):
                yield row_of(_entry(row))
    except SQLAlchemyError as error:
        raise unavailable(error, shown_url=shown_url) from error


def _plain(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None)


def _entry(row: Row[Any]) -> Any:
    values = dict(row._mapping)
    for name in ("admitted_at", "settled_at"):
        moment = values.pop(name).replace(tzinfo=UTC)
        values[f"{name}_ms"] = round(moment.timestamp()) * 1000
    return SimpleNamespace(**values)
