"""The composition root: builds every object once, starts and stops them in order."""

import asyncio
import gc
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

from extproc.control.metrics import Metrics, start_metrics_server
from extproc.control.vitals import Vitals
from extproc.core.errors import SettingsError, StoreUnavailableError
from extproc.core.estimates import EstimateMode, EstimatePlan
from extproc.core.known_models import KnownModels
from extproc.core.learned_factors import LearnedFactors
from extproc.core.local_view import LocalReserver
from extproc.core.metered import Metered
from extproc.core.ports import LimitSource, ReservationStore
from extproc.core.renewals import Renewals
from extproc.core.reserving import Reserver
from extproc.core.settler import Settler
from extproc.core.slice_keeper import SliceKeeper
from extproc.core.slices import SlicePlan
from extproc.durable import Durable, execution_sweep
from extproc.envoy_io.admission import Admission
from extproc.envoy_io.admission_policy import AdmissionPolicy
from extproc.envoy_io.ending import Ending
from extproc.envoy_io.identity import FromHeader, FromMetadata, IdentitySource
from extproc.envoy_io.metering import Metering
from extproc.envoy_io.native import Native
from extproc.envoy_io.server import GrpcServer
from extproc.jobs.factor_exchange import FactorExchange
from extproc.jobs.reaper import Reaper
from extproc.ledger_work import write_ledger
from extproc.providers.registry import load_extensions
from extproc.providers.tokens import warm_up
from extproc.settings import HeaderSource, Settings
from extproc.settings import IdentitySource as SourceSettings
from extproc.stores.client import RedisClient, open_client
from extproc.stores.factor_store import RedisFactorStore
from extproc.stores.limit_lookup import CachedLimitSource
from extproc.stores.policy_table import PolicyTable
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.slice_store import SlicedReservationStore
from extproc.stores.sql import Database
from extproc.stores.views import Views
from extproc.workers import end_with_supervisor

log = logging.getLogger("tokenweir.app")

_READY_PAUSE_SECONDS = 0.1
_COUNTING_THREADS = 2
# How far metrics are behind, but for the process that is asked; one that is killed loses so much.
_METRICS_SECONDS = 0.1
# How long a thread that runs Python keeps the others waiting. With Python's own 5 ms, and several
# changes of threads a message, one body that is counted in its thread would delay all requests.
_SWITCH_SECONDS = 0.0005


def _sources(sources: Iterable[SourceSettings]) -> list[IdentitySource]:
    return [
        FromHeader(source.name)
        if isinstance(source, HeaderSource)
        else FromMetadata(source.namespace, source.path)
        for source in sources
    ]


def _estimate(settings: Settings) -> EstimatePlan:
    admission = settings.admission
    is_strict = admission.estimate == "strict"
    return EstimatePlan(
        mode=EstimateMode(admission.estimate),
        quantile_permille=round(admission.estimate_quantile * 1000),
        margin_percent=admission.estimate_margin_percent,
        # In strict mode the cap is in the request itself, and a client's own one stands.
        platform_cap_tokens=None if is_strict else admission.platform_cap_tokens,
    )


def _policy(settings: Settings) -> AdmissionPolicy:
    return AdmissionPolicy(
        identity=_sources(settings.identity.sources),
        scopes={scope: _sources(sources) for scope, sources in settings.identity.scopes.items()},
        prices=settings.price_list(),
        known_models=KnownModels(
            settings.price_list(),
            settings.admission.known_models,
            settings.admission.unknown_models == "refuse",
        ),
        default_output_tokens=settings.admission.default_output_tokens,
        deadline_ms=round(settings.reaper.deadline_seconds * 1000),
        timeout_seconds=settings.admission.timeout_ms / 1000,
        allows_unmetered=settings.admission.unmetered == "allow",
        fails_open=settings.redis.failure_mode == "open",
        count_inline_max_bytes=settings.admission.count_inline_max_bytes,
        max_body_bytes=settings.server.max_body_bytes,
        strict_cap_tokens=(
            settings.admission.platform_cap_tokens
            if settings.admission.estimate == "strict"
            else None
        ),
        shows_usage_events=settings.admission.show_usage_events,
        idempotency_header=settings.admission.idempotency_header,
        idempotency_ttl_ms=settings.admission.idempotency_ttl_seconds * 1000,
    )


