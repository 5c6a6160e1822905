"""Ledger writers for tests, and what they told."""

from dataclasses import dataclass, field
from typing import Any

from extproc.core.ledger import Written
from extproc.jobs.ledger_writer import LedgerWriter
from extproc.providers.registry import provider_of


@dataclass
class Notes:
    """What the writer tells."""

    written: list[Written] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def ledger_written(self, written: Written, *, seconds: float, oldest_ms: int) -> None:
        self.written.append(written)

    def ledger_waiting(self, events: int) -> None:
        self.waiting.append(events)

    def ledger_failed(self, store: str) -> None:
        self.failures.append(store)

    def sum(self) -> tuple[int, int, int]:
        return (
            sum(one.rows for one in self.written),
            sum(one.duplicates for one in self.written),
            sum(one.dead for one in self.written),
        )


def writer(source: Any, ledger: Any, notes: Notes, **named: Any) -> LedgerWriter:
    """One that looks for events of dead writers at every sweep."""
    return LedgerWriter(
        source, ledger, notes, provider_of=provider_of, reclaim_seconds=0, interval=0.01, **named
    )
