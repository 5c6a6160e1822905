"""Cold lookups of roots with policies, and what clears their cache."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from extproc.core.errors import StoreUnavailableError
from extproc.core.policies import Block, Dimension, PolicySet, Rule, Scope
from extproc.core.policy_plan import EPOCH, PolicyDraft, PolicyFile
from extproc.core.ports import LimitLookup
from extproc.core.views import to_json, version_of
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.limit_admin import LimitAdmin, PolicyAdmin
from extproc.stores.limit_lookup import CachedLimitSource
from extproc.stores.limit_table import LimitTable
from extproc.stores.policy_table import PolicyTable
from extproc.stores.sql import Database
from extproc.stores.views import Views, compile_view
from tests.support.policies import ROOT, descriptor, policies, policy
from tests.support.processes import free_port

CONFIG = keys.config(ROOT)


@pytest.fixture
async def source(batcher: RedisBatcher, database: Database) -> AsyncIterator[CachedLimitSource]:
    source = CachedLimitSource(batcher, PolicyTable(database))
    yield source
    await source.close()


@pytest.fixture
def admin(batcher: RedisBatcher, database: Database) -> PolicyAdmin:
    return PolicyAdmin(batcher, PolicyTable(database))


def file(*names: str, root: str | None = ROOT, **given: Any) -> PolicyFile:
    given = {"root": root, "effective_from": EPOCH} | given
    return PolicyFile(
        root=root, drafts=tuple(PolicyDraft(policy=policy(name, **given)) for name in names)
    )


async def apply(admin: PolicyAdmin, wanted: PolicyFile) -> None:
    await admin.apply(wanted, await admin.plan(wanted))


def in_seconds(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def test_a_root_with_policies_is_cached_with_its_view(
    source: CachedLimitSource, admin: PolicyAdmin, table: LimitTable, redis_client: redis.Redis
) -> None:
    limit = await table.put(ROOT, rpm=5, tpm=50)
    await apply(admin, file("p"))
    found = await source.load(ROOT)
    assert found.policies is not None
    assert (found.limit, found.cached, found.is_known) == (limit, True, True)
    view = to_json(found.policies)
    assert redis_client.hgetall(CONFIG) == {
        "status": "1",
        "rpm": "5",
        "tpm": "50",
        "version": version_of(view),
        "view": view,
    }
    assert 530 < redis_client.ttl(CONFIG) <= 600
    assert await source.load(ROOT) == found  # now out of Redis


async def test_a_root_that_has_policies_only_is_known_and_enabled(
    source: CachedLimitSource, admin: PolicyAdmin, redis_client: redis.Redis
) -> None:
    await apply(admin, file("p"))
    found = await source.load(ROOT)
    assert (found.limit, found.cached, found.is_known) == (None, True, True)
    assert set(redis_client.hgetall(CONFIG)) == {"status", "version", "view"}
    assert redis_client.hget(CONFIG, "status") == "1"
    assert redis_client.smembers(keys.ROOTS) == {ROOT}
    assert await source.load(ROOT) == found


async def test_a_policy_for_every_root_lets_nobody_in(
    source: CachedLimitSource, admin: PolicyAdmin, redis_client: redis.Redis
) -> None:
    await apply(admin, file("p", root=None))
    assert await source.load(ROOT) == LimitLookup(None, cached=True)
    assert redis_client.hgetall(CONFIG) == {"status": "unknown"}


async def test_a_disabled_service_stays_disabled_whatever_its_policies(
    source: CachedLimitSource, admin: PolicyAdmin, table: LimitTable, redis_client: redis.Redis
) -> None:
    await table.put(ROOT, rpm=5, tpm=50, enabled=False)
    await apply(admin, file("p"))
    await source.load(ROOT)
    assert redis_client.hget(CONFIG, "status") == "0"
    found = await source.load(ROOT)
    assert found.limit is not None
    assert not found.limit.enabled


async def test_a_block_alone_makes_a_view(
    source: CachedLimitSource, admin: PolicyAdmin, table: LimitTable
) -> None:
    await table.put(ROOT, rpm=5, tpm=50)
    await source.load(ROOT)
    await admin.block(Block(scope=Scope.USER, value="alice", root=ROOT))
    found = await source.load(ROOT)
    assert found.policies is not None
    resolved = compile_view(found.policies).resolve(descriptor(), datetime.now(UTC))
    assert resolved.blocked_by is not None
    assert await admin.unblock(Scope.USER, "alice", root=ROOT)
    assert (await source.load(ROOT)).policies is None


@pytest.mark.parametrize("kind", ["end", "start", "block", "override"])
async def test_an_entry_lives_no_longer_than_until_the_next_boundary(
    source: CachedLimitSource, admin: PolicyAdmin, redis_client: redis.Redis, kind: str
) -> None:
    at = in_seconds(100)
    end = at.replace(microsecond=0) if kind == "end" else None
    wanted = file("p", effective_to=end)
    if kind == "start":
        later = policy("q", root=ROOT, effective_from=at.replace(microsecond=0))
        wanted = PolicyFile(
            root=ROOT, drafts=(*wanted.drafts, PolicyDraft(policy=later, has_start=True))
        )
    await apply(admin, wanted)
    if kind == "block":
        await admin.block(Block(scope=Scope.USER, value="eve", until=at))
    if kind == "override":
        await admin.override("p", Dimension.TOTAL_TPM, limit=1, until=at)
    await source.load(ROOT)
    assert 80 < redis_client.ttl(CONFIG) <= 100


async def test_each_change_clears_the_cache_of_whom_it_concerns(
    source: CachedLimitSource, admin: PolicyAdmin, table: LimitTable, redis_client: redis.Redis
) -> None:
    for root in (ROOT, "other", "third"):
        await table.put(root, rpm=5, tpm=50)

    async def cached_after(change: Any) -> set[str]:
        for root in (ROOT, "other", "third"):
            await source.load(root)
        await change
        return {root for root in (ROOT, "other", "third") if redis_client.exists(keys.config(root))}

    others = {"other", "third"}
    user = ("user", "eve")
    assert await cached_after(apply(admin, file("mine"))) == others
    assert await cached_after(apply(admin, file("all", root=None))) == set()
    assert await cached_after(apply(admin, file("mine"))) == others  # nothing to change: repairs
    assert await cached_after(admin.block(Block(scope=Scope.USER, value="eve"))) == set()
    assert await cached_after(admin.unblock(Scope(user[0]), user[1])) == set()
    assert (
        await cached_after(admin.block(Block(scope=Scope.USER, value="eve", root=ROOT))) == others
    )
    assert await cached_after(admin.unblock(Scope.USER, "eve", root=ROOT)) == others
    rule = Dimension.TOTAL_TPM
    change = admin.override("mine", rule, limit=1, until=in_seconds(60))
    assert await cached_after(change) == others
    assert await cached_after(admin.end_override("mine", rule)) == others
    change = admin.override("all", rule, limit=1, until=in_seconds(60))
    assert await cached_after(change) == set()
    assert await cached_after(admin.plan(file())) == {ROOT, *others}


async def test_a_change_for_every_root_reaches_those_that_redis_does_not_list(
    source: CachedLimitSource, admin: PolicyAdmin, table: LimitTable, redis_client: redis.Redis
) -> None:
    """Also one that is in no table any more, while its entry lives."""
    await table.put(ROOT, rpm=5, tpm=50)
    await source.load(ROOT)
    redis_client.hset(keys.config("gone"), "status", "1")
    redis_client.delete(keys.ROOTS)
    await admin.block(Block(scope=Scope.USER, value="eve"))
    assert not list(redis_client.scan_iter("config:*"))


@pytest.mark.parametrize("lost", ["smembers", "scan"])
async def test_what_can_be_cleared_is_cleared_and_the_rest_is_said(
    redis_url: str, database: Database, table: LimitTable, redis_client: redis.Redis, lost: str
) -> None:
    await table.put(ROOT, rpm=5, tpm=50)
    policies = PolicyTable(database)
    redis_client.hset(CONFIG, "status", "1")
    redis_client.acl_setuser(
        "limited",
        enabled=True,
        passwords=["+pw"],
        keys=["*"],
        categories=["+@all"],
        commands=[f"-{lost}"],
    )
    client = RedisBatcher(url=redis_url.replace("://", "://limited:pw@"), timeout_ms=5000)
    try:
        with pytest.raises(StoreUnavailableError, match="saved, but the cache was not cleared"):
            await PolicyAdmin(client, policies).block(Block(scope=Scope.USER, value="eve"))
    finally:
        await client.close()
        redis_client.acl_deluser("limited")
    assert not redis_client.exists(CONFIG)


async def test_every_root_of_the_tables_is_known(
    database: Database, admin: PolicyAdmin, table: LimitTable
) -> None:
    await table.put("service", rpm=5, tpm=50)
    await apply(admin, file("mine"))
    await apply(admin, file("all", root=None))
    await apply(admin, file())  # what has ended may still be cached
    assert await PolicyTable(database).roots() == sorted((ROOT, "service"))


async def test_a_change_of_limits_of_a_root_with_policies_is_seen(
    source: CachedLimitSource, admin: PolicyAdmin, table: LimitTable, batcher: RedisBatcher
) -> None:
    await apply(admin, file("p"))
    limit = await LimitAdmin(batcher, table).set(ROOT, rpm=9, tpm=9)
    found = await source.load(ROOT)
    assert found.policies is not None
    assert found.policies.service == found.limit == limit


class Paused(PolicyTable):
    """Has read, and holds it back until told to go on."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.has_read = asyncio.Event()
        self.go_on = asyncio.Event()

    async def load(self, root: str) -> PolicySet | None:
        found = await super().load(root)
        self.has_read.set()
        await self.go_on.wait()
        return found


