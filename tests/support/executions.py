"""Executions in tests: rows to commit, and a look at what SQL holds."""

import itertools
import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import create_engine, text

from extproc.core.executions import Execution

_numbers = itertools.count()


def execution(reservation_id: str | None = None, **changes: Any) -> Execution:
    """A row that no other call has made."""
    now = int(time.time() * 1000)
    values: dict[str, Any] = {
        "reservation_id": reservation_id or f"r{next(_numbers)}",
        "root": "svc",
        "request_id": "req",
        "request_hash": "hash",
        "wire_format": "openai_chat",
        "model": "gpt-4o",
        "subject": "{}",
        "input_tokens": 9,
        "reserved_tokens": 29,
        "reserved_cost_micros": 0,
        "admitted_at_ms": now,
        "deadline_at_ms": now + 900_000,
    }
    return Execution(**{**values, **changes})


class Book:
    """Looks into the database with a plain connection of its own."""

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url, isolation_level="AUTOCOMMIT")

    def ask(self, query: str) -> list[Any]:
        with self._engine.connect() as connection:
            return list(connection.execute(text(query)))

    def states(self) -> dict[str, str]:
        """Every execution's state."""
        return {each.reservation_id: each.state for each in self.ask("SELECT * FROM execution")}

    def outbox(self) -> list[Any]:
        return self.ask("SELECT * FROM outbox ORDER BY id")

    def counter(self, name: str) -> int:
        """One of MariaDB's global counters."""
        ((_, value),) = self.ask(f"SHOW GLOBAL STATUS LIKE '{name}'")
        return int(value)

    def close(self) -> None:
        self._engine.dispose()


def orphans_in(states: dict[str, str], answered: Sequence[str]) -> set[str]:
    """Rows that are READY although nobody was told that they are committed."""
    return {rid for rid, state in states.items() if state == "READY" and rid not in answered}
