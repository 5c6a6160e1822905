"""`explain` of a subject tells what the scripts would say."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from extproc.core.buckets import Period
from extproc.core.explain import Hold, RootState
from extproc.core.policies import (
    ANY,
    EACH,
    Algorithm,
    Block,
    Dimension,
    Mode,
    OnExceed,
    Rule,
    Scope,
)
from extproc.core.policy_plan import EPOCH, PolicyDraft, PolicyFile
from extproc.core.reservations import (
    Admitted,
    Rejected,
)
from extproc.core.resolve import across_root
from extproc.stores import keys
from extproc.stores.limit_table import LimitTable
from extproc.stores.policy_table import PolicyTable
from tests.support.engine import STRICT
from tests.support.explain import SLACK_MS, World, cycle, exhaust, rules
from tests.support.policies import ROOT, policy
from tests.support.reservations import request

# --- Which limits, and why ---------------------------------------------------------------------


async def test_every_kind_of_limit_is_shown_with_what_it_holds(world: World) -> None:
    await LimitTable(world.database).put(ROOT, rpm=1000, tpm=100_000)
    both = {
        Dimension.INPUT_TPM: {"algorithm": Algorithm.SLIDING, "window_seconds": 30},
        Dimension.OUTPUT_TPM: {"algorithm": Algorithm.BUCKET, "burst": 700},
        Dimension.COST_MICROS_PER_CYCLE: cycle(),
    }
    every = tuple(
        Rule(dimension=dimension, limit=10_000, **both.get(dimension, {}))
        for dimension in Dimension
    )
    await world.apply(
        policy("all", rules=every),
        policy("trial", mode=Mode.SHADOW, rules=rules(Dimension.RPM, 1), value="alice"),
        policy("soft", on_exceed=OnExceed.RECORD, scope=Scope.TENANT, value=ANY),
        policy("gpt", scope=Scope.MODEL, value=EACH, model="gpt-4*"),
        policy("others", value="bob"),
        policy("claude", model="claude*"),
    )
    assert isinstance(await world.ask(input_price=1_000_000, output_price=2_000_000), Admitted)
    report = await world.explain(cost_micros=500)
    assert report.state is RootState.ENABLED
    assert report.cached
    assert not report.sql_differs
    assert report.version == world.client.hget(keys.config(ROOT), "version")
    assert [limit.label for limit in report.limits] == sorted(
        [
            *(f"all/{dimension}" for dimension in Dimension),
            *("trial/rpm", "soft/total_tpm", "gpt/total_tpm"),
            *("service_limit/rpm", "service_limit/total_tpm"),
        ]
    )
    held = {limit.label: (limit.used, limit.held, limit.remaining) for limit in report.limits}
    assert held == {
        "all/concurrent": (1, None, 9999),
        "all/cost_micros_per_cycle": (0, 190, 9810),
        "all/cost_micros_per_day": (0, 190, 9810),
        "all/cost_micros_per_month": (0, 190, 9810),
        "all/input_tpm": (10, None, 9990),
        # A token bucket refills meanwhile, by 10000 a minute.
        "all/output_tpm": held["all/output_tpm"],
        "all/rpm": (1, None, 9999),
        "all/tokens_per_day": (0, 100, 9900),
        "all/tokens_per_month": (0, 100, 9900),
        "all/total_tpm": (100, None, 9900),
        "gpt/total_tpm": (100, None, 0),
        "service_limit/rpm": (1, None, 999),
        "service_limit/total_tpm": (100, None, 99_900),
        "soft/total_tpm": (100, None, 0),
        "trial/rpm": (1, None, 0),
    }
    assert 610 <= held["all/output_tpm"][2] <= 700
    limits = {limit.label: limit for limit in report.limits}
    assert (limits["all/input_tpm"].window_seconds, limits["all/output_tpm"].burst) == (30, 700)
    assert limits["all/tokens_per_day"].period is Period.DAY
    asked = {name.partition("/")[2]: one.asked for name, one in limits.items() if "all" in name}
    assert asked["rpm"] == asked["concurrent"] == 1
    assert (asked["input_tpm"], asked["output_tpm"], asked["total_tpm"]) == (10, 90, 100)
    assert asked["cost_micros_per_day"] == 500

    def why(label: str) -> tuple[object, ...]:
        one = limits[label]
        return one.policy, one.version, one.scope, one.value, one.subject, one.model, one.refuses

    assert why("trial/rpm") == ("trial", 1, Scope.USER, "alice", "user:alice", "*", False)
    assert why("soft/total_tpm") == ("soft", 1, Scope.TENANT, ANY, f"tenant:{ANY}", "*", False)
    assert why("gpt/total_tpm") == ("gpt", 1, Scope.MODEL, EACH, "model:gpt-4o", "gpt-4*", True)
    service = ("service_limit", None, Scope.SERVICE, ROOT, f"service:{ROOT}", "*", True)
    assert why("service_limit/rpm") == service
    # The model's window is what the next request waits for; shadow and soft ones refuse nothing.
    assert report.binding == "gpt/total_tpm"
    assert report.fits_in_ms is not None
    assert 0 < report.fits_in_ms <= 60_000
    assert report.fits_at == report.at + timedelta(milliseconds=report.fits_in_ms)


async def test_of_several_versions_the_one_in_force_is_named(world: World) -> None:
    await world.apply(policy(rules=rules(Dimension.RPM, 5)))
    await world.apply(policy(rules=rules(Dimension.RPM, 7)))
    limit = await world.limit("p1/rpm")
    assert (limit.version, limit.limit) == (2, 7)


async def test_an_override_shows_with_its_end(world: World) -> None:
    await world.apply(policy())
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    await world.admin.override("p1", Dimension.TOTAL_TPM, limit=30, until=until)
    limit = await world.limit("p1/total_tpm")
    assert (limit.limit, limit.policy_limit, limit.override_until) == (30, 100, until)
    # 100 tokens fit the policy, and never fit the override.
    assert limit.fits_in_ms is None


async def test_a_ceiling_across_roots_is_read_where_it_lives(world: World) -> None:
    await world.apply(policy("own"))
    ceiling = policy("ceiling", scope=Scope.PROVIDER, value="openai", across_roots=True)
    await world.apply(ceiling, root=None)
    (where, version, bucket) = (await world.buckets())[-1]
    taken = replace(request(root=where, rid="r1", cap=50), version=version, buckets=(bucket,))
    await world.store.reserve(replace(taken, is_pinned=True, estimate=STRICT))
    report = await world.explain()
    (limit,) = [limit for limit in report.limits if limit.label == "ceiling/total_tpm"]
    assert (limit.root, limit.used) == (across_root(Scope.PROVIDER, "openai"), 60)
    assert [(holds.root, holds.open) for holds in report.holds] == [(ROOT, 0), (where, 1)]
    assert report.holds[1].first[0].reservation_id == "r1"


# --- When it fits: the reserve script is the judge ----------------------------------------------


async def test_a_minute_fits_when_the_script_says(world: World) -> None:
    await world.apply(policy(rules=rules(Dimension.TOTAL_TPM, 250)))
    assert (await world.explain()).fits_in_ms == 0
    refused = await exhaust(world)
    report = await world.explain()
    assert report.binding == "p1/total_tpm"
    assert report.fits_in_ms is not None
    assert refused.retry_after_ms is not None
    assert 0 <= refused.retry_after_ms - report.fits_in_ms < SLACK_MS
    assert report.fits_at is not None
    assert (report.fits_at.second, report.fits_at.microsecond) == (0, 0)
    # 50 are left, and 50 fit.
    assert (await world.explain(50)).fits_in_ms == 0
    assert (await world.explain(51)).fits_in_ms != 0
    assert isinstance(await world.ask(50), Admitted)
    # A counter of the minute before says nothing.
    (_, _, bucket) = (await world.buckets())[0]
    for name in list(world.client.scan_iter(bucket.key + "*")):
        world.client.rename(name, bucket.key + "200001010000")
    assert (await world.explain()).fits_in_ms == 0
    assert isinstance(await world.ask(), Admitted)


@pytest.mark.parametrize(
    ("rule", "tokens"),
    [
        (Rule(dimension=Dimension.RPM, limit=3, algorithm=Algorithm.SLIDING), 100),
        (
            Rule(
                dimension=Dimension.TOTAL_TPM,
                limit=1000,
                algorithm=Algorithm.SLIDING,
                window_seconds=300,
            ),
            # Three are in when it is refused; it waits for the first two of them.
            300,
        ),
        (Rule(dimension=Dimension.RPM, limit=2, algorithm=Algorithm.BUCKET, burst=3), 100),
        (Rule(dimension=Dimension.TOTAL_TPM, limit=60, algorithm=Algorithm.BUCKET, burst=250), 100),
        (Rule(dimension=Dimension.CONCURRENT, limit=3), 100),
    ],
    ids=["sliding-rpm", "sliding-tpm", "bucket-rpm", "bucket-tpm", "slots"],
)
async def test_it_fits_at_the_predicted_moment_and_not_before(
    world: World, rule: Rule, tokens: int
) -> None:
    await world.apply(policy(rules=(rule,)))
    (_, _, bucket) = (await world.buckets())[0]
    assert (await world.explain(tokens)).fits_in_ms == 0
    for _ in range(2):
        assert isinstance(await world.ask(tokens), Admitted)
        world.counters.age(bucket.key, 7000)
    refused = await exhaust(world, tokens)
    wait = (await world.explain(tokens)).fits_in_ms
    assert wait is not None
    assert wait > SLACK_MS
    if rule.dimension is not Dimension.CONCURRENT:  # there the script says: try again soon
        assert refused.retry_after_ms is not None
        assert 0 <= refused.retry_after_ms - wait < SLACK_MS
    world.counters.age(bucket.key, wait - SLACK_MS)
    assert isinstance(await world.ask(tokens), Rejected)
    world.counters.age(bucket.key, SLACK_MS)
    assert (await world.explain(tokens)).fits_in_ms == 0
    assert isinstance(await world.ask(tokens), Admitted)


async def test_what_has_left_a_window_is_not_counted_before_the_next_reserve(world: World) -> None:
    sliding = rules(Dimension.TOTAL_TPM, 1000, algorithm=Algorithm.SLIDING)
    await world.apply(policy(rules=sliding))
    (_, _, bucket) = (await world.buckets())[0]
    old = {f"old{i}": i + 1 for i in range(2500)}
    await world.ask(100)
    world.client.zadd(bucket.key, old)
    world.client.hincrby(keys.amounts(bucket.key), "sum", 7500)
    world.client.hset(keys.amounts(bucket.key), mapping=dict.fromkeys(old, 3))
    limit = await world.limit("p1/total_tpm")
    assert (limit.used, limit.remaining, limit.fits_in_ms) == (100, 900, 0)
    assert world.client.zcard(bucket.key) == 2501  # nothing was touched


async def test_a_window_is_looked_at_page_by_page(world: World) -> None:
    sliding = rules(Dimension.TOTAL_TPM, 3000, algorithm=Algorithm.SLIDING)
    await world.apply(policy(rules=sliding))
    (_, _, bucket) = (await world.buckets())[0]
    seconds, _ = world.client.time()
    now = int(seconds) * 1000
    entries = {f"e{i:04}": now - 50_000 + 10 * i for i in range(3000)}
    world.client.zadd(bucket.key, entries)
    world.client.hset(keys.amounts(bucket.key), mapping={**dict.fromkeys(entries, 1), "sum": 3000})
    report = await world.explain(2500)
    # The 2500th oldest has to leave.
    assert report.fits_at == datetime.fromtimestamp(now / 1000 + 10 + 24.99, UTC)


@pytest.mark.parametrize(
    ("dimension", "more"),
    [
        (Dimension.TOKENS_PER_DAY, {}),
        (Dimension.TOKENS_PER_MONTH, {}),
        (Dimension.COST_MICROS_PER_CYCLE, cycle()),
    ],
)
async def test_a_quota_fits_when_its_period_ends(
    world: World, dimension: Dimension, more: dict[str, Any]
) -> None:
    await world.apply(policy(rules=rules(dimension, 250, **more)))
    prices: dict[str, Any] = {"input_price": 1_000_000, "output_price": 1_000_000}
    for _ in range(2):
        await world.ask(**prices)
    refused = await world.ask(**prices)
    assert isinstance(refused, Rejected)
    report = await world.explain(cost_micros=100)
    assert refused.retry_after_ms is not None
    assert report.fits_in_ms is not None
    assert 0 <= refused.retry_after_ms - report.fits_in_ms < SLACK_MS
    assert report.fits_at is not None
    assert report.fits_at.microsecond == 0
    assert (report.limits[0].used, report.limits[0].held) == (0, 200)


async def test_what_can_never_fit_says_never(world: World) -> None:
    await world.apply(policy(rules=rules(Dimension.TOTAL_TPM, 250)))
    assert isinstance(await world.ask(251), Rejected)
    report = await world.explain(251)
    assert (report.fits_in_ms, report.fits_at, report.binding) == (None, None, "p1/total_tpm")
    await world.apply(policy(rules=rules(Dimension.RPM, 0, algorithm=Algorithm.BUCKET, burst=5)))
    assert isinstance(await world.ask(), Rejected)
    assert (await world.explain()).fits_in_ms is None


async def test_a_shadow_limit_never_decides(world: World) -> None:
    await world.apply(policy(mode=Mode.SHADOW, rules=rules(Dimension.RPM, 0)))
    report = await world.explain()
    assert (report.fits_in_ms, report.binding) == (0, None)
    assert report.limits[0].fits_in_ms is None


# --- Blocks and roots ----------------------------------------------------------------------------


async def test_a_block_lasts_until_its_end_or_for_ever(world: World) -> None:
    await world.apply(policy())
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    block = Block(scope=Scope.USER, value="alice", reason="leaked", until=until)
    await world.admin.block(block)
    report = await world.explain()
    assert report.blocked_by == block
    assert [limit.label for limit in report.limits] == ["p1/total_tpm"]
    assert (report.binding, report.fits_at) == ("block", until)
    await world.admin.block(replace(block, until=None))
    report = await world.explain()
    assert (report.binding, report.fits_in_ms) == ("block", None)


async def test_simple_unknown_and_disabled_roots(world: World) -> None:
    report = await world.explain()
    assert (report.state, report.limits, report.binding) == (RootState.UNKNOWN, (), "unknown")
    table = LimitTable(world.database)
    await table.put(ROOT, rpm=2, tpm=1000)
    await world.source.load(ROOT)
    plain = request(root=ROOT, rid="r1", cap=90)
    assert isinstance(await world.store.reserve(replace(plain, estimate=STRICT)), Admitted)
    report = await world.explain()
    held = [(limit.label, limit.used, limit.remaining) for limit in report.limits]
    assert held == [("service_limit/rpm", 1, 1), ("service_limit/total_tpm", 100, 900)]
    assert (report.cached, report.version, report.fits_in_ms) == (True, "", 0)
    # SQL is changed behind our back.
    await table.put(ROOT, enabled=False)
    report = await world.explain()
    assert (report.state, report.sql_differs) == (RootState.ENABLED, True)
    world.client.delete(keys.config(ROOT))
    report = await world.explain()
    assert (report.state, report.cached, report.sql_differs) == (RootState.DISABLED, False, False)
    assert (report.fits_in_ms, report.binding) == (None, "disabled")


async def test_other_limits_in_sql_than_in_the_cache_are_noticed(world: World) -> None:
    await world.apply(policy())
    await world.source.load(ROOT)
    table = PolicyTable(world.database)
    changed = policy(rules=rules(Dimension.TOTAL_TPM, 7), root=ROOT, effective_from=EPOCH)
    file = PolicyFile(root=ROOT, drafts=(PolicyDraft(policy=changed),))
    await table.apply(file, await table.plan(file))
    report = await world.explain()
    # What decides is shown.
    assert (report.sql_differs, report.limits[0].limit) == (True, 100)


async def test_open_reservations_are_listed_by_deadline_and_bounded(world: World) -> None:
    await world.apply(policy(rules=rules(Dimension.RPM, 100)))
    for count in range(25):
        verdict = await world.store.reserve(
            replace(
                request(root=ROOT, rid=f"r{count:02}", deadline_ms=60_000 - 1000 * count, cap=90),
                version=(await world.buckets())[0][1],
                estimate=STRICT,
            )
        )
        assert isinstance(verdict, Admitted)
    world.client.zadd(keys.pending(ROOT), {"r24": 1})
    (holds,) = (await world.explain()).holds
    assert (holds.open, len(holds.first)) == (25, 20)
    assert [hold.reservation_id for hold in holds.first] == [f"r{24 - n:02}" for n in range(20)]
    first, second = holds.first[:2]
    assert isinstance(first, Hold)
    assert isinstance(second, Hold)
    assert (first.overdue, second.overdue) == (True, False)
    assert (second.reserved_tokens, second.model, second.request_id) == (100, "gpt-4o", "req-1")
    assert second.age_ms is not None
    assert 0 <= second.age_ms < SLACK_MS
    assert second.admitted_at is not None
    left = second.deadline - second.admitted_at
    assert left == timedelta(milliseconds=60_000 - 23_000)