def _slice_plan(settings: Settings) -> SlicePlan:
    local = settings.local_view
    return SlicePlan(
        share_permille=round(local.share_percent * 10),
        most_requests=local.most_requests,
        most_tokens=local.most_tokens,
        used_permille=local.used_at_most_percent * 10,
        life_seconds=local.life_ms / 1000,
        idle_seconds=local.life_ms / 4000,
        hot_requests=local.hot_requests_per_second,
        most_slices=local.slices_per_service,
    )


def _reserver(
    settings: Settings, store: ReservationStore, limits: LimitSource, keeper: SliceKeeper
) -> Reserver:
    make: Callable[..., Reserver] = Reserver
    if settings.local_view.enabled:
        make = partial(LocalReserver, keeper=keeper, plan=_slice_plan(settings))
    return make(
        store=store,
        limits=limits,
        views=Views(),
        estimate=_estimate(settings),
        clock=lambda: datetime.now(UTC),
    )


def open_redis(settings: Settings) -> RedisClient:
    """The connection to Redis that all stores of a process share."""
    return open_client(
        url=settings.redis.url,
        cluster=settings.redis.cluster,
        timeout_ms=settings.redis.timeout_ms,
        max_connections=settings.redis.max_connections,
    )


def open_database(settings: Settings) -> Database:
    """The SQL engine and its threads."""
    return Database(
        url=settings.database.url,
        threads=settings.database.threads,
        timeout_ms=settings.database.timeout_ms,
        recycle_seconds=settings.database.recycle_seconds,
    )


def _stop_on_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Set by the first signal, and by the second."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def signalled() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    # A terminal that closes is no reason to lose settlements.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, signalled)
    return stop, hurry


