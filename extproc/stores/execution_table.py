"""Tables ``execution`` and ``outbox``, and the SQL of both: inserts by many, conditional moves."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    insert,
    select,
    update,
)

from extproc.core.durability import OPEN, ExecutionState, sources
from extproc.core.executions import Execution, OpenExecution
from extproc.stores.tables import metadata

ADMITTED = "request.admitted"
# A payload is of bounded fields; the longest is the client's text.
_MOST_TEXT = 512
_ID = BigInteger().with_variant(Integer, "sqlite")
_UTF8: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (
        ("charset", "utf8mb4"),
        ("collate", "utf8mb4_bin"),
        ("engine", "InnoDB"),
    )
}

execution = Table(
    "execution",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("reservation_id", String(128), nullable=False),
    Column("root", String(128), nullable=False),
    Column("request_id", String(128), nullable=False),
    # core.durability.ExecutionState
    Column("state", String(16), nullable=False),
    Column("wire_format", String(64), nullable=False),
    Column("model", String(256), nullable=False),
    Column("reserved_tokens", BigInteger, nullable=False),
    Column("reserved_cost_micros", BigInteger, nullable=False),
    # UTC; after it an open reservation is the reaper's. A running stream's moves in Redis only.
    Column("deadline_at", DateTime, nullable=False),
    Column("created_at", DateTime, nullable=False),
    Column("updated_at", DateTime, nullable=False),
    UniqueConstraint("reservation_id", name="uk_execution_reservation"),
    Index("ix_execution_state", "state", "updated_at"),
    **_UTF8,
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("reservation_id", String(128), nullable=False),
    Column("event_type", String(64), nullable=False),
    # JSON, see payload_of.
    Column("payload", Text, nullable=False),
    Column("created_at", DateTime, nullable=False),
    # NULL: nobody was told yet.
    Column("published_at", DateTime),
    Index("ix_outbox_published", "published_at", "id"),
    **_UTF8,
)


def payload_of(row: Execution) -> str:
    """What the outbox tells of an admission: every field of ``Execution``, as JSON in ASCII."""
    plain = {
        name: value[:_MOST_TEXT] if isinstance(value, str) else value
        for name, value in asdict(row).items()
    }
    return json.dumps(plain, separators=(",", ":"))


def insert_all(connection: Connection, rows: Sequence[Execution]) -> None:
    """One statement for each table, whatever the number of rows."""
    now = _now()
    executions = [
        {
            "reservation_id": row.reservation_id,
            "root": row.root,
            "request_id": _stored(row.request_id)[:128],
            "state": ExecutionState.READY.value,
            "wire_format": row.wire_format,
            "model": _stored(row.model)[:256],
            "reserved_tokens": row.reserved_tokens,
            "reserved_cost_micros": row.reserved_cost_micros,
            "deadline_at": _moment(row.deadline_at_ms),
            "created_at": _moment(row.admitted_at_ms),
            "updated_at": now,
        }
        for row in rows
    ]
    events = [
        {
            "reservation_id": row.reservation_id,
            "event_type": ADMITTED,
            "payload": payload_of(row),
            "created_at": now,
        }
        for row in rows
    ]
    # The driver joins the rows of such a call into one INSERT ... VALUES (...), (...).
    connection.execute(insert(execution), executions)
    connection.execute(insert(outbox), events)


def committed_ids(connection: Connection, ids: Sequence[str]) -> set[str]:
    """Which of these reservations have a row, waiting for whoever is still writing one: only so a
    row that is not found will not appear later."""
    query = select(execution.c.reservation_id).where(execution.c.reservation_id.in_(ids))
    return set(connection.execute(query.with_for_update()).scalars())


def move_all(connection: Connection, ids: Sequence[str], to: ExecutionState) -> int:
    """Move those that may come to ``to``; how many did. A row that another transaction is just
    writing is waited for."""
    change = (
        update(execution)
        .where(
            execution.c.reservation_id.in_(ids),
            execution.c.state.in_(sorted(sources(to))),
        )
        .values(state=to.value, updated_at=_now())
    )
    return connection.execute(change).rowcount


def state_of(connection: Connection, reservation_id: str) -> ExecutionState | None:
    """The state of one execution; None when there is no row."""
    query = select(execution.c.state).where(execution.c.reservation_id == reservation_id)
    found = connection.execute(query).scalar_one_or_none()
    return None if found is None else ExecutionState(found)


def open_page(
    connection: Connection, *, after: int, most: int, before: datetime
) -> list[OpenExecution]:
    """Open executions that nothing has moved since ``before`` (UTC, without a zone), by id."""
    now = _now()
    query = (
        select(
            execution.c.id,
            execution.c.reservation_id,
            execution.c.root,
            execution.c.state,
            execution.c.deadline_at,
        )
        .where(
            execution.c.state.in_(sorted(OPEN)),
            execution.c.updated_at <= before,
            execution.c.id > after,
        )
        .order_by(execution.c.id)
        .limit(most)
    )
    return [
        OpenExecution(
            number=row.id,
            reservation_id=row.reservation_id,
            root=row.root,
            state=ExecutionState(row.state),
            is_overdue=row.deadline_at < now,
        )
        for row in connection.execute(query)
    ]


def _now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None, microsecond=0)


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds // 1000, UTC).replace(tzinfo=None)


def _stored(text: str) -> str:
    """JSON lets a client's text hold surrogates, which UTF-8 does not."""
    return text.encode("utf-8", "replace").decode()
