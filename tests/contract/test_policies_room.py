"""More counters for one request than a call may hold: told when policies are applied, and a clear
503 where a view has them all the same."""

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from extproc.core.errors import StoreUnavailableError
from extproc.core.estimates import EstimateMode, EstimatePlan
from extproc.core.policies import PolicySet
from extproc.core.policy_plan import EPOCH, PolicyDraft, PolicyFile, PolicyPlanError
from extproc.core.reservations import Admitted
from extproc.core.reserving import Attempt, Reserver
from extproc.core.views import to_json, version_of
from extproc.envoy_io.refusals import Refusals
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.limit_admin import PolicyAdmin
from extproc.stores.limit_lookup import CachedLimitSource
from extproc.stores.migrate import upgrade
from extproc.stores.policy_table import PolicyTable
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.sql import Database
from extproc.stores.views import Views
from tests.support.fakes import RecordingTelemetry
from tests.support.policies import ROOT, descriptor, policies, policy
from tests.support.reservations import request

CONFIG = keys.config(ROOT)


def many(count: int) -> PolicySet:
    return policies(*(policy(f"p{i}", root=ROOT) for i in range(count)))


def cache(client: redis.Redis, view: PolicySet) -> None:
    """As an older release, or a hand, left it."""
    text = to_json(view)
    client.hset(CONFIG, mapping={"status": "1", "version": version_of(text), "view": text})


class Bench:
    """A worker's reserver over a real Redis and an empty database."""

    def __init__(self, batcher: RedisBatcher, database: Database) -> None:
        self.views = Views()
        self.reserver = Reserver(
            store=RedisReservationStore(batcher),
            limits=CachedLimitSource(batcher, PolicyTable(database)),
            views=self.views,
            estimate=EstimatePlan(mode=EstimateMode.QUANTILE),
            clock=lambda: datetime.now(UTC),
        )

    async def ask(self, **more: Any) -> object:
        plain = replace(request(root=ROOT), **more)
        return await self.reserver.reserve(Attempt(plain, descriptor()))


@pytest.fixture
async def bench(batcher: RedisBatcher, sqlite_url: str) -> AsyncIterator[Bench]:
    upgrade(sqlite_url)
    database = Database(url=sqlite_url)
    yield Bench(batcher, database)
    await database.close()


async def test_a_view_with_too_many_limits_is_a_503_that_names_root_and_number(
    bench: Bench, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    cache(redis_client, many(70))
    with pytest.raises(StoreUnavailableError) as caught:
        await bench.ask()
    telemetry = RecordingTelemetry()
    refusals = Refusals(telemetry, fails_open=True)
    with caplog.at_level(logging.ERROR):
        answer = refusals.unavailable(
            caught.value, path="/v1/chat/completions", service_id=ROOT, request_id="r"
        )
    assert answer.immediate_response.status.code == 503
    assert telemetry.lines == ["refused policies_unavailable"]
    (line,) = caplog.records
    assert f"70 limits for one request at {ROOT}; at most 64" in str(vars(line)["reason"])
    assert not redis_client.keys("rate:*")
    assert not redis_client.keys("resv:*")


async def test_the_request_after_the_mending_is_decided(
    bench: Bench, redis_client: redis.Redis
) -> None:
    cache(redis_client, many(70))
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            await bench.ask()
    known = bench.views.get(ROOT)
    assert known is not None  # compared, and in force: not compiled anew for every request
    cache(redis_client, many(3))
    verdict = await bench.ask()
    assert isinstance(verdict, Admitted)
    assert len(verdict.buckets) == 3
    cache(redis_client, many(65))
    with pytest.raises(StoreUnavailableError):
        await bench.ask()
    redis_client.hset(CONFIG, mapping={"status": "1", "rpm": "5", "tpm": "500"})
    redis_client.hdel(CONFIG, "version", "view")
    assert isinstance(await bench.ask(), Admitted)


async def test_a_repeated_call_gets_its_first_answer_whatever_the_view_has_become(
    bench: Bench, redis_client: redis.Redis
) -> None:
    cache(redis_client, many(3))
    assert isinstance(await bench.ask(reservation_id="r1", owner="me"), Admitted)
    cache(redis_client, many(70))
    bench.views.learn(many(70))
    assert isinstance(await bench.ask(reservation_id="r1", owner="me"), Admitted)


async def test_as_many_as_there_is_room_for_are_decided(
    bench: Bench, redis_client: redis.Redis
) -> None:
    cache(redis_client, many(64))
    verdict = await bench.ask()
    assert isinstance(verdict, Admitted)
    assert len(verdict.buckets) == 64


def file(count: int, *, root: str | None, **given: Any) -> PolicyFile:
    named = {"root": root, "effective_from": EPOCH} | given
    prefix = root or "all"
    drafts = (PolicyDraft(policy=policy(f"{prefix}-{i}", **named)) for i in range(count))
    return PolicyFile(root=root, drafts=tuple(drafts))


async def apply(admin: PolicyAdmin, wanted: PolicyFile) -> None:
    await admin.apply(wanted, await admin.plan(wanted))


async def test_policies_that_leave_no_room_are_not_applied(
    batcher: RedisBatcher, database: Database
) -> None:
    admin = PolicyAdmin(batcher, PolicyTable(database))
    await apply(admin, file(30, root=None))
    await apply(admin, file(31, root="acme"))
    for wanted, place in (
        (file(32, root="acme"), "root acme"),
        (file(31, root=None), "root acme"),  # although the file is not about it
        (file(62, root="third"), "root third"),
        (file(65, root=None, across_roots=True, value="alice"), "root across:user:alice"),
    ):
        with pytest.raises(PolicyPlanError, match=f"at {place}, and at most 6[14] have room"):
            await admin.plan(wanted)
        with pytest.raises(PolicyPlanError):
            await admin.apply(wanted, [*await admin.plan(file(1, root="x"))])
    await apply(admin, file(31, root="third"))
    assert (await admin.check()).crowds == ()
