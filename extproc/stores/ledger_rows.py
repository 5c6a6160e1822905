"""Rows of the ledger and its hourly sums as SQL takes them fastest: one INSERT of many rows.

For MySQL and MariaDB its text is written here, by columns. The driver's own way escapes every value
of every row, nearly 40 % of the writer's CPU; here it escapes each that differs once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
# Of one statement: less than any server's ``max_allowed_packet``.
_MOST_BYTES = 1_000_000
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
    _insert(
        connection,
        usage_ledger.name,
        [_COLUMNS[at] for at in kept],
        [columns[at] for at in kept],
    )


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
        kinds: Any = entry[_KINDS]
        if kinds != _NO_KINDS:
            for at, number in enumerate(kinds):
                if number is not None:
                    by_kind[at] += number
    # In one order for all writers: they wait for each other instead of in a circle.
    rows = [(*group, *sums[group][0], *sums[group][1]) for group in sorted(sums)]
    if connection.dialect.name == "sqlite":
        changes = ", ".join(f"{name} = {name} + excluded.{name}" for name in _SUMS)
        adds = f" ON CONFLICT ({', '.join(_GROUP)}) DO UPDATE SET {changes}"
    else:
        # MariaDB knows no other word for the new row.
        changes = ", ".join(f"{name} = {name} + VALUES({name})" for name in _SUMS)
        adds = f" ON DUPLICATE KEY UPDATE {changes}"
    names, columns = (*_GROUP, *_SUMS), list(zip(*rows, strict=True))
    _insert(connection, ledger_hour.name, names, columns, adds)


def _insert(
    connection: Connection,
    table: str,
    names: Sequence[str],
    columns: Sequence[Sequence[Any]],
    ending: str = "",
) -> None:
    """``columns`` hold text, whole numbers and None; ``names`` and ``ending`` are our own words."""
    start = f"INSERT INTO {table} ({', '.join(names)}) VALUES "  # noqa: S608
    if connection.dialect.name == "sqlite":
        marks = ", ".join("?" * len(names))
        connection.exec_driver_sql(f"{start}({marks}){ending}", list(zip(*columns, strict=True)))
        return
    driver: Any = connection.connection.driver_connection
    texts = []
    for column in columns:
        escaped = {value: driver.escape(value) for value in set(column)}
        texts.append([escaped[value] for value in column])
    for some in _parts(f"({','.join(row)})" for row in zip(*texts, strict=True)):
        connection.exec_driver_sql(
            f"{start}{','.join(some)}{ending}", execution_options={"no_parameters": True}
        )


def _parts(rows: Iterable[str]) -> Iterator[list[str]]:
    """In their order, each part of about a megabyte."""
    some: list[str] = []
    size = 0
    for row in rows:
        length = len(row) if row.isascii() else len(row.encode())
        if some and size + length > _MOST_BYTES:
            yield some
            some, size = [], 0
        some.append(row)
        size += length + 1
    yield some


def _second_of(dialect_name: str) -> Callable[[int], str]:
    return _sqlite_second if dialect_name == "sqlite" else _second


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


@lru_cache(maxsize=4096)
def _sqlite_second(seconds: int) -> str:
    """As SQLAlchemy writes times for SQLite, which compares them as text."""
    return f"{_second(seconds)}.000000"
