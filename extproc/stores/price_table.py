"""Reads and writes of the table ``price``. The time is the database's."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, insert, or_, select, update

from extproc.core.price_book import PriceBook, PriceRow
from extproc.core.price_changes import PriceChange, PriceEntry, plan_changes
from extproc.core.prices import PriceClass, Rate
from extproc.stores.policy_rows import database_now, naive
from extproc.stores.sql import Database
from extproc.stores.tables import price

log = logging.getLogger("tokenweir.prices")


@dataclass(frozen=True, slots=True)
class LoadedBook:
    """A book, and the database's time at which it was read (UTC)."""

    book: PriceBook
    at: datetime


class PriceTable:
    """The SQL side of prices. Every method raises StoreUnavailableError("sql") on failure."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> LoadedBook:
        """What counts now or will count. A row that nobody can read is left out, with a word in the
        log: what has no price is refused, never free."""
        return await self._database.run(_load)

    async def history(self) -> PriceBook:
        """Every row there ever was, for old bills."""
        return await self._database.run(lambda connection: PriceBook(_rows(connection)))

    async def plan(self, entries: Sequence[PriceEntry]) -> tuple[PriceChange, ...]:
        """What ``apply`` would do now. Raises PriceChangeError."""
        return await self._database.run(lambda connection: _plan(connection, entries))

    async def apply(self, entries: Sequence[PriceEntry]) -> tuple[PriceChange, ...]:
        """Make the entries true, in one transaction, and say what changed: nothing the second time.
        Raises PriceChangeError."""
        return await self._database.run(lambda connection: _apply(connection, entries), alone=True)


def _load(connection: Connection) -> LoadedBook:
    now = database_now(connection)
    lasts = or_(price.c.effective_to.is_(None), price.c.effective_to > naive(now))
    return LoadedBook(PriceBook(_rows(connection, lasts)), now)


def _plan(connection: Connection, entries: Sequence[PriceEntry]) -> tuple[PriceChange, ...]:
    now = database_now(connection)
    wanted = {(entry.provider, entry.model) for entry in entries}
    # All of the table: a file may hold thousands of entries, and so many conditions are no faster.
    stored = [row for row in _rows(connection) if (row.provider, row.model) in wanted]
    return plan_changes(entries, stored, now)


def _apply(connection: Connection, entries: Sequence[PriceEntry]) -> tuple[PriceChange, ...]:
    changes = _plan(connection, entries)
    for change in changes:
        for row in change.ended:
            connection.execute(
                update(price)
                .where(price.c.id == row.id)
                .values(effective_to=naive(change.end_of(row)))
            )
    added = [_values(change.added) for change in changes if change.added is not None]
    if added:
        connection.execute(insert(price), added)
    return changes


def _rows(connection: Connection, where: Any = None) -> Iterable[PriceRow]:
    query = select(price).order_by(price.c.id)
    found = connection.execute(query if where is None else query.where(where)).mappings()
    rows: list[PriceRow] = []
    for row in found:
        try:
            rows.append(_row(row))
        except (ValueError, TypeError) as error:
            log.error("a price cannot be read", extra={"id": row["id"], "reason": str(error)})
    return rows


def _row(row: Any) -> PriceRow:
    end = row["effective_to"]
    return PriceRow(
        id=row["id"],
        provider=row["provider"],
        model=row["model"],
        rate=Rate(
            service_tier=row["service_tier"],
            above_input_tokens=row["above_input_tokens"],
            price_class=PriceClass(row["price_class"]),
            micros_per_million=row["micros_per_million"],
            permille=row["permille"],
        ),
        currency=row["currency"],
        source=row["source"],
        effective_from=row["effective_from"].replace(tzinfo=UTC),
        effective_to=None if end is None else end.replace(tzinfo=UTC),
    )


def _values(row: PriceRow) -> dict[str, Any]:
    return {
        "provider": row.provider,
        "model": row.model,
        "price_class": row.rate.price_class.value,
        "service_tier": row.rate.service_tier,
        "above_input_tokens": row.rate.above_input_tokens,
        "unit": row.unit,
        "currency": row.currency,
        "micros_per_million": row.rate.micros_per_million,
        "permille": row.rate.permille,
        "source": row.source,
        "effective_from": naive(row.effective_from),
        "effective_to": None if row.effective_to is None else naive(row.effective_to),
    }