@pytest.mark.parametrize("whose", [ROOT, None])
@pytest.mark.parametrize("is_registered", [True, False])
async def test_an_old_reader_never_overwrites_a_change(  # noqa: PLR0917 - fixtures
    batcher: RedisBatcher,
    database: Database,
    admin: PolicyAdmin,
    redis_client: redis.Redis,
    whose: str | None,
    is_registered: bool,
) -> None:
    """Also when the root is not registered yet, so that a change for every root misses it."""
    await apply(admin, file("old"))
    if is_registered:
        redis_client.sadd(keys.ROOTS, ROOT)
    paused = Paused(database)
    source = CachedLimitSource(batcher, paused)
    reader = asyncio.create_task(source.load(ROOT))
    await paused.has_read.wait()
    await apply(admin, file(*(["old"] if whose else []), "new", root=whose))
    paused.go_on.set()
    found = await reader
    assert found.policies is not None
    assert [p.name for p in found.policies.policies] == ["new", "old"]
    assert found.cached
    assert redis_client.hget(CONFIG, "view") == to_json(found.policies)
    await source.close()


async def test_a_view_of_another_release_is_read_from_sql_instead(
    source: CachedLimitSource, admin: PolicyAdmin, redis_client: redis.Redis
) -> None:
    await apply(admin, file("p"))
    found = await source.load(ROOT)
    redis_client.hset(CONFIG, "view", '{"format":99}')
    again = await source.load(ROOT)
    assert (again.policies, again.cached) == (found.policies, False)


