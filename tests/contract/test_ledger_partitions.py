"""What docs/ledger.md says to run for very many rows, run as it stands there."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from extproc.core.ledger import UsageEvent
from extproc.core.ledger_event import entry_of
from extproc.providers.registry import provider_of
from extproc.stores.ledger_table import LedgerTable
from extproc.stores.migrate import upgrade
from extproc.stores.sql import Database
from tests.support.usage_events import ROOT, count, event, rows

_DOCUMENT = Path(__file__).parents[2] / "docs/ledger.md"
_JANUARY_2027_MS = 1_800_000_000_000


def _statements() -> list[str]:
    """Those that change the table, in their order."""
    blocks = re.findall(r"^```sql\n(.*?)^```", _DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`(ALTER TABLE [^`]*)`", _DOCUMENT.read_text())
    parts = [part for block in blocks for part in block.split(";\n")] + inline
    return [part for part in parts if part.startswith("ALTER TABLE")]


async def _write(
    database: Database, numbers: Iterable[int], **changes: Any
) -> tuple[int, int, int]:
    events = [UsageEvent(ROOT, f"{n}-0", event(n, **changes)) for n in numbers]
    pairs = [(entry_of(one, provider_of=provider_of), one) for one in events]
    written = await LedgerTable(database).write(pairs, [])
    return written.rows, written.duplicates, written.dead


async def test_a_ledger_in_partitions_takes_each_event_once_and_loses_a_month_at_once(
    mariadb_url: str,
) -> None:
    upgrade(mariadb_url)
    database = Database(url=mariadb_url, timeout_ms=10_000)
    december, january = range(10), range(10, 15)
    await _write(database, december)
    await _write(database, january, at=_JANUARY_2027_MS)
    keys, partitions, drop = _statements()
    engine = create_engine(mariadb_url)
    with engine.begin() as connection:
        connection.execute(text(keys))
        connection.execute(text(partitions))
    assert await _write(database, (*december, 20, 21)) == (2, 10, 0)
    assert await _write(database, january, at=_JANUARY_2027_MS) == (0, 5, 0)
    held = rows(
        mariadb_url,
        "SELECT partition_name, table_rows FROM information_schema.partitions"
        " WHERE table_schema = DATABASE() AND table_name = 'usage_ledger'",
    )
    assert [name for name, _ in held] == ["p2026_12", "p2027_01", "later"]
    with engine.begin() as connection:
        connection.execute(text(drop))
    engine.dispose()
    assert count(mariadb_url, "usage_ledger") == 5
    assert rows(mariadb_url, "SELECT SUM(requests) FROM ledger_hour") == [(17,)]
    await database.close()
