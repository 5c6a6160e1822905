"""Reads and writes of ``service_limit``."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from extproc.core.ids import is_root_id
from extproc.core.limits import ServiceLimit
from extproc.core.policies import BadEffect, BadRow
from extproc.stores.policy_rows import BadRowsError, shown
from extproc.stores.sql import Database
from extproc.stores.tables import service_limit

# The column is an INT.
MAX_RPM = 2**31 - 1

_COLUMNS = (
    service_limit.c.id,
    service_limit.c.service_id,
    service_limit.c.rpm,
    service_limit.c.tpm,
    service_limit.c.status,
)


class LimitTable:
    """The SQL side of limits. Every method raises StoreUnavailableError("sql") on failure."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, service_id: str) -> ServiceLimit | None:
        """The limits of a service, None when there is no such service."""
        return await self._database.run(lambda connection: find_limit(connection, service_id))

    async def all(self) -> list[ServiceLimit]:
        """All services that can be read, sorted by id."""
        return (await self._database.run(all_limits))[0]

    async def bad(self) -> list[BadRow]:
        """The rows that cannot be read."""
        return (await self._database.run(all_limits))[1]

    async def delete(self, service_id: str) -> bool:
        """Remove a service; committed when this returns. False when there was none."""
        query = delete(service_limit).where(service_limit.c.service_id == service_id)
        return await self._database.run(lambda connection: connection.execute(query).rowcount > 0)

    async def put(
        self,
        service_id: str,
        *,
        rpm: int | None = None,
        tpm: int | None = None,
        enabled: bool | None = None,
    ) -> ServiceLimit:
        """Create a service, or change the given columns of it; committed when this returns.

        Raises ValueError when a value is out of range, when a new service lacks ``rpm`` or ``tpm``,
        and for an id that no service can have.
        """
        if not is_root_id(service_id):
            raise ValueError(f"{service_id} cannot be a service: across: begins shared counters")
        if rpm is not None and rpm > MAX_RPM:
            raise ValueError(f"rpm must be at most {MAX_RPM}, got {rpm}")
        ServiceLimit(service_id=service_id, rpm=rpm or 0, tpm=tpm or 0)  # checks the ranges
        given = {"rpm": rpm, "tpm": tpm, "status": None if enabled is None else int(enabled)}
        values = {column: value for column, value in given.items() if value is not None}
        try:
            return await self._database.run(lambda connection: _put(connection, service_id, values))
        except _CreatedInBetweenError:
            # In a new transaction: the failed INSERT left a lock, on which two would deadlock.
            return await self._database.run(lambda connection: _put(connection, service_id, values))


class _CreatedInBetweenError(Exception):
    """Somebody else inserted the service after we did not find it."""


def _limit(row: RowMapping) -> ServiceLimit:
    """Raises ValueError or TypeError for a row that was written by other means than ours."""
    return ServiceLimit(
        service_id=row["service_id"],
        rpm=row["rpm"],
        tpm=row["tpm"],
        enabled=row["status"] == 1,
    )


def find_limit(connection: Connection, service_id: str) -> ServiceLimit | None:
    """The row of a service, None when there is none. Raises BadRowsError for a wrong one: a service
    whose limits are not known is refused."""
    query = select(*_COLUMNS).where(service_limit.c.service_id == service_id)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        return None
    try:
        return _limit(row)
    except (TypeError, ValueError) as error:
        raise BadRowsError(service_id, [_bad(row, error)]) from error


def all_limits(connection: Connection) -> tuple[list[ServiceLimit], list[BadRow]]:
    """All services, sorted by id, and the rows that cannot be read."""
    query = select(*_COLUMNS).order_by(service_limit.c.service_id)
    rows: Sequence[RowMapping] = connection.execute(query).mappings().all()
    found: list[ServiceLimit] = []
    bad: list[BadRow] = []
    for row in rows:
        try:
            found.append(_limit(row))
        except (TypeError, ValueError) as error:
            bad.append(_bad(row, error))
    return found, bad


def _bad(row: RowMapping, error: Exception) -> BadRow:
    return BadRow(
        table=service_limit.name,
        id=row["id"],
        name=shown(row["service_id"]),
        root=shown(row["service_id"]),
        reason=shown(error),
        effect=BadEffect.REFUSES,
    )


def _put(connection: Connection, service_id: str, values: dict[str, Any]) -> ServiceLimit:
    now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    change = (
        update(service_limit)
        .where(service_limit.c.service_id == service_id)
        .values(**values, updated_at=now)
    )
    if connection.execute(change).rowcount == 0:
        if not {"rpm", "tpm"} <= values.keys():
            raise ValueError(f"service {service_id} does not exist: rpm and tpm are needed")
        new = {"service_id": service_id, **values, "created_at": now, "updated_at": now}
        try:
            connection.execute(insert(service_limit).values(**new))
        except IntegrityError as error:
            raise _CreatedInBetweenError from error
    limit = find_limit(connection, service_id)
    assert limit is not None
    return limit
