"""Part of the composition root: what writes the ledger, and what reads it, and what they own."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from extproc.cli_ledger import LedgerQuery, Rows
from extproc.control.ledger_metrics import LedgerMetrics
from extproc.control.metrics import Metrics
from extproc.core.ledger_rows import LedgerRow
from extproc.jobs.ledger_writer import LedgerWriter
from extproc.providers.registry import load_extensions, provider_of
from extproc.settings import Settings
from extproc.stores.client import open_client
from extproc.stores.event_stream import RedisEventSource
from extproc.stores.ledger_reader import ledger_rows
from extproc.stores.ledger_table import LedgerTable
from extproc.stores.sql import Database, existing_url, make_engine, shown_url

# Nobody waits for these calls, and one of a thousand events is a large one.
_LEAST_TIMEOUT_MS = 2000
_LEAST_SQL_TIMEOUT_MS = 10_000


async def write_ledger(settings: Settings, metrics: Metrics, stop: asyncio.Event) -> None:
    """Write the ledger until ``stop`` is set; at once back where it is not switched on."""
    if not settings.ledger.enabled:
        return
    load_extensions()
    redis = open_client(
        url=settings.redis.url,
        cluster=settings.redis.cluster,
        timeout_ms=max(settings.redis.timeout_ms, _LEAST_TIMEOUT_MS),
        max_connections=settings.redis.max_connections,
    )
    database = Database(
        url=settings.database.url,
        threads=1,
        timeout_ms=max(settings.database.timeout_ms, _LEAST_SQL_TIMEOUT_MS),
        recycle_seconds=settings.database.recycle_seconds,
    )
    ledger = settings.ledger
    writer = LedgerWriter(
        RedisEventSource(redis, reclaim_ms=round(ledger.reclaim_seconds * 1000)),
        LedgerTable(database),
        LedgerMetrics(metrics.registry),
        provider_of=provider_of,
        batch=ledger.batch_events,
        interval=ledger.interval_seconds,
        reclaim_seconds=ledger.reclaim_seconds / 2,
    )
    try:
        await writer.run(stop)
    finally:
        await redis.close()
        await database.close()


@contextmanager
def ledger_queries(settings: Settings) -> Iterator[Rows]:
    """Rows of the ledger in SQL, for the commands that read it."""
    engine = make_engine(
        existing_url(settings.database.url),
        timeout_ms=max(settings.database.timeout_ms, _LEAST_SQL_TIMEOUT_MS),
    )

    def rows(query: LedgerQuery) -> Iterator[LedgerRow]:
        return ledger_rows(
            engine,
            start=query.start,
            end=query.end,
            root=query.root,
            provider=query.provider,
            shown_url=shown_url(settings.database.url),
        )

    try:
        yield rows
    finally:
        engine.dispose()
