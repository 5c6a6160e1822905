"""What all parts of `explain` look up: the time, the keys of a pattern, versions of policies."""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import Connection, or_, select

from extproc.core.explain import Unreadable
from extproc.core.policies import SERVICE_LIMIT
from extproc.stores.client import RedisClient
from extproc.stores.sql import Database
from extproc.stores.tables import limit_policy

# Request ids are cut where they are longer than this or more (at the edge, by store and script).
_UNCUT_BYTES = 128
# What comes of reading a record or a note that holds anything.
SPOILT = (ValueError, TypeError, LookupError, OverflowError, RecursionError)
_MAX_REASON = 160


async def read_now_ms(redis: RedisClient) -> int:
    """Redis' clock, by which everything is counted."""
    seconds, micros = await redis.command("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


def is_request(wanted: str, stored: str) -> bool:
    """Whether ``stored`` is what was kept of the request id ``wanted``."""
    wanted = wanted.encode("utf-8", "replace").decode()
    is_cut = len(stored.encode("utf-8", "surrogatepass")) >= _UNCUT_BYTES
    return stored == wanted or (is_cut and wanted.startswith(stored))


def unreadable(root: str, reservation_id: str, error: Exception) -> Unreadable:
    """What is said of a record that raised one of ``SPOILT``."""
    reason = f"{type(error).__name__}: {error}"[:_MAX_REASON]
    return Unreadable(root=root, reservation_id=reservation_id, unreadable=reason)


async def policy_versions(
    database: Database, labels: Iterable[str], at: datetime
) -> dict[str, int]:
    """The version of each policy of ``labels`` that was in force at ``at``, by its name."""
    names = sorted({label.partition("/")[0] for label in labels} - {SERVICE_LIMIT})
    if not names:
        return {}
    return await database.run(lambda connection: _versions(connection, names, at))


def _versions(connection: Connection, names: list[str], at: datetime) -> dict[str, int]:
    columns, moment = limit_policy.c, at.replace(tzinfo=None, microsecond=0)
    query = (
        select(columns.name, columns.version)
        .where(
            columns.name.in_(names),
            columns.effective_from <= moment,
            or_(columns.effective_to.is_(None), columns.effective_to > moment),
        )
        .order_by(columns.version)
    )
    return {row.name: row.version for row in connection.execute(query)}