async def test_without_redis_the_answer_has_the_policies_too(
    database: Database, admin: PolicyAdmin
) -> None:
    await apply(admin, file("p"))
    lonely = RedisBatcher(url=f"redis://127.0.0.1:{free_port()}/0")
    source = CachedLimitSource(lonely, PolicyTable(database))
    found = await source.load(ROOT)
    assert found.policies is not None
    assert not found.cached
    with pytest.raises(StoreUnavailableError, match="saved, but the cache was not cleared"):
        await apply(PolicyAdmin(lonely, PolicyTable(database)), file("q"))
    assert [p.name for p in (await admin.list(ROOT)).policies] == ["q"]
    await source.close()
    await lonely.close()


def test_views_keep_the_newest_of_each_root_and_not_more_than_they_may() -> None:
    views = Views(max_roots=2)
    texts = {root: to_json(policies(policy(), root=root)) for root in ("a", "b", "c")}
    for root in ("a", "b"):
        assert views.put(root, version_of(texts[root]), texts[root]) is not None
    first = views.get("a")
    assert views.put("a", version_of(texts["a"]), "not read again") is first
    views.put("c", version_of(texts["c"]), texts["c"])
    assert (views.get("b"), views.get("a")) == (None, first)
    newer = policies(policy(rules=(Rule(dimension=Dimension.RPM, limit=1),)), root="a")
    compiled = views.put("a", version_of(to_json(newer)), to_json(newer))
    assert compiled is not None
    assert compiled is views.get("a")
    assert compiled.version == version_of(to_json(newer)) == compile_view(newer).version
    assert [b.label for b in compiled.resolve(descriptor(), datetime.now(UTC)).buckets] == [
        "p1/rpm"
    ]
    assert views.put("a", "", "") is None
    assert views.get("a") is None
    assert views.learn(newer) is views.get("a")
    for wrong in ("", texts["b"]):
        with pytest.raises(StoreUnavailableError, match="no view"):
            views.put("a", "0" * 16, wrong)
