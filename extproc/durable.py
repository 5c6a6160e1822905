"""Builds the parts of strict durability, where the settings select roots for it."""

from functools import partial

from extproc.core.durability import ExecutionState
from extproc.core.executions import Executions
from extproc.jobs.execution_sweep import ExecutionSweep
from extproc.settings import Settings
from extproc.stores.client import RedisClient
from extproc.stores.execution_moves import ExecutionMoves
from extproc.stores.execution_rows import RedisRecords, SqlExecutionRows
from extproc.stores.group_commit import GroupCommit
from extproc.stores.sql import Database

# An execution that nothing has moved for so long is looked up by the sweep.
_UNMOVED_SECONDS = 60.0


class Durable:
    """Of one server process. Without strict roots ``executions`` is None, and nothing is asked of
    SQL."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self.executions: Executions | None = None
        self._committer: GroupCommit | None = None
        self._moves: ExecutionMoves | None = None
        durability = settings.durability
        if not durability.strict_roots:
            return
        self._moves = ExecutionMoves(database)
        self._committer = GroupCommit(
            url=settings.database.url,
            timeout_ms=durability.timeout_ms,
            recycle_seconds=settings.database.recycle_seconds,
            on_orphan=partial(self._moves.move, state=ExecutionState.CANCELED),
        )
        self.executions = Executions(durability.strict_roots, self._committer, self._moves)

    async def close(self) -> None:
        """After the last settlement, before the database is closed."""
        if self._committer is not None:
            await self._committer.close()
        if self._moves is not None:
            await self._moves.close(timeout_seconds=2.0)


def execution_sweep(settings: Settings, redis: RedisClient, database: Database) -> ExecutionSweep:
    """The sweep that `tokenweir work` runs."""
    return ExecutionSweep(
        SqlExecutionRows(database),
        RedisRecords(redis),
        interval=settings.reaper.interval_seconds,
        unmoved_seconds=min(_UNMOVED_SECONDS, settings.reaper.deadline_seconds),
    )
