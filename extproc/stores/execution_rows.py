"""What the sweep of executions reads and writes: their rows in SQL, their records in Redis."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from extproc.core.durability import ExecutionState
from extproc.core.executions import OpenExecution
from extproc.stores import keys
from extproc.stores.client import RedisClient
from extproc.stores.execution_table import move_all, open_page
from extproc.stores.sql import Database


class SqlExecutionRows:
    """Implements ``jobs.execution_sweep.ExecutionRows``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(self, *, after: int, most: int, unmoved_seconds: float) -> list[OpenExecution]:
        """As the port says."""
        before = datetime.now(UTC).replace(tzinfo=None) - timedelta(seconds=unmoved_seconds)
        return await self._database.run(
            lambda connection: open_page(connection, after=after, most=most, before=before)
        )

    async def move(self, reservation_id: str, state: ExecutionState) -> bool:
        """As the port says."""
        moved = await self._database.run(
            lambda connection: move_all(connection, [reservation_id], state)
        )
        return moved == 1


class RedisRecords:
    """Implements ``jobs.execution_sweep.Records``."""

    def __init__(self, redis: RedisClient) -> None:
        self._redis = redis

    async def states(self, executions: Sequence[OpenExecution]) -> list[tuple[str, str] | None]:
        """As the port says."""
        return list(await asyncio.gather(*map(self._state, executions)))

    async def _state(self, row: OpenExecution) -> tuple[str, str] | None:
        key = keys.reservation(row.root, row.reservation_id)
        state, outcome = await self._redis.command("HMGET", key, "state", "outcome")
        return None if state is None else (_text(state), _text(outcome or ""))


def _text(word: bytes | str) -> str:
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else word
