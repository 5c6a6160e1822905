"""Group commit over real databases: proven or not there, whoever gives up and whatever breaks."""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy import exc as sql_errors

from extproc.core.durability import ExecutionState
from extproc.core.errors import StoreUnavailableError
from extproc.stores import group_commit
from extproc.stores.execution_moves import ExecutionMoves
from extproc.stores.execution_table import insert_all, move_all
from extproc.stores.group_commit import GroupCommit
from extproc.stores.migrate import upgrade
from extproc.stores.sql import Database, make_engine
from tests.support.executions import Book, execution, orphans_in

READY, CANCELED = ExecutionState.READY.value, ExecutionState.CANCELED.value


@pytest.fixture
def book(sql_url: str) -> Iterator[Book]:
    upgrade(sql_url)
    book = Book(sql_url)
    yield book
    book.close()


@pytest.fixture
async def moves(sql_url: str, book: Book) -> AsyncIterator[ExecutionMoves]:
    database = Database(url=sql_url, threads=2, timeout_ms=5000)
    moves = ExecutionMoves(database, linger_seconds=0.01)
    yield moves
    await moves.close(timeout_seconds=10)
    await database.close()


@pytest.fixture
async def commits(sql_url: str, moves: ExecutionMoves) -> AsyncIterator[GroupCommit]:
    commits = GroupCommit(
        url=sql_url, timeout_ms=5000, on_orphan=partial(moves.move, state=ExecutionState.CANCELED)
    )
    yield commits
    await commits.close()


async def settled(book: Book, wanted: dict[str, str]) -> None:
    """Polls until the book says that."""
    async with asyncio.timeout(15):
        while book.states() != wanted:
            await asyncio.sleep(0.02)


async def test_a_row_and_its_event_are_there_when_commit_returns(
    commits: GroupCommit, book: Book
) -> None:
    row = execution(model="\ud83d naïve 模型", request_id="é" * 300)
    await commits.commit(row)
    assert book.states() == {row.reservation_id: READY}
    (event,) = book.outbox()
    assert (event.reservation_id, event.event_type) == (row.reservation_id, "request.admitted")
    assert '"reserved_tokens":29' in event.payload
    assert event.published_at is None


async def test_many_share_transactions_and_each_is_there(commits: GroupCommit, book: Book) -> None:
    rows = [execution() for _ in range(200)]
    await asyncio.gather(*map(commits.commit, rows))
    assert book.states() == {row.reservation_id: READY for row in rows}
    assert len(book.outbox()) == 200
    assert commits.transactions <= 20


async def test_the_server_counts_few_commits_for_many_rows(mariadb_url: str) -> None:
    upgrade(mariadb_url)
    book = Book(mariadb_url)
    commits = GroupCommit(url=mariadb_url, timeout_ms=5000, on_orphan=lambda _: None)
    await commits.commit(execution())
    before = book.counter("Com_commit"), book.counter("Com_insert")
    await asyncio.gather(*(commits.commit(execution()) for _ in range(200)))
    after = book.counter("Com_commit"), book.counter("Com_insert")
    assert len(book.states()) == 201
    # One for the row that came first, and one or two for all that came meanwhile.
    assert after[0] - before[0] <= 20
    assert after[1] - before[1] <= 40
    await commits.close()
    book.close()


async def test_a_row_that_is_refused_keeps_no_other_from_its_commit(
    commits: GroupCommit, book: Book
) -> None:
    await commits.commit(execution("twice"))
    rows = [execution() for _ in range(10)]
    rows.insert(5, execution("twice"))
    results = await asyncio.gather(*map(commits.commit, rows), return_exceptions=True)
    failed = [row for row, result in zip(rows, results, strict=True) if result is not None]
    assert failed == [rows[5]]
    assert isinstance(results[5], StoreUnavailableError)
    assert len(book.states()) == 11
    assert len(book.outbox()) == 11


