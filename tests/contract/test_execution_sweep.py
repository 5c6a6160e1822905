"""The sweep: what a killed worker left open is ended by what Redis knows, over real stores."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import redis

from extproc.core.durability import ExecutionState
from extproc.core.errors import StoreUnavailableError
from extproc.jobs import execution_sweep
from extproc.jobs.execution_sweep import ExecutionSweep
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.execution_moves import ExecutionMoves
from extproc.stores.execution_rows import RedisRecords, SqlExecutionRows
from extproc.stores.execution_table import insert_all, move_all
from extproc.stores.migrate import upgrade
from extproc.stores.sql import Database
from tests.support.executions import Book, execution


@pytest.fixture
def book(sql_url: str) -> Iterator[Book]:
    upgrade(sql_url)
    book = Book(sql_url)
    yield book
    book.close()


@pytest.fixture
async def database(sql_url: str, book: Book) -> AsyncIterator[Database]:
    database = Database(url=sql_url, timeout_ms=5000)
    yield database
    await database.close()


def sweep_of(database: Database, batcher: RedisBatcher) -> ExecutionSweep:
    return ExecutionSweep(
        SqlExecutionRows(database), RedisRecords(batcher), interval=1, unmoved_seconds=0
    )


# Name, state of the row, record (state and outcome), whether it is overdue, the row's state after.
CASES = (
    ("settled", "DISPATCHING", ("SETTLED", "complete"), False, "DONE"),
    ("released", "READY", ("RELEASED", "not_forwarded"), False, "CANCELED"),
    ("refused", "STREAMING", ("RELEASED", "upstream_refused"), False, "DONE"),
    ("expired", "DISPATCHING", ("EXPIRED", "unreported"), True, "REVIEW"),
    ("reconciling", "STREAMING", ("RECONCILING", "upstream_broken"), False, "REVIEW"),
    ("running", "STREAMING", ("RESERVED", ""), True, "STREAMING"),
    ("young", "READY", None, False, "READY"),
    ("gone", "READY", None, True, "REVIEW"),
    # It has an answer, so it was sent on, whatever the record says.
    ("odd", "STREAMING", ("RELEASED", "not_forwarded"), True, "REVIEW"),
    ("done", "DONE", ("EXPIRED", "unreported"), True, "DONE"),
    ("canceled", "CANCELED", ("SETTLED", "complete"), True, "CANCELED"),
)


async def test_each_is_ended_by_its_record(
    database: Database,
    batcher: RedisBatcher,
    redis_client: redis.Redis,
    book: Book,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execution_sweep, "_PAGE", 3)  # so that it takes several
    for name, state, record, is_overdue, _ in CASES:
        row = execution(name)
        if is_overdue:
            row = replace(row, deadline_at_ms=row.admitted_at_ms - 5000)

        await database.run(partial(insert_all, rows=[row]))
        if state != "READY":
            to = ExecutionState(state)
            await database.run(partial(move_all, ids=[name], to=to))
        if record is not None:
            fields: Any = {"state": record[0], "outcome": record[1]}
            redis_client.hset(keys.reservation("svc", name), mapping=fields)
    sweep = sweep_of(database, batcher)
    wanted = {name: after for name, *_, after in CASES}
    assert await sweep.sweep() == sum(state != after for _, state, *_, after in CASES)
    assert book.states() == wanted
    assert await sweep.sweep() == 0
    assert book.states() == wanted


async def test_without_redis_nothing_is_decided(database: Database, book: Book) -> None:
    row = execution("r")
    row = replace(row, deadline_at_ms=row.admitted_at_ms - 5000)
    await database.run(lambda connection: insert_all(connection, [row]))
    away = RedisBatcher(url="redis://127.0.0.1:1/0", timeout_ms=200)
    with pytest.raises(StoreUnavailableError):
        await sweep_of(database, away).sweep()
    await away.close()
    assert book.states() == {"r": "READY"}


async def test_states_wait_for_a_database_that_is_away(
    database: Database, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    await database.run(lambda connection: insert_all(connection, [execution("r")]))
    moves = ExecutionMoves(database, linger_seconds=0.01)
    real, tries = database.run, []

    async def away(work: object, **_: object) -> None:
        tries.append(work)
        if len(tries) == 1:
            moves.move("r", ExecutionState.DONE)  # comes while the first is being written
            raise StoreUnavailableError("sql", "away", transient=True)
        await real(work)  # type: ignore[arg-type]

    monkeypatch.setattr(database, "run", away)
    moves.move("r", ExecutionState.DISPATCHING)
    assert await moves.close(timeout_seconds=10) == 1  # one try, and nothing is lost meanwhile
    moves.move("r", ExecutionState.STREAMING)  # too late to matter
    assert await moves.close(timeout_seconds=10) == 0
    monkeypatch.undo()
    assert book.states() == {"r": "DONE"}
