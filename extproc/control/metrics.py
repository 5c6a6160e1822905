"""Prometheus metrics, right with several processes on one host.

With ``PROMETHEUS_MULTIPROC_DIR`` set before this module is first imported (``metrics_dir`` of the
settings does so), every process writes its counters to files there, and any one endpoint shows the
sum. Labels come from fixed words and service ids that were validated and found in SQL, never from a
client's text.
"""

import os
import threading
from collections.abc import Callable, Iterable
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from extproc.control.children import Buffer, FewModels, counts, levels, observations
from extproc.control.provider_metrics import ProviderMetrics
from extproc.control.usage_metrics import UsageMetrics
from extproc.core.ids import ACROSS_PREFIX
from extproc.core.provider_errors import ProviderError, Room
from extproc.core.reservations import (
    Admitted,
    Outcome,
    Rejected,
    Settlement,
    SettleResult,
    Source,
)
from extproc.core.reservations import SettleStatus as Status

# Admission is meant to take about a millisecond; the tail shows a slow Redis (time-out 50 ms).
_LATENCY_BUCKETS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
_RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0, 5.0)


class Metrics:
    """Implements core.ports.Telemetry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry = registry or CollectorRegistry()
        buffer = self.buffer = Buffer()
        self._admissions = counts(
            Counter(
                "tokenweir_admissions_total",
                "Requests admitted, by service.",
                ["service_id"],
                registry=registry,
            ),
            buffer,
        )
        self._rejections = counts(
            Counter(
                "tokenweir_rejections_total",
                "Requests answered 429, by service and by the limit that refused.",
                ["service_id", "limit"],
                registry=registry,
            ),
            buffer,
        )
        self._shadow_refusals = counts(
            Counter(
                "tokenweir_shadow_refusals_total",
                "Requests that a shadow limit would have refused, by service and limit.",
                ["service_id", "limit"],
                registry=registry,
            ),
            buffer,
        )
        self._refusals = counts(
            Counter(
                "tokenweir_refusals_total",
                "Requests refused before any limit was asked, by reason.",
                ["reason"],
                registry=registry,
            ),
            buffer,
        )
        self._unmetered = counts(
            Counter(
                "tokenweir_unmetered_total",
                "Requests that could not be metered, by reason and by what was done with them.",
                ["reason", "action"],
                registry=registry,
            ),
            buffer,
        )
        self._unread_answers = counts(
            Counter(
                "tokenweir_unread_answers_total",
                "Answers whose rest was passed on unread, by reason.",
                ["reason"],
                registry=registry,
            ),
            buffer,
        )
        self._unknown_models = counts(
            Counter(
                "tokenweir_unknown_models_total",
                "Requests for models that neither a price nor a setting names, by what was done.",
                ["action"],
                registry=registry,
            ),
            buffer,
        )
        self._failed_open = counts(
            Counter(
                "tokenweir_failed_open_total",
                "Requests let through unmetered because a store did not answer.",
                ["reason"],
                registry=registry,
            ),
            buffer,
        )
        self._unreadable_rows = counts(
            Counter(
                "tokenweir_unreadable_rows_total",
                "Rows of limits in SQL that could not be read, by table, at each load.",
                ["table"],
                registry=registry,
            ),
            buffer,
        )
        self._admission_seconds = observations(
            Histogram(
                "tokenweir_admission_seconds",
                "Time from the request's arrival at tokenweir to the decision.",
                ["decision"],
                buckets=_LATENCY_BUCKETS,
                registry=registry,
            ),
            buffer,
        )
        self._settlement_seconds = observations(
            Histogram(
                "tokenweir_settlement_seconds",
                "Time of one settle or release call.",
                ["source"],
                buckets=_LATENCY_BUCKETS,
                registry=registry,
            ),
            buffer,
        )
        # The last request's view: what is full now, not what was on average.
        self._limit_used = levels(
            Gauge(
                "tokenweir_limit_used_ratio",
                "How full the tightest limit of a kind was at the last decision, by service; 1 is "
                "full.",
                ["service_id", "kind"],
                registry=registry,
                multiprocess_mode="mostrecent",
            ),
            buffer,
        )
        self._accuracy = observations(
            Histogram(
                "tokenweir_reservation_used_ratio",
                "Tokens used of those reserved, of complete answers that reported usage; above 1 "
                "is too few.",
                buckets=_RATIO_BUCKETS,
                registry=registry,
            ),
            buffer,
        )()
        self._tokens = counts(
            Counter(
                "tokenweir_tokens_total",
                "Tokens by service and kind: estimated_input and reserved at admission, used at "
                "settlement.",
                ["service_id", "kind"],
                registry=registry,
            ),
            buffer,
        )
        self._settlements = counts(
            Counter(
                "tokenweir_settlements_total",
                "Ends of reservations by who settled, how the request ended, and what was done.",
                ["source", "outcome", "status"],
                registry=registry,
            ),
            buffer,
        )
        self._settlement_failures = counts(
            Counter(
                "tokenweir_settlement_failures_total",
                "Settlements given up and left to the reaper.",
                ["source"],
                registry=registry,
            ),
            buffer,
        )
        self._endings = counts(
            Counter(
                "tokenweir_endings_total",
                "Access log entries of metered requests by how the request ended.",
                ["outcome"],
                registry=registry,
            ),
            buffer,
        )
        self._providers = ProviderMetrics(registry, buffer)
        self._usage = UsageMetrics(registry, buffer)
        self._renewals = counts(
            Counter(
                "tokenweir_renewals_total",
                "Heartbeats of long streams by what became of the reservation's deadline.",
                ["result"],
                registry=registry,
            ),
            buffer,
        )
        # Made by the process that has something to say: a constant 0 would look like a good answer.
        self._open: Gauge | None = None
        self._last_sweep: Gauge | None = None
        self._reviews: Gauge | None = None
        self._factors: Gauge | None = None
        self._slices: Gauge | None = None
        self._factor_models = FewModels()
        for store in ("redis", "sql", "policies"):
            self._refusals(f"{store}_unavailable")
        self._refusals("internal_error")
        self._failed_open("redis")
        for source in Source:
            self._settlement_failures(source.value)

    def admitted(self, verdict: Admitted, *, seconds: float) -> None:
        self._admissions(verdict.root).inc()
        self._tokens(verdict.root, "estimated_input").inc(verdict.input_tokens)
        self._tokens(verdict.root, "reserved").inc(verdict.reserved_tokens)
        self._admission_seconds("admitted").observe(seconds)
        self._fullness(verdict)
        for label in verdict.shadow_refusals:
            self._shadow_refusals(verdict.root, label).inc()

    def rejected(self, verdict: Rejected, *, seconds: float) -> None:
        self._rejections(verdict.root, verdict.refused_by).inc()
        self._admission_seconds("rejected").observe(seconds)
        self._fullness(verdict)

    def _fullness(self, verdict: Admitted | Rejected) -> None:
        for kind, view in (("requests", verdict.requests), ("tokens", verdict.tokens)):
            if view is not None and view.limit > 0:
                self._limit_used(verdict.root, kind).set(1 - view.remaining / view.limit)

    def refused(self, reason: str) -> None:
        self._refusals(reason).inc()

    def unmetered(self, reason: str, *, allowed: bool) -> None:
        self._unmetered(reason, "allowed" if allowed else "refused").inc()

    def unread_answer(self, reason: str) -> None:
        self._unread_answers(reason).inc()

    def unknown_model(self, *, allowed: bool) -> None:
        self._unknown_models("allowed" if allowed else "refused").inc()

    def failed_open(self, reason: str) -> None:
        self._failed_open(reason).inc()

    def unreadable_row(self, table: str) -> None:
        self._unreadable_rows(table).inc()

    def settled(self, settlement: Settlement, result: SettleResult, *, seconds: float) -> None:
        self._settlements(
            settlement.source.value, settlement.outcome.value, result.status.value
        ).inc()
        self._settlement_seconds(settlement.source.value).observe(seconds)
        root = "across" if settlement.root.startswith(ACROSS_PREFIX) else settlement.root
        if settlement.writes_history and result.reserved_tokens > 0:
            self._accuracy.observe(result.charged_tokens / result.reserved_tokens)
        if result.status is Status.APPLIED:
            self._tokens(root, "used").inc(result.charged_tokens)
        elif result.status is Status.IMPROVED:
            # A counter cannot go down: what a guess charged too much is shown on its own.
            change = result.charged_tokens - result.charged_before_tokens
            kind = "used" if change >= 0 else "given_back"
            self._tokens(root, kind).inc(abs(change))
        if result.status in (Status.APPLIED, Status.IMPROVED):
            self._usage.count(settlement)

    def settlement_failed(self, source: str) -> None:
        self._settlement_failures(source).inc()

    def ended(self, outcome: Outcome | str) -> None:
        self._endings(str(outcome)).inc()

    def renewed(self, result: str) -> None:
        self._renewals(result).inc()

    def open_reservations(self, count: int) -> None:
        if self._open is None or self._last_sweep is None:
            self._open = Gauge(
                "tokenweir_open_reservations",
                "Reservations not yet ended, over all services, as the reaper last counted them.",
                registry=self.registry,
                multiprocess_mode="mostrecent",
            )
            self._last_sweep = Gauge(
                "tokenweir_reaper_last_sweep_timestamp_seconds",
                "Unix time of the reaper's last complete sweep.",
                registry=self.registry,
                multiprocess_mode="mostrecent",
            )
        self._open.set(count)
        self._last_sweep.set_to_current_time()

    def open_reviews(self, count: int) -> None:
        if self._reviews is None:
            self._reviews = Gauge(
                "tokenweir_reviews_open",
                "Reservations that wait for people's word, over all services, as the reaper last "
                "counted them.",
                registry=self.registry,
                multiprocess_mode="mostrecent",
            )
        self._reviews.set(count)

    def input_factor(self, provider: str, model: str, factor: float) -> None:
        """What a model's input tokens are to our estimate. The only label that a client spells:
        names of few models, that a provider has answered to."""
        if self._factors is None:
            self._factors = Gauge(
                "tokenweir_input_factor",
                "Reported input tokens to estimated ones, a moving average by provider and model.",
                ["provider", "model"],
                registry=self.registry,
                multiprocess_mode="mostrecent",
            )
        if self._factor_models.takes(provider, model):
            self._factors.labels(provider, model).set(factor)

    def slices_held(self, tokens: int) -> None:
        """``core.slice_keeper.SliceTelemetry``: by how much others may be refused too early."""
        if self._slices is None:
            self._slices = Gauge(
                "tokenweir_slice_tokens",
                "Tokens that workers hold in slices: taken ahead, neither used nor given back.",
                registry=self.registry,
                multiprocess_mode="livesum",
            )
        self._slices.set(tokens)

    def provider_failed(self, error: ProviderError) -> None:
        self._providers.failed(error)

    def provider_room(self, provider: str, model: str, room: Room) -> None:
        self._providers.has_room(provider, model, room)


def start_metrics_server(
    address: str, metrics: Metrics, *, before: Callable[[], None] | None = None
) -> Callable[[], None]:
    """Serve ``/metrics`` on ``HOST:PORT`` from a thread; returns the function that stops it.

    ``before`` is called there before each reading. Raises OSError when the address cannot be bound.
    """
    host, _, port = address.rpartition(":")
    registry = CollectorRegistry()
    if before is not None:
        registry.register(_Before(before))
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    else:
        registry.register(_All(metrics.registry))
    started: tuple[WSGIServer, threading.Thread]
    started = start_http_server(int(port), addr=host.strip("[]"), registry=registry)
    server, thread = started

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)

    return stop


class _Before(Collector):
    """Has nothing to tell, but is asked first."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def collect(self) -> Iterable[Metric]:
        self._act()
        return ()


class _All(Collector):
    """Everything of another registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        return self._registry.collect()