async def serve(settings: Settings) -> None:
    """Run the three conversations until SIGTERM or SIGINT.

    Order of the end: health says NOT_SERVING, after the drain (a second signal ends it) new streams
    are refused, those under way finish within the grace, settlements are flushed, stores close.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    stop, hurry = _stop_on_signals()
    end_with_supervisor(stop)
    drained = asyncio.Event()
    metrics = Metrics()
    load_extensions()
    warm_up()
    executor = ThreadPoolExecutor(_COUNTING_THREADS, thread_name_prefix="count")
    database = open_database(settings)
    redis = open_redis(settings)
    store = SlicedReservationStore(redis, writes_events=settings.ledger.enabled)
    limits = CachedLimitSource(
        redis,
        PolicyTable(database),
        telemetry=metrics,
        cache_ttl_seconds=settings.limits.cache_ttl_seconds,
        negative_ttl_seconds=settings.limits.negative_ttl_seconds,
    )
    durable = Durable(settings, database)
    settler = Settler(store, metrics, executions=durable.executions)
    metered = Metered()
    learned = LearnedFactors() if settings.admission.learn_input_factors else None
    exchange = (
        None
        if learned is None
        else FactorExchange(learned, RedisFactorStore(redis), metrics.input_factor)
    )
    policy = _policy(settings)
    renewals = Renewals(store, metrics, deadline_ms=policy.deadline_ms)
    server = GrpcServer(
        listen=settings.server.listen,
        max_body_bytes=settings.server.max_body_bytes,
        telemetry=metrics,
    )
    keeper = SliceKeeper(store, _slice_plan(settings), metrics)
    server.register(
        admission=Admission(
            policy,
            reserver=_reserver(settings, store, limits, keeper),
            limits=limits,
            settler=settler,
            telemetry=metrics,
            executor=executor,
            learned=learned,
            executions=durable.executions,
        ),
        metering=Metering(
            settler,
            metrics,
            is_stopping=drained.is_set,
            metered=metered,
            learned=learned,
            executor=executor,
        ),
        ending=Ending(
            settler,
            renewals,
            metrics,
            identity=policy.identity,
            stopping=drained,
            metered=metered,
            native=Native(learned),
        ),
    )
    vitals = Vitals(metrics.registry, server)
    stop_metrics = _metrics_in_batches(settings.server.metrics_listen, metrics)
    try:
        await _start_server(server, settings.server.listen)
        log.info(
            "listening",
            extra={"grpc": settings.server.listen, "metrics": settings.server.metrics_listen},
        )
        if exchange is not None:
            exchange.start()
        await _announce_readiness(server, store, stop)
        # What was built so far lives as long as the process: no collection need look at it again.
        # Without this a full collection stops every stream for some 50 ms.
        gc.collect()
        gc.freeze()
        await stop.wait()
        log.info("stopping", extra={"settlements_under_way": settler.pending})
        await server.drain(settings.server.drain_seconds, hurry=hurry)
        grace = settings.server.shutdown_grace_seconds
        await server.stop(grace_seconds=grace, on_drained=drained.set)
        left = await settler.flush(timeout_seconds=max(grace, 1.0))
        await keeper.close(timeout_seconds=max(grace, 1.0))
        log.info("stopped", extra={"settlements_left_to_the_reaper": left})
    finally:
        stop_metrics()
        for part in (
            vitals.stop,
            renewals.stop,
            *(() if exchange is None else (exchange.stop,)),
            durable.close,
            limits.close,
            store.close,
            redis.close,
            database.close,
        ):
            await part()
        executor.shutdown(wait=False, cancel_futures=True)


async def work(settings: Settings) -> None:
    """Run the reaper, the ledger writer where it is switched on and, where roots are strict, the
    sweep of executions, until SIGTERM or SIGINT. Any number of these may run at once."""
    stop, _ = _stop_on_signals()
    metrics = Metrics()
    redis = open_redis(settings)
    reaper = Reaper(
        RedisReservationStore(redis, writes_events=settings.ledger.enabled),
        metrics,
        policy=settings.reaper.policy,
        interval=settings.reaper.interval_seconds,
    )
    log.info("working", extra={"policy": settings.reaper.policy})
    listen = settings.reaper.metrics_listen
    stop_metrics = None if listen is None else _listen_metrics(listen, metrics)
    database = open_database(settings) if settings.durability.strict_roots else None
    jobs = [reaper.run(stop), write_ledger(settings, metrics, stop)]
    if database is not None:
        jobs.append(execution_sweep(settings, redis, database).run(stop))
    try:
        await asyncio.gather(*jobs)
    finally:
        if stop_metrics is not None:
            stop_metrics()
        await redis.close()
        if database is not None:
            await database.close()


def _metrics_in_batches(address: str, metrics: Metrics) -> Callable[[], None]:
    """As ``_listen_metrics``; from now on metrics are written now and then, and before this process
    is asked for them, instead of with every change."""
    loop = asyncio.get_running_loop()

    def flush() -> None:
        try:
            metrics.buffer.flush()
        except Exception:  # a full disk, say: no reason to count nothing ever after
            log.exception("metrics could not be written")

    def flush_and_wait() -> None:
        flushed = threading.Event()
        loop.call_soon_threadsafe(flush)
        loop.call_soon_threadsafe(flushed.set)
        flushed.wait(_METRICS_SECONDS)

    stop_listening = _listen_metrics(address, metrics, before=flush_and_wait)
    metrics.buffer.delay()

    async def write() -> None:
        while True:
            await asyncio.sleep(_METRICS_SECONDS)
            flush()

    writing = asyncio.create_task(write())

    def stop() -> None:
        writing.cancel()
        flush()
        stop_listening()

    return stop


def _listen_metrics(
    address: str, metrics: Metrics, *, before: Callable[[], None] | None = None
) -> Callable[[], None]:
    try:
        return start_metrics_server(address, metrics, before=before)
    except OSError as error:
        raise SettingsError("server.metrics_listen", f"{address}: {error}") from error


async def _start_server(server: GrpcServer, listen: str) -> None:
    try:
        await server.start()
    except OSError as error:
        raise SettingsError("server.listen", str(error)) from error


async def _announce_readiness(
    server: GrpcServer, store: RedisReservationStore, stop: asyncio.Event
) -> None:
    """SERVING once Redis has answered and holds the scripts; a later outage is answered with 503s,
    which tell a client more than a refused connection."""
    said = False
    stopping = asyncio.create_task(stop.wait())
    try:
        while not stop.is_set():
            ping = asyncio.create_task(store.ping())
            await asyncio.wait((ping, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not ping.done():
                ping.cancel()
                return
            try:
                ping.result()
            except StoreUnavailableError as error:
                if not said:
                    log.error("waiting for redis", extra={"reason": str(error)})
                    said = True
                await asyncio.wait((stopping,), timeout=_READY_PAUSE_SECONDS)
                continue
            await server.serving(up=True)
            log.info("ready")
            return
    finally:
        stopping.cancel()
