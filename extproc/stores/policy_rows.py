"""Rows of policies, blocks and overrides as values of the core, and back.

A row that was not written by us may hold anything. So each is read by itself, and columns come as
the driver has them: a date that SQLAlchemy cannot read would fail the whole SELECT. What becomes of
a row that cannot be read:

- of one root: everything of that root is refused until it is mended. What is limited there is not
  known, and one tenant without an answer is better than one without a limit.
- of every root: it is left out and told, for one wrong row must not stop all tenants, and their
  other limits still hold. Of a block only scope and value matter; an end that cannot be read has
  not come.
- an override: the policy's own limit holds.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    DateTime,
    RowMapping,
    String,
    Table,
    func,
    or_,
    select,
    type_coerce,
)
from sqlalchemy.types import NullType

from extproc.core.errors import StoreUnavailableError
from extproc.core.policies import (
    BadEffect,
    BadRow,
    Block,
    Dimension,
    LimitPolicy,
    Mode,
    OnExceed,
    Override,
    Scope,
)
from extproc.core.views import canonical, rule_from_plain, rule_to_plain
from extproc.stores.tables import block, limit_override, limit_policy

_MAX_SHOWN = 128
_WRONG = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
# MariaDB's zero date, and what no calendar here begins with.
_NO_TIME = datetime(1000, 1, 1)
# How SQLite keeps a time; what looks otherwise cannot be compared with now.
_SQLITE_TIME = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*"


class BadRowsError(StoreUnavailableError):
    """Rows of one root cannot be read, so nothing of it can be decided."""

    def __init__(self, root: str, rows: Sequence[BadRow]) -> None:
        text = f"the limits of {root} cannot be read: {'; '.join(map(str, rows))}"
        super().__init__("policies", text, transient=False)
        self.root = root
        self.rows = tuple(rows)


def policies_where(
    connection: Connection, where: ColumnElement[bool], *, now: datetime
) -> tuple[list[LimitPolicy], list[BadRow]]:
    """Versions of policies by name and version, and the rows that are none."""
    columns = limit_policy.c
    found: list[LimitPolicy] = []
    bad: list[BadRow] = []
    for row in _rows(connection, limit_policy, where, columns.name, columns.version):
        try:
            found.append(_policy(row))
        except _WRONG as error:
            begins = _moment_or_none(row["effective_from"])
            if begins is not None and begins <= now:
                begins = None
            refuses = row["root"] is not None and begins is None
            bad.append(
                _bad(
                    limit_policy,
                    row,
                    error,
                    name=row["name"],
                    root=row["root"],
                    effect=BadEffect.REFUSES if refuses else BadEffect.LEFT_OUT,
                    version=row["version"] if type(row["version"]) is int else 0,
                    begins=begins,
                )
            )
    return found, bad


def blocks_where(
    connection: Connection, where: ColumnElement[bool]
) -> tuple[list[Block], list[BadRow]]:
    """Blocks, and the rows that are none, or that say more than can be read."""
    found: list[Block] = []
    bad: list[BadRow] = []
    for row in _rows(connection, block, where, block.c.id):
        name = f"{row['scope']} {row['value']}"
        try:
            found.append(_block(row, reason=row["reason"], until=_moment(row["until"])))
        except _WRONG as error:
            effect = BadEffect.BLOCKS
            try:
                found.append(_block(row, reason="", until=_moment_or_none(row["until"])))
            except _WRONG:
                effect = BadEffect.LEFT_OUT if row["root"] is None else BadEffect.REFUSES
            bad.append(_bad(block, row, error, name=name, root=row["root"], effect=effect))
    return found, bad


def overrides_where(
    connection: Connection, where: ColumnElement[bool]
) -> tuple[list[Override], list[BadRow]]:
    """Overrides, of several for one rule the last, and the rows that are none."""
    newest: dict[tuple[str, Dimension], Override] = {}
    bad: list[BadRow] = []
    for row in _rows(connection, limit_override, where, limit_override.c.id):
        try:
            override = _override(row)
        except _WRONG as error:
            name = f"{row['policy']} {row['dimension']}"
            effect = BadEffect.LEFT_OUT
            bad.append(_bad(limit_override, row, error, name=name, root=None, effect=effect))
        else:
            newest[override.policy, override.dimension] = override
    return list(newest.values()), bad


def policy_row(policy: LimitPolicy) -> dict[str, Any]:
    """A policy as its row."""
    return {
        "name": policy.name,
        "version": policy.version,
        "root": policy.root,
        "scope": policy.scope.value,
        "value": policy.value,
        "model": policy.model,
        "mode": policy.mode.value,
        "on_exceed": policy.on_exceed.value,
        "across_roots": int(policy.across_roots),
        "rules": canonical([rule_to_plain(rule) for rule in policy.rules]),
        "effective_from": naive(policy.effective_from),
        "effective_to": None if policy.effective_to is None else naive(policy.effective_to),
    }


def lasts(connection: Connection, end: Column[Any], now: datetime) -> ColumnElement[bool]:
    """Whether a row has not ended; one whose end cannot be read has not."""
    not_over = [end.is_(None), end > naive(now), end < _NO_TIME]
    if connection.dialect.name == "sqlite":
        not_over.append(type_coerce(end, String).op("NOT GLOB")(_SQLITE_TIME))
    return or_(*not_over)


def database_now(connection: Connection) -> datetime:
    """The database's clock."""
    is_sqlite = connection.dialect.name == "sqlite"
    clock = func.current_timestamp if is_sqlite else func.utc_timestamp
    now: datetime = connection.execute(select(clock(type_=DateTime()))).scalar_one()
    return now.replace(tzinfo=UTC)


