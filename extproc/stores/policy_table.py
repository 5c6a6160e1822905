"""Reads and writes of policies, blocks and overrides.

The time is the database's, for readers and writers alike: a worker whose clock is late sees a
change that has begun, because what is in force when it is read is handed over as begun for ever.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    Connection,
    DateTime,
    RowMapping,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from extproc.core.errors import StoreUnavailableError
from extproc.core.limits import ServiceLimit
from extproc.core.policies import (
    Block,
    Dimension,
    LimitPolicy,
    Mode,
    OnExceed,
    Override,
    PolicySet,
    Scope,
)
from extproc.core.policy_plan import EPOCH, PolicyChange, PolicyFile, has_ended, plan
from extproc.core.views import canonical, rule_from_plain, rule_to_plain
from extproc.stores.limit_table import find_limit
from extproc.stores.sql import Database
from extproc.stores.tables import block as block_table
from extproc.stores.tables import limit_override, limit_policy


class PoliciesChangedError(Exception):
    """Somebody else changed policies after the plan was made; nothing was written."""


class PolicyTable:
    """The SQL side of policies. Every method raises StoreUnavailableError("sql") on failure."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, root: str) -> PolicySet | None:
        """All that concerns ``root``, its service limit too; None when there is no such root.

        A root is known by a row of ``service_limit``, or by a policy of its own that is in force:
        one for every root must not let in whoever calls.
        """
        return await self._database.run(lambda connection: _load(connection, root))

    async def load_again(self, found: PolicySet) -> PolicySet | None:
        """The same with the newest policies, and the service limit as found."""
        return await self._database.run(
            lambda connection: _around(connection, found.root, found.service)
        )

    async def all(self, root: str | None = None) -> PolicySet:
        """What is in force or to come, of ``root`` and of every root; all of it for None."""
        return await self._database.run(lambda connection: _all(connection, root))

    async def plan(self, file: PolicyFile) -> tuple[PolicyChange, ...]:
        """What ``apply`` would do now. Raises PolicyPlanError."""
        return await self._database.run(lambda connection: _plan(connection, file))

    async def apply(self, file: PolicyFile, expected: Sequence[PolicyChange]) -> None:
        """Do what ``plan`` said, in one transaction, or raise PoliciesChangedError."""
        await self._database.run(lambda connection: _apply(connection, file, expected))

    async def block(self, block: Block) -> None:
        """Add a block; it replaces one of the same scope, value and root."""
        await self._database.run(lambda connection: _put_block(connection, block))

    async def unblock(self, scope: Scope, value: str, *, root: str | None = None) -> bool:
        """Remove a block; False when there was none."""
        return await self._database.run(
            lambda connection: _delete_block(connection, scope, value, root)
        )

    async def override(
        self, policy: str, dimension: Dimension, override: Override | None
    ) -> LimitPolicy:
        """Set or (None) end the override of one rule; the policy that it belongs to.

        Raises ValueError when no policy of that name, in force or to come, limits ``dimension``.
        """
        return await self._database.run(
            lambda connection: _put_override(connection, policy, dimension, override)
        )


def _load(connection: Connection, root: str) -> PolicySet | None:
    # One SELECT a table: each sees whole transactions of administrators, which write one table.
    # Whatever changes between two of them takes the reader's lease away.
    return _around(connection, root, find_limit(connection, root))


def _around(connection: Connection, root: str, service: ServiceLimit | None) -> PolicySet | None:
    now = _now(connection)
    policies = _current(connection, now, _of(limit_policy, root))
    is_named = any(policy.root == root and policy.is_in_force(now) for policy in policies)
    if service is None and not is_named:
        return None
    return PolicySet(
        root=root,
        service=service,
        policies=tuple(
            replace(policy, effective_from=EPOCH) if policy.effective_from <= now else policy
            for policy in policies
        ),
        blocks=_blocks(connection, now, _of(block_table, root)),
        overrides=_overrides(connection, now, {policy.name for policy in policies}),
    )


def _all(connection: Connection, root: str | None) -> PolicySet:
    now = _now(connection)
    policies = _current(connection, now, None if root is None else _of(limit_policy, root))
    return PolicySet(
        root=root or "",
        service=None,
        policies=tuple(policies),
        blocks=_blocks(connection, now, None if root is None else _of(block_table, root)),
        overrides=_overrides(connection, now, {policy.name for policy in policies}),
    )


def _plan(connection: Connection, file: PolicyFile) -> tuple[PolicyChange, ...]:
    names = [draft.policy.name for draft in file.drafts]
    is_root = (
        limit_policy.c.root.is_(None) if file.root is None else limit_policy.c.root == file.root
    )
    stored = _policies(connection, or_(is_root, limit_policy.c.name.in_(names)))
    return plan(file, stored, _now(connection))


def _apply(connection: Connection, file: PolicyFile, expected: Sequence[PolicyChange]) -> None:
    changes = _plan(connection, file)
    if len(changes) != len(expected) or not all(map(PolicyChange.is_same_step, changes, expected)):
        raise PoliciesChangedError
    try:
        for change in changes:
            _write(connection, change)
    except IntegrityError as error:  # another took the same version
        raise PoliciesChangedError from error


