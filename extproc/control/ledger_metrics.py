"""What the ledger writer tells: how far behind it is, and what became of the events."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from extproc.core.ledger import Written

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class LedgerMetrics:
    """Implements ``jobs.ledger_writer.LedgerTelemetry``; made by processes that write the ledger
    only, because a constant 0 would look like a good answer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events = Counter(
            "tokenweir_ledger_events_total",
            "Usage events taken out of Redis: written, duplicate (the ledger had it), dead.",
            ["result"],
            registry=registry,
        )
        self._failures = Counter(
            "tokenweir_ledger_failures_total",
            "Attempts to read or write events that failed and were made again, by store.",
            ["store"],
            registry=registry,
        )
        self._waiting = Gauge(
            "tokenweir_ledger_waiting_events",
            "Usage events in Redis that the ledger does not have, as last counted.",
            registry=registry,
            multiprocess_mode="mostrecent",
        )
        self._lag = Gauge(
            "tokenweir_ledger_lag_seconds",
            "How old the oldest event of the last transaction was; 0 when nothing waits.",
            registry=registry,
            multiprocess_mode="mostrecent",
        )
        self._seconds = Histogram(
            "tokenweir_ledger_write_seconds",
            "Time of one transaction of the ledger.",
            buckets=_SECONDS,
            registry=registry,
        )
        for result in ("written", "duplicate", "dead"):
            self._events.labels(result)
        for store in ("redis", "sql"):
            self._failures.labels(store)

    def ledger_written(self, written: Written, *, seconds: float, oldest_ms: int) -> None:
        self._events.labels("written").inc(written.rows)
        self._events.labels("duplicate").inc(written.duplicates)
        self._events.labels("dead").inc(written.dead)
        self._seconds.observe(seconds)
        self._lag.set(oldest_ms / 1000)

    def ledger_waiting(self, events: int) -> None:
        self._waiting.set(events)
        if not events:
            self._lag.set(0)

    def ledger_failed(self, store: str) -> None:
        self._failures.labels(store).inc()
