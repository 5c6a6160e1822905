"""Group commit: many requests' rows in one transaction, each proven before its request goes on.

One thread, one connection. While a transaction runs, rows that come are collected; the next one
takes them all, as one INSERT a table. So the database makes one fsync for many requests, and a
single request waits for no timer.

What may cross, and how it ends:

- A caller gives up before its row was taken: the row leaves the queue, nothing is written.
- It gives up while its row is in a running transaction, or after the commit and before it was told:
  whoever comes second sees that under one lock, and the row is canceled (``on_orphan``).
- A transaction fails before COMMIT was sent: nothing of it can ever appear. All its callers fail.
- COMMIT was sent and no answer came: a locking read, which waits for a transaction that still
  holds the rows, says which are there. Those go on. All others fail; should that read fail too,
  their rows are canceled as soon as the database can be asked, again by a statement that waits.
- One row that the database refuses: all of its batch are tried again, each alone.
"""

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto

from sqlalchemy import exc as sql_errors

from extproc.core.errors import StoreUnavailableError
from extproc.core.executions import Execution
from extproc.stores.execution_table import committed_ids, insert_all
from extproc.stores.sql import existing_url, make_engine, shown_url, unavailable

log = logging.getLogger("tokenweir.durability")

MOST_ROWS = 500
_MOST_WAITING = 20_000
# Errors that one row of many may cause.
_OF_ONE_ROW = (sql_errors.IntegrityError, sql_errors.DataError)


class _Stage(Enum):
    WAITING = auto()  # in the queue
    RUNNING = auto()  # in a transaction
    PROVEN = auto()
    FAILED = auto()


@dataclass(slots=True, eq=False)
class _Entry:
    row: Execution
    told: "asyncio.Future[None]"
    stage: _Stage = _Stage.WAITING
    is_abandoned: bool = False  # the caller gave up
    reason: str = ""