def _write(connection: Connection, change: PolicyChange) -> None:
    at, columns = _naive(change.at), limit_policy.c
    connection.execute(
        update(limit_policy)
        .where(
            columns.name == change.name,
            or_(columns.effective_to.is_(None), columns.effective_to > at),
        )
        # A version that was to begin later never begins.
        .values(effective_to=case((columns.effective_from > at, columns.effective_from), else_=at))
    )
    if change.after is not None:
        connection.execute(insert(limit_policy).values(_row(change.after)))


def _put_block(connection: Connection, block: Block) -> None:
    _delete_block(connection, block.scope, block.value, block.root)
    connection.execute(
        insert(block_table).values(
            scope=block.scope.value,
            value=block.value,
            root=block.root,
            reason=block.reason,
            until=None if block.until is None else _naive(block.until),
        )
    )


def _delete_block(connection: Connection, scope: Scope, value: str, root: str | None) -> bool:
    columns = block_table.c
    is_root = columns.root.is_(None) if root is None else columns.root == root
    query = delete(block_table).where(columns.scope == scope.value, columns.value == value, is_root)
    return connection.execute(query).rowcount > 0


def _put_override(
    connection: Connection, name: str, dimension: Dimension, override: Override | None
) -> LimitPolicy:
    found = _current(connection, _now(connection), limit_policy.c.name == name)
    with_rule = [p for p in found if any(rule.dimension is dimension for rule in p.rules)]
    if not with_rule:
        raise ValueError(f"no policy {name} limits {dimension}")
    columns = limit_override.c
    connection.execute(
        delete(limit_override).where(columns.policy == name, columns.dimension == dimension.value)
    )
    if override is not None:
        connection.execute(
            insert(limit_override).values(
                policy=name,
                dimension=dimension.value,
                limit=override.limit,
                until=_naive(override.until),
            )
        )
    return with_rule[-1]


def _of(table: Any, root: str) -> Any:
    return or_(table.c.root.is_(None), table.c.root == root)


def _policies(connection: Connection, where: Any) -> list[LimitPolicy]:
    query = select(limit_policy).order_by(limit_policy.c.name, limit_policy.c.version)
    rows = connection.execute(query if where is None else query.where(where)).mappings()
    return [_policy(row) for row in rows]


def _current(connection: Connection, now: datetime, where: Any) -> list[LimitPolicy]:
    end = limit_policy.c.effective_to
    lasts = or_(end.is_(None), end > _naive(now))
    found = _policies(connection, lasts if where is None else lasts & where)
    return [policy for policy in found if not has_ended(policy, now)]


def _blocks(connection: Connection, now: datetime, where: Any) -> tuple[Block, ...]:
    until = block_table.c.until
    query = select(block_table).where(or_(until.is_(None), until > _naive(now)))
    query = query.order_by(block_table.c.id)
    rows = connection.execute(query if where is None else query.where(where)).mappings()
    return tuple(map(_block, rows))


def _overrides(connection: Connection, now: datetime, names: Iterable[str]) -> tuple[Override, ...]:
    query = select(limit_override).where(
        limit_override.c.policy.in_(sorted(names)), limit_override.c.until > _naive(now)
    )
    newest: dict[tuple[str, Dimension], Override] = {}
    for row in connection.execute(query.order_by(limit_override.c.id)).mappings():
        override = _override(row)
        newest[override.policy, override.dimension] = override
    return tuple(newest.values())


@contextmanager
def _checked(table: str, row: RowMapping) -> Iterator[None]:
    """A row that was not written by us may hold anything."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        text = f"{table} holds a wrong row, id {row['id']}: {error}"
        raise StoreUnavailableError("sql", text, transient=False) from error


def _block(row: RowMapping) -> Block:
    with _checked("block", row):
        return Block(
            scope=Scope(row["scope"]),
            value=row["value"],
            reason=row["reason"],
            root=row["root"],
            until=row["until"] and _zoned(row["until"]),
        )


def _override(row: RowMapping) -> Override:
    with _checked("limit_override", row):
        return Override(
            policy=row["policy"],
            dimension=Dimension(row["dimension"]),
            limit=row["limit"],
            until=_zoned(row["until"]),
        )


def _policy(row: RowMapping) -> LimitPolicy:
    with _checked("limit_policy", row):
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
            effective_from=_zoned(row["effective_from"]),
            effective_to=row["effective_to"] and _zoned(row["effective_to"]),
        )


def _row(policy: LimitPolicy) -> dict[str, Any]:
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
        "effective_from": _naive(policy.effective_from),
        "effective_to": None if policy.effective_to is None else _naive(policy.effective_to),
    }


def _now(connection: Connection) -> datetime:
    is_sqlite = connection.dialect.name == "sqlite"
    clock = func.current_timestamp if is_sqlite else func.utc_timestamp
    now: datetime = connection.execute(select(clock(type_=DateTime()))).scalar_one()
    return _zoned(now)


def _naive(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None, microsecond=0)


def _zoned(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC)