class Gate:
    """Holds the group commit's thread at its insert, or at its commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.free = threading.Event(), threading.Event()

        def held(connection: Connection, rows: Any) -> None:
            insert_all(connection, rows)
            self.reached.set()
            assert self.free.wait(15)

        monkeypatch.setattr(group_commit, "insert_all", held)

    async def wait(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 15)


async def test_who_leaves_before_its_row_was_taken_leaves_nothing(
    commits: GroupCommit, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    first, second = execution(), execution()
    running = asyncio.create_task(commits.commit(first))
    await gate.wait()
    waiting = asyncio.create_task(commits.commit(second))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.free.set()
    await running
    assert book.states() == {first.reservation_id: READY}


async def test_who_leaves_while_its_row_is_committed_has_it_canceled(
    commits: GroupCommit, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    row = execution()
    leaving = asyncio.create_task(commits.commit(row))
    await gate.wait()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    gate.free.set()
    await settled(book, {row.reservation_id: CANCELED})


async def test_who_leaves_after_the_commit_and_before_it_was_told_has_it_canceled(
    commits: GroupCommit, book: Book
) -> None:
    """The thread is done, the loop has not looked yet."""
    row = execution()
    leaving = asyncio.create_task(commits.commit(row))
    await asyncio.sleep(0)
    deadline = time.monotonic() + 15
    while book.states() != {row.reservation_id: READY}:  # without giving way: nobody can tell it
        assert time.monotonic() < deadline
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await settled(book, {row.reservation_id: CANCELED})


class LostReply:
    """COMMIT is carried out, or not, and its answer is lost; so may be the question after it."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, committed: bool, answers: bool = True
    ) -> None:
        self.left = 1
        real = Connection.commit

        def lost(connection: Connection) -> None:
            if not self.left:
                return real(connection)
            self.left -= 1
            if committed:
                real(connection)
            raise sql_errors.OperationalError("COMMIT", {}, OSError("connection lost"))

        monkeypatch.setattr(Connection, "commit", lost)
        if not answers:

            def away(*_: object) -> set[str]:
                raise sql_errors.OperationalError("SELECT", {}, OSError("away"))

            monkeypatch.setattr(group_commit, "committed_ids", away)


async def test_a_lost_reply_to_a_commit_that_was_made_is_looked_up(
    commits: GroupCommit, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = execution()
    LostReply(monkeypatch, committed=True)
    await commits.commit(row)
    assert book.states() == {row.reservation_id: READY}


async def test_a_lost_reply_to_a_commit_that_was_not_made_is_a_failure(
    commits: GroupCommit, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    LostReply(monkeypatch, committed=False)
    with pytest.raises(StoreUnavailableError):
        await commits.commit(execution())
    assert book.states() == {}


async def test_what_nobody_can_prove_fails_and_is_canceled(
    commits: GroupCommit, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = execution()
    LostReply(monkeypatch, committed=True, answers=False)
    with pytest.raises(StoreUnavailableError):
        await commits.commit(row)
    await settled(book, {row.reservation_id: CANCELED})


async def test_callers_that_leave_at_random_leave_no_row_ready(
    commits: GroupCommit, moves: ExecutionMoves, book: Book
) -> None:
    chance = random.Random(7)
    told: list[str] = []

    async def one(reservation_id: str) -> None:
        await commits.commit(execution(reservation_id))
        told.append(reservation_id)

    tasks = []
    for number in range(400):
        task = asyncio.create_task(one(f"x{number}"))
        asyncio.get_running_loop().call_later(chance.random() * 0.03, task.cancel)
        tasks.append(task)
        if number % 20 == 0:
            await asyncio.sleep(0.002)
    await asyncio.gather(*tasks, return_exceptions=True)
    await commits.close()
    await moves.close(timeout_seconds=10)
    states = book.states()
    assert orphans_in(states, told) == set()
    assert {rid for rid, state in states.items() if state == READY} == set(told)


async def test_conditional_moves_race_and_one_wins(sql_url: str, book: Book) -> None:
    upgrade(sql_url)
    engine = make_engine(sql_url, pool_size=8, timeout_ms=10_000)
    with engine.begin() as connection:
        insert_all(connection, [execution(f"race{number}") for number in range(10)])

    def move(rid: str, to: ExecutionState) -> int:
        with engine.begin() as connection:
            return move_all(connection, [rid], to)

    ends = (ExecutionState.DISPATCHING, ExecutionState.CANCELED)
    for number in range(10):
        rid = f"race{number}"
        wins = await asyncio.gather(
            *(asyncio.to_thread(move, rid, ends[each % 2]) for each in range(8))
        )
        # Sent on once at most, canceled once; never sent on after it was canceled.
        assert wins[0::2].count(1) <= 1
        assert wins[1::2].count(1) == 1
        assert book.states()[rid] == CANCELED
    engine.dispose()


async def test_closing_commits_what_waits(sql_url: str, book: Book) -> None:
    commits = GroupCommit(url=sql_url, timeout_ms=5000, on_orphan=lambda _: None)
    rows = [execution() for _ in range(50)]
    tasks = [asyncio.create_task(commits.commit(row)) for row in rows]
    await asyncio.sleep(0)
    await commits.close()
    await asyncio.gather(*tasks)
    assert len(book.states()) == 50
    with pytest.raises(StoreUnavailableError):
        await commits.commit(execution())
