"""Rows of the ledger and its hourly sums as SQL takes them fastest.

The driver gets plain tuples and makes one INSERT of many rows: with SQLAlchemy's own handling of
parameters a row costs several times as much. The driver
cuts what it sends at about a megabyte, which is less than any server's ``max_allowed_packet``.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection

from extproc.core.ledger import KIND_FIELDS, LedgerEntry
from extproc.stores.ledger_tables import ledger_hour, usage_ledger

# Columns in the order of the entry's fields.
_COLUMNS = tuple(name.removesuffix("_ms") for name in LedgerEntry._fields)
_TIMES = tuple(at for at, name in enumerate(LedgerEntry._fields) if name.endswith("_at_ms"))
_FIRST_KIND = _COLUMNS.index(KIND_FIELDS[0])
_KINDS = slice(_FIRST_KIND, _FIRST_KIND + len(KIND_FIELDS))
_GROUP = ("hour", "root", "subject", "model", "provider")
_AMOUNTS = (
    *("requests", "input_tokens", "output_tokens"),
    *("reserved_tokens", "reserved_cost_micros", "cost_micros"),
)
_SUMS = (*_AMOUNTS, *KIND_FIELDS)
_NO_KINDS = (None,) * len(KIND_FIELDS)


def insert_rows(connection: Connection, entries: Sequence[LedgerEntry]) -> None:
    """Insert all entries, of which there is at least one. Raises what SQLAlchemy raises."""
    columns: list[Sequence[Any]] = list(zip(*entries, strict=True))
    as_text = _second_of(connection.dialect.name)
    for at in _TIMES:
        columns[at] = [as_text(ms // 1000) for ms in columns[at]]
    # A kind of which the whole batch has nothing is NULL by itself.
    kept = [
        at
        for at, name in enumerate(_COLUMNS)
        if name not in KIND_FIELDS or columns[at].count(None) < len(entries)
    ]
    names = tuple(_COLUMNS[at] for at in kept)
    statement = _insert_text(connection.dialect.name, usage_ledger.name, names)
    connection.exec_driver_sql(statement, list(zip(*(columns[at] for at in kept), strict=True)))


def add_up(connection: Connection, entries: Sequence[LedgerEntry]) -> None:
    """Add the entries to the sums of their hours."""
    if not entries:
        return
    as_text = _second_of(connection.dialect.name)
    sums: dict[tuple[str, ...], tuple[list[int], list[int]]] = {}
    for entry in entries:
        hour = as_text(entry.admitted_at_ms // 3_600_000 * 3600)
        group = (hour, entry.root, entry.subject, entry.model, entry.provider)
        found = sums.get(group)
        if found is None:
            found = sums[group] = ([0] * len(_AMOUNTS), [0] * len(KIND_FIELDS))
        amounts, by_kind = found
        amounts[0] += entry.requests
        amounts[1] += entry.input_tokens
        amounts[2] += entry.output_tokens
        amounts[3] += entry.reserved_tokens
        amounts[4] += entry.reserved_cost_micros
        amounts[5] += entry.cost_micros
        kinds = entry[_KINDS]
        if kinds != _NO_KINDS:
            for at, number in enumerate(kinds):
                if number is not None:
                    by_kind[at] += number
    # In one order for all writers: they wait for each other instead of in a circle.
    rows = [(*group, *sums[group][0], *sums[group][1]) for group in sorted(sums)]
    connection.exec_driver_sql(_add_text(connection.dialect.name), rows)


def _second_of(dialect_name: str) -> Callable[[int], str]:
    return _sqlite_second if dialect_name == "sqlite" else _second


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


@lru_cache(maxsize=4096)
def _sqlite_second(seconds: int) -> str:
    """As SQLAlchemy writes times for SQLite, which compares them as text."""
    return f"{_second(seconds)}.000000"


@lru_cache(maxsize=256)
def _insert_text(dialect_name: str, table: str, names: tuple[str, ...]) -> str:
    mark = "?" if dialect_name == "sqlite" else "%s"
    marks = ", ".join([mark] * len(names))
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})"  # noqa: S608  # our own names


@lru_cache(maxsize=4)
def _add_text(dialect_name: str) -> str:
    new = _insert_text(dialect_name, ledger_hour.name, (*_GROUP, *_SUMS))
    if dialect_name == "sqlite":
        changes = ", ".join(f"{name} = {name} + excluded.{name}" for name in _SUMS)
        return f"{new} ON CONFLICT ({', '.join(_GROUP)}) DO UPDATE SET {changes}"
    # MariaDB knows no other word for the new row; the driver makes one statement of many rows here.
    changes = ", ".join(f"{name} = {name} + VALUES({name})" for name in _SUMS)
    return f"{new} ON DUPLICATE KEY UPDATE {changes}"