def naive(moment: datetime) -> datetime:
    """A moment as columns hold it: UTC, whole seconds."""
    return moment.astimezone(UTC).replace(tzinfo=None, microsecond=0)


def _rows(
    connection: Connection, table: Table, where: ColumnElement[bool], *order: Column[Any]
) -> Iterable[RowMapping]:
    raw = (type_coerce(column, NullType()).label(column.name) for column in table.c)
    return connection.execute(select(*raw).where(where).order_by(*order)).mappings()


def _bad(
    table: Table, row: RowMapping, error: Exception, *, name: object, root: object, **more: Any
) -> BadRow:
    return BadRow(
        table=table.name,
        id=row["id"],
        name=shown(name),
        root=None if root is None else shown(root),
        reason=shown(f"{type(error).__name__}: {error}"),
        **more,
    )


def _policy(row: RowMapping) -> LimitPolicy:
    if row["across_roots"] not in (0, 1):
        raise ValueError("across_roots must be 0 or 1")
    begins = _moment(row["effective_from"])
    if begins is None:
        raise ValueError("effective_from is missing")
    return LimitPolicy(
        name=row["name"],
        version=row["version"],
        scope=Scope(row["scope"]),
        value=row["value"],
        rules=tuple(map(rule_from_plain, json.loads(row["rules"]))),
        root=row["root"],
        model=row["model"],
        mode=Mode(row["mode"]),
        on_exceed=OnExceed(row["on_exceed"]),
        across_roots=row["across_roots"] == 1,
        effective_from=begins,
        effective_to=_moment(row["effective_to"]),
    )


def _block(row: RowMapping, *, reason: str, until: datetime | None) -> Block:
    return Block(
        scope=Scope(row["scope"]), value=row["value"], reason=reason, root=row["root"], until=until
    )


def _override(row: RowMapping) -> Override:
    until = _moment(row["until"])
    if until is None:
        raise ValueError("until is missing")
    return Override(
        policy=row["policy"],
        dimension=Dimension(row["dimension"]),
        limit=row["limit"],
        until=until,
    )


def _moment(value: object) -> datetime | None:
    """A column's time; SQLite gives it as text. Raises ValueError or TypeError."""
    if value is None:
        return None
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if not isinstance(value, datetime) or value.tzinfo is not None:
        raise TypeError(f"not a time in UTC: {value!r}")
    return value.replace(tzinfo=UTC, microsecond=0)


def _moment_or_none(value: object) -> datetime | None:
    try:
        return _moment(value)
    except (ValueError, TypeError):
        return None


def shown(value: object) -> str:
    """Whatever a column holds, as it may be printed."""
    text = str(value)[:_MAX_SHOWN]
    return "".join(character if character.isprintable() else "?" for character in text)
