"""Reads and writes of policies, blocks and overrides.

The time is the database's, for readers and writers alike: a worker whose clock is late sees a
change that has begun, because what is in force when it is read is handed over as begun for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.exc import IntegrityError

from extproc.core.ids import is_valid_id
from extproc.core.limits import ServiceLimit
from extproc.core.policies import (
    BadEffect,
    BadRow,
    Block,
    Dimension,
    LimitPolicy,
    Override,
    PolicySet,
    Scope,
)
from extproc.core.policy_plan import EPOCH, PolicyChange, PolicyFile, has_ended, plan
from extproc.core.policy_room import Crowd, check_room, crowds
from extproc.stores.limit_table import all_limits, find_limit
from extproc.stores.policy_rows import (
    BadRowsError,
    blocks_where,
    database_now,
    lasts,
    naive,
    overrides_where,
    policies_where,
    policy_row,
)
from extproc.stores.sql import Database
from extproc.stores.tables import block as block_table
from extproc.stores.tables import limit_override, limit_policy, service_limit


class PoliciesChangedError(Exception):
    """Somebody else changed policies after the plan was made; nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCheck:
    """What is wrong with what is stored: rows that cannot be read, places without room."""

    bad: tuple[BadRow, ...]
    crowds: tuple[Crowd, ...]


class PolicyTable:
    """The SQL side of policies. Every method raises StoreUnavailableError("sql") on failure."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, root: str) -> PolicySet | None:
        """All that concerns ``root``, its service limit too; None when there is no such root.

        A root is known by a row of ``service_limit``, or by a policy of its own that is in force:
        one for every root must not let in whoever calls. Raises BadRowsError when a row of the root
        cannot be read, as ``load_again`` does.
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

    async def roots(self) -> list[str]:
        """Every root that has, or had, limits of its own; whether they can be read or not."""
        return await self._database.run(_roots)

    async def check(self) -> PolicyCheck:
        """Whatever is wrong, at all roots."""
        return await self._database.run(_check)

    async def plan(self, file: PolicyFile) -> tuple[PolicyChange, ...]:
        """What ``apply`` would do now. Raises PolicyPlanError."""
        return await self._database.run(lambda connection: _plan(connection, file))

    async def apply(self, file: PolicyFile, expected: Sequence[PolicyChange]) -> None:
        """Do what ``plan`` said, in one transaction, or raise PoliciesChangedError.

        Of several changes at once, each is checked after the one before is written. So
        PolicyPlanError may come here too.
        """
        await self._database.run(lambda connection: _apply(connection, file, expected), alone=True)

    async def block(self, block: Block) -> None:
        """Add a block; it replaces one of the same scope, value and root."""
        await self._database.run(lambda connection: _put_block(connection, block), alone=True)

    async def unblock(self, scope: Scope, value: str, *, root: str | None = None) -> bool:
        """Remove a block; False when there was none."""
        return await self._database.run(
            lambda connection: _delete_block(connection, scope, value, root), alone=True
        )

    async def override(
        self, policy: str, dimension: Dimension, override: Override | None
    ) -> tuple[LimitPolicy, bool]:
        """Set or (None) end the override of one rule: the policy that it belongs to, and whether
        there was an override before.

        Raises ValueError when no policy of that name, in force or to come, limits ``dimension``.
        """
        return await self._database.run(
            lambda connection: _put_override(connection, policy, dimension, override), alone=True
        )


def _load(connection: Connection, root: str) -> PolicySet | None:
    # One SELECT a table: each sees whole transactions of administrators, which write one table.
    # Whatever changes between two of them takes the reader's lease away.
    return _around(connection, root, find_limit(connection, root))


def _around(connection: Connection, root: str, service: ServiceLimit | None) -> PolicySet | None:
    now = database_now(connection)
    found = _concerning(connection, now, root, service=service)
    if any(row.effect is BadEffect.REFUSES for row in found.bad):
        raise BadRowsError(root, [row for row in found.bad if row.effect is BadEffect.REFUSES])
    is_named = any(policy.root == root and policy.is_in_force(now) for policy in found.policies)
    if service is None and not is_named:
        return None
    return replace(
        found,
        policies=tuple(
            replace(policy, effective_from=EPOCH) if policy.effective_from <= now else policy
            for policy in found.policies
        ),
    )


def _all(connection: Connection, root: str | None) -> PolicySet:
    return _concerning(connection, database_now(connection), root)