class GroupCommit:
    """Implements ``core.executions.Committer``. To be made and used in one event loop.

    ``timeout_ms`` bounds one call of ``commit``, and each wait of the thread on the database.
    ``on_orphan`` is called in the loop with the id of a row whose request is not sent on, or which
    may appear although nobody knows; it has to cancel it. ``most_rows`` of one transaction.
    """

    def __init__(
        self,
        *,
        url: str,
        timeout_ms: int,
        on_orphan: Callable[[str], None],
        recycle_seconds: int = 1800,
        most_rows: int = MOST_ROWS,
    ) -> None:
        self._engine = make_engine(
            existing_url(url), timeout_ms=timeout_ms, recycle_seconds=recycle_seconds
        )
        self._shown_url = shown_url(url)
        self._seconds = timeout_ms / 1000
        self._on_orphan = on_orphan
        self._most_rows = most_rows
        # Of everything below, stages and marks of entries included.
        self._lock = threading.Lock()
        self._some = threading.Condition(self._lock)
        self._queue: OrderedDict[int, _Entry] = OrderedDict()
        self._is_closed = False
        self.transactions = 0
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="group-commit", daemon=True)
        self._thread.start()

    async def commit(self, execution: Execution) -> None:
        """As the port says. Raises StoreUnavailableError("sql")."""
        entry = _Entry(execution, self._loop.create_future())
        with self._lock:
            if self._is_closed or len(self._queue) >= _MOST_WAITING:
                raise StoreUnavailableError("sql", "no room for another row", transient=True)
            self._queue[id(entry)] = entry
            self._some.notify()
        try:
            async with asyncio.timeout(self._seconds):
                await entry.told
        except BaseException as error:
            self._give_up(entry)
            if isinstance(error, TimeoutError):
                raise StoreUnavailableError(
                    "sql", f"not committed within {self._seconds:g} s", transient=True
                ) from error
            raise

    def _give_up(self, entry: _Entry) -> None:
        with self._lock:
            entry.is_abandoned = True
            self._queue.pop(id(entry), None)
            # Told or not: it was committed, and the request does not go on.
            is_orphan = entry.stage is _Stage.PROVEN
        if is_orphan:
            self._on_orphan(entry.row.reservation_id)

    async def close(self) -> None:
        """Commit what waits, within the time-outs, and end the thread."""
        with self._lock:
            self._is_closed = True
            self._some.notify()
        await asyncio.to_thread(self._thread.join)
        self._engine.dispose()

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            try:
                self._commit_batch(batch)
            except Exception as error:  # a fault of ours must not leave callers to their clocks
                log.exception("group commit failed")
                self._end(batch, set(), f"{type(error).__name__}: {error}", is_unknown=True)

    def _next(self) -> list[_Entry] | None:
        with self._lock:
            while not self._queue and not self._is_closed:
                self._some.wait()
            if not self._queue:
                return None
            batch: list[_Entry] = []
            while self._queue and len(batch) < self._most_rows:
                entry = self._queue.popitem(last=False)[1]
                entry.stage = _Stage.RUNNING
                batch.append(entry)
            return batch

    def _commit_batch(self, batch: list[_Entry]) -> None:
        try:
            self._transaction([entry.row for entry in batch])
        except StoreUnavailableError as error:
            if len(batch) > 1 and isinstance(error.__cause__, _OF_ONE_ROW):
                for entry in batch:
                    self._commit_batch([entry])
                return
            proven = self._proven(batch) if error.maybe_applied else set()
            reason = str(error).removeprefix("sql: ")
            self._end(batch, proven or set(), reason, is_unknown=proven is None)
            return
        self._end(batch, {entry.row.reservation_id for entry in batch}, "")

    def _transaction(self, rows: list[Execution]) -> None:
        """Raises StoreUnavailableError; ``maybe_applied`` if and only if COMMIT was sent."""
        is_committing = False
        try:
            with self._engine.connect() as connection:
                insert_all(connection, rows)
                is_committing = True
                self.transactions += 1
                try:
                    connection.commit()
                except BaseException:
                    # Closed, it cannot be committed by the next user of the connection.
                    connection.invalidate()
                    raise
        except sql_errors.SQLAlchemyError as error:
            failure = unavailable(error, shown_url=self._shown_url)
            failure.maybe_applied = is_committing
            raise failure from error

    def _proven(self, batch: list[_Entry]) -> set[str] | None:
        """Which rows are there for certain, after a COMMIT without an answer; None: unknown. All
        others are not there, and will not be."""
        ids = [entry.row.reservation_id for entry in batch]
        try:
            with self._engine.connect() as connection:
                found = committed_ids(connection, ids)
                connection.rollback()
                return found
        except sql_errors.SQLAlchemyError as error:
            log.error("commit unknown", extra={"rows": len(ids), "reason": str(error)[:300]})
            return None

    def _end(
        self, batch: list[_Entry], proven: set[str], reason: str, *, is_unknown: bool = False
    ) -> None:
        """Decide every entry that is not decided yet; ``is_unknown``: what is not proven may be
        there all the same."""
        decided: list[_Entry] = []
        orphans: list[str] = []
        with self._lock:
            for entry in batch:
                if entry.stage is not _Stage.RUNNING:
                    continue
                decided.append(entry)
                is_proven = entry.row.reservation_id in proven
                entry.stage = _Stage.PROVEN if is_proven else _Stage.FAILED
                entry.reason = reason
                if is_unknown if not is_proven else entry.is_abandoned:
                    orphans.append(entry.row.reservation_id)
        with suppress(RuntimeError):  # the loop has ended: the sweep finds what is left
            self._loop.call_soon_threadsafe(self._tell, decided, orphans)

    def _tell(self, entries: list[_Entry], orphans: list[str]) -> None:
        for entry in entries:
            if entry.told.done():
                continue
            if entry.stage is _Stage.PROVEN:
                entry.told.set_result(None)
            else:
                entry.told.set_exception(StoreUnavailableError("sql", entry.reason, transient=True))
        for reservation_id in orphans:
            self._on_orphan(reservation_id)
