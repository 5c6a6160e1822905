"""From an administrator's policies to a decision: lookup, view, buckets, script."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import redis

from extproc.core.policies import Algorithm, Dimension, LimitPolicy, Rule
from extproc.core.policy_plan import EPOCH, PolicyDraft, PolicyFile
from extproc.core.reservations import (
    Admitted,
    LimitsMissing,
    LimitsStale,
    Rejected,
    StoreVerdict,
)
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.limit_admin import PolicyAdmin
from extproc.stores.limit_lookup import CachedLimitSource
from extproc.stores.limit_table import LimitTable
from extproc.stores.policy_table import PolicyTable
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.sql import Database
from extproc.stores.views import CompiledView, Views
from tests.support.policies import ROOT, descriptor, policy
from tests.support.reservations import request
from tests.support.valkey import wait_for_quiet_minute

ALL_RULES = tuple(
    Rule(
        dimension=dimension,
        limit=10_000,
        algorithm=algorithm,
        cycle_start=EPOCH if dimension is Dimension.COST_MICROS_PER_CYCLE else None,
        cycle_end=datetime.now(UTC) + timedelta(1)
        if dimension is Dimension.COST_MICROS_PER_CYCLE
        else None,
    )
    for dimension, algorithm in {
        **dict.fromkeys(Dimension, Algorithm.MINUTE),
        Dimension.INPUT_TPM: Algorithm.SLIDING,
        Dimension.OUTPUT_TPM: Algorithm.BUCKET,
    }.items()
)


def file(*of: LimitPolicy) -> PolicyFile:
    drafts = (PolicyDraft(policy=replace(one, root=ROOT, effective_from=EPOCH)) for one in of)
    return PolicyFile(root=ROOT, drafts=tuple(drafts))


async def apply(admin: PolicyAdmin, wanted: PolicyFile) -> None:
    await admin.apply(wanted, await admin.plan(wanted))


async def ask(store: RedisReservationStore, view: CompiledView) -> StoreVerdict:
    buckets = view.resolve(descriptor(), datetime.now(UTC)).buckets
    return await store.reserve(replace(request(root=ROOT), version=view.version, buckets=buckets))


async def test_every_dimension_is_decided_by_the_view_in_force(
    batcher: RedisBatcher,
    database: Database,
    table: LimitTable,
    store: RedisReservationStore,
    redis_client: redis.Redis,
) -> None:
    wait_for_quiet_minute(redis_client)
    source, views = CachedLimitSource(batcher, PolicyTable(database)), Views()
    admin = PolicyAdmin(batcher, PolicyTable(database))
    await table.put(ROOT, rpm=1000, tpm=100_000)
    await apply(admin, file(policy(rules=ALL_RULES)))
    found = await source.load(ROOT)
    assert found.policies is not None
    view = views.learn(found.policies)
    admitted = await ask(store, view)
    assert isinstance(admitted, Admitted)
    assert [bucket.label for bucket in admitted.buckets] == sorted(
        ["service_limit/rpm", "service_limit/total_tpm", *(f"p1/{d}" for d in Dimension)]
    )
    # The windows of the service are where a simple root counts too.
    assert redis_client.get(keys.rpm_prefix(ROOT) + admitted.minute) == "1"

    none = (Rule(dimension=Dimension.TOKENS_PER_DAY, limit=0),)
    await apply(admin, file(policy(rules=none)))
    assert await ask(store, view) == LimitsMissing()
    await source.load(ROOT)
    stale = await ask(store, view)
    assert isinstance(stale, LimitsStale)
    newer = views.put(ROOT, stale.version, stale.view)
    assert newer is not None
    rejected = await ask(store, newer)
    assert isinstance(rejected, Rejected)
    assert (rejected.refused_by, rejected.retry_after_ms) == ("p1/tokens_per_day", None)

    await apply(admin, file())
    await source.load(ROOT)
    assert await ask(store, newer) == LimitsStale("", "")
    assert views.put(ROOT, "", "") is None
    assert isinstance(await store.reserve(request(root=ROOT)), Admitted)
    await source.close()


async def test_a_root_without_a_row_of_limits_and_a_request_that_meets_nothing(
    batcher: RedisBatcher, database: Database, store: RedisReservationStore
) -> None:
    source = CachedLimitSource(batcher, PolicyTable(database))
    admin = PolicyAdmin(batcher, PolicyTable(database))
    await apply(admin, file(policy(value="bob")))
    simple = await store.reserve(request(root=ROOT))
    assert simple == LimitsMissing()
    found = await source.load(ROOT)
    assert found.policies is not None
    assert isinstance(await store.reserve(request(root=ROOT)), LimitsStale)
    verdict = await ask(store, Views().learn(found.policies))
    assert isinstance(verdict, Admitted)
    assert verdict.buckets == ()
    await source.close()
