"""Writes the ledger: rows, hourly sums and dead letters, all or nothing.

Rows are inserted plainly. A batch of which some rows are there already (their writer died between
its commit and its acknowledgement, or another writes the same now) fails as a whole; then it is
looked up which, and the others are inserted. So the hourly sums count exactly the rows that are
new, and no error of the database is swallowed, as it would be by INSERT IGNORE.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence

from sqlalchemy import Connection, and_, insert, or_, select
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from extproc.core.ledger import DeadEvent, LedgerEntry, UsageEvent, Written
from extproc.stores.ledger_rows import add_up, insert_rows
from extproc.stores.ledger_tables import ledger_dead, usage_ledger
from extproc.stores.sql import Database

Pair = tuple[LedgerEntry, UsageEvent]
Key = tuple[str, str, str, int]

_KEY = tuple(
    usage_ledger.c[name] for name in ("request_id", "endpoint", "reservation_id", "revision")
)
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
        insert_rows(connection, [entry for entry, _ in left.values()])
    add_up(connection, [entry for entry, _ in left.values()])
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
        insert_rows(connection, entries)
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
