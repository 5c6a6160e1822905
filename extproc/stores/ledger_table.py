"""Writes the ledger: rows, hourly sums and dead letters, all or nothing.

Rows are inserted plainly. A batch of which some rows are there already (their writer died between
its commit and its acknowledgement, or another writes the same now) fails as a whole; then it is
looked up which, and the others are inserted. So the hourly sums count exactly the rows that are
new, and no error of the database is swallowed, as it would be by INSERT IGNORE.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, and_, insert, or_, select
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from extproc.core.ledger import KIND_FIELDS, DeadEvent, LedgerEntry, UsageEvent, Written
from extproc.stores.ledger_tables import ledger_dead, ledger_hour, usage_ledger
from extproc.stores.sql import Database

Pair = tuple[LedgerEntry, UsageEvent]
Key = tuple[str, str, str, int]

_KEY = tuple(
    usage_ledger.c[name] for name in ("request_id", "endpoint", "reservation_id", "revision")
)
_SUMS = (
    *("requests", "input_tokens", "output_tokens", *KIND_FIELDS),
    *("reserved_tokens", "reserved_cost_micros", "cost_micros"),
)
_INSERT = insert(usage_ledger)
_TIMES = ("admitted_at_ms", "settled_at_ms")
_NAMES = tuple(one.name for one in fields(LedgerEntry) if one.name not in _TIMES)
_values = attrgetter(*_NAMES)
# Rows that are looked up by one statement.
_LOOKED_UP = 200
_MOST_RAW = 60_000
_MOST_REASON = 512
# How often other writers may have been quicker before a row itself is suspected.
_MOST_TRIES = 5


class LedgerTable:
    """Implements ``core.ledger.Ledger``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(self, entries: Sequence[Pair], dead: Sequence[DeadEvent]) -> Written:
        """See ``core.ledger.Ledger``."""
        return await self._database.run(lambda connection: _write(connection, entries, dead))


def _write(connection: Connection, pairs: Sequence[Pair], dead: Sequence[DeadEvent]) -> Written:
    left = {entry.key: (entry, event) for entry, event in pairs}
    refused: list[DeadEvent] = []
    for _ in range(_MOST_TRIES):
        if _inserts(connection, [entry for entry, _ in left.values()]) is None:
            break
        known = _known(connection, left)
        if not known:
            refused += _isolate(connection, left)
        for key in known:
            del left[key]
    else:
        # Only with many writers of the very same events: not one of them is lost by failing.
        connection.execute(_INSERT, [_row(entry) for entry, _ in left.values()])
    _add_up(connection, [entry for entry, _ in left.values()])
    all_dead = [*dead, *refused]
    _keep_dead(connection, all_dead)
    return Written(
        rows=len(left), duplicates=len(pairs) - len(left) - len(refused), dead=len(all_dead)
    )


def _inserts(connection: Connection, entries: Sequence[LedgerEntry]) -> DBAPIError | None:
    """Inserts all; or nothing, and then why. To be called with nothing else in the transaction."""
    if not entries:
        return None
    try:
        connection.execute(_INSERT, [_row(entry) for entry in entries])
    except (IntegrityError, DataError) as error:
        connection.rollback()
        return error
    return None


def _known(connection: Connection, wanted: Iterable[Key]) -> list[Key]:
    keys = list(wanted)
    found: set[Key] = set()
    for start in range(0, len(keys), _LOOKED_UP):
        some = keys[start : start + _LOOKED_UP]
        same = (
            and_(*(column == value for column, value in zip(_KEY, key, strict=True)))
            for key in some
        )
        found.update((*row,) for row in connection.execute(select(*_KEY).where(or_(*same))))
    return [key for key in keys if key in found]


def _isolate(connection: Connection, left: dict[Key, Pair]) -> list[DeadEvent]:
    """Take out of ``left`` the rows that the table refuses, each tried alone in the end."""
    refused: list[DeadEvent] = []

    def look_at(keys: list[Key]) -> None:
        error = _inserts(connection, [left[key][0] for key in keys])
        connection.rollback()
        if error is None:
            return
        if len(keys) > 1:
            half = len(keys) // 2
            look_at(keys[:half])
            look_at(keys[half:])
        elif not _known(connection, keys):
            refused.append(DeadEvent(left.pop(keys[0])[1], f"refused by SQL: {error.orig}"))

    look_at(list(left))
    return refused


def _row(entry: LedgerEntry) -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(_NAMES, _values(entry), strict=True))
    row["admitted_at"] = _second(entry.admitted_at_ms // 1000)
    row["settled_at"] = _second(entry.settled_at_ms // 1000)
    return row


@lru_cache(maxsize=4096)
def _second(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def _add_up(connection: Connection, entries: Sequence[LedgerEntry]) -> None:
    sums: dict[tuple[Any, ...], dict[str, int]] = {}
    for entry in entries:
        hour = _second(entry.admitted_at_ms // 3_600_000 * 3600)
        group = (hour, entry.root, entry.subject, entry.model, entry.provider)
        total = sums.setdefault(group, dict.fromkeys(_SUMS, 0))
        for name in _SUMS:
            total[name] += getattr(entry, name) or 0
    if not sums:
        return
    names = ("hour", "root", "subject", "model", "provider")
    # In one order for all writers: they wait for each other instead of in a circle.
    rows = [{**dict(zip(names, group, strict=True)), **sums[group]} for group in sorted(sums)]
    statement: Any
    if connection.dialect.name == "sqlite":
        new = sqlite.insert(ledger_hour)
        statement = new.on_conflict_do_update(
            index_elements=names,
            set_={name: ledger_hour.c[name] + new.excluded[name] for name in _SUMS},
        )
    else:
        own = mysql.insert(ledger_hour)
        statement = own.on_duplicate_key_update(
            {name: ledger_hour.c[name] + own.inserted[name] for name in _SUMS}
        )
    connection.execute(statement, rows)


def _keep_dead(connection: Connection, dead: Sequence[DeadEvent]) -> None:
    letters = {row["digest"]: row for row in map(_letter, dead)}
    for some in _parts(list(letters), _LOOKED_UP):
        known = select(ledger_dead.c.digest).where(ledger_dead.c.digest.in_(some))
        for digest in connection.execute(known).scalars():
            del letters[digest]
    if letters:
        connection.execute(insert(ledger_dead), list(letters.values()))


def _letter(one: DeadEvent) -> dict[str, str]:
    raw = json.dumps(dict(one.event.fields))  # ASCII, whatever was in it
    whole = "\x00".join((one.event.root, one.event.event_id, raw))
    return {
        "digest": hashlib.sha256(whole.encode()).hexdigest(),
        "root": one.event.root,
        "event_id": one.event.event_id,
        "raw": raw[:_MOST_RAW],
        "reason": one.reason.encode("utf-8", "replace").decode()[:_MOST_REASON],
    }


def _parts(all_of_them: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(all_of_them), size):
        yield all_of_them[start : start + size]