def _concerning(
    connection: Connection, now: datetime, root: str | None, *, service: ServiceLimit | None = None
) -> PolicySet:
    """What is in force or to come of ``root`` and of every root; all of it for None."""
    policies, bad = _current(connection, now, _of(limit_policy, root))
    blocks, more = blocks_where(
        connection, and_(lasts(connection, block_table.c.until, now), _of(block_table, root))
    )
    bad += more
    # Of whom an override is, says its policy's name.
    names = {policy.name for policy in policies} | {row.name for row in bad}
    whose = true() if root is None else limit_override.c.policy.in_(sorted(names))
    overrides, more = overrides_where(
        connection, and_(lasts(connection, limit_override.c.until, now), whose)
    )
    return PolicySet(
        root=root or "",
        service=service,
        policies=tuple(policies),
        blocks=tuple(blocks),
        overrides=tuple(each for each in overrides if each.policy in names),
        bad=(*bad, *more),
    )


def _roots(connection: Connection) -> list[str]:
    columns = (service_limit.c.service_id, limit_policy.c.root)
    found = {
        root
        for column in columns
        for root in connection.execute(select(column).distinct()).scalars()
        if isinstance(root, str) and is_valid_id(root)
    }
    return sorted(found)


def _check(connection: Connection) -> PolicyCheck:
    now = database_now(connection)
    found = _concerning(connection, now, None)
    _, bad = all_limits(connection)
    return PolicyCheck(bad=(*bad, *found.bad), crowds=tuple(crowds(found.policies, now)))


def _plan(connection: Connection, file: PolicyFile) -> tuple[PolicyChange, ...]:
    now, columns = database_now(connection), limit_policy.c
    is_root = columns.root.is_(None) if file.root is None else columns.root == file.root
    is_meant = or_(is_root, columns.name.in_([draft.policy.name for draft in file.drafts]))
    stored, _ = policies_where(connection, is_meant, now=now)
    _, bad = _current(connection, now, is_meant)
    # Also of versions that cannot be read and have ended: a number is given once.
    highest = select(columns.name, func.max(columns.version)).where(is_meant)
    versions = {
        name: version
        for name, version in connection.execute(highest.group_by(columns.name))
        if isinstance(version, int)
    }
    changes = plan(file, stored, now, bad=bad, versions=versions)
    in_force, _ = _current(connection, now, _of(limit_policy, file.root))
    check_room(in_force, changes, now)
    return changes


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
    at, columns = naive(change.at), limit_policy.c
    if change.bad is not None:
        row = update(limit_policy).where(columns.id == change.bad.id)
        connection.execute(row.values(effective_to=at))
        return
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
        connection.execute(insert(limit_policy).values(policy_row(change.after)))


def _put_block(connection: Connection, block: Block) -> None:
    _delete_block(connection, block.scope, block.value, block.root)
    connection.execute(
        insert(block_table).values(
            scope=block.scope.value,
            value=block.value,
            root=block.root,
            reason=block.reason,
            until=None if block.until is None else naive(block.until),
        )
    )


def _delete_block(connection: Connection, scope: Scope, value: str, root: str | None) -> bool:
    columns = block_table.c
    is_root = columns.root.is_(None) if root is None else columns.root == root
    query = delete(block_table).where(columns.scope == scope.value, columns.value == value, is_root)
    return connection.execute(query).rowcount > 0


def _put_override(
    connection: Connection, name: str, dimension: Dimension, override: Override | None
) -> tuple[LimitPolicy, bool]:
    found, _ = _current(connection, database_now(connection), limit_policy.c.name == name)
    with_rule = [p for p in found if any(rule.dimension is dimension for rule in p.rules)]
    if not with_rule:
        raise ValueError(f"no policy {name} limits {dimension}")
    columns = limit_override.c
    deleted = connection.execute(
        delete(limit_override).where(columns.policy == name, columns.dimension == dimension.value)
    )
    if override is not None:
        connection.execute(
            insert(limit_override).values(
                policy=name,
                dimension=dimension.value,
                limit=override.limit,
                until=naive(override.until),
            )
        )
    return with_rule[-1], deleted.rowcount > 0


def _of(table: Any, root: str | None) -> ColumnElement[bool]:
    """Rows of ``root`` and of every root; all for None."""
    return true() if root is None else or_(table.c.root.is_(None), table.c.root == root)


def _current(
    connection: Connection, now: datetime, where: ColumnElement[bool]
) -> tuple[list[LimitPolicy], list[BadRow]]:
    """Versions in force or to come, and rows that may be."""
    not_over = lasts(connection, limit_policy.c.effective_to, now)
    found, bad = policies_where(connection, and_(not_over, where), now=now)
    return [policy for policy in found if not has_ended(policy, now)], bad
