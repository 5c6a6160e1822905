"""Views in Redis that are not understood here: of a newer release in a rolling upgrade, or spoilt.

SQL decides then, and what the newer release has cached stays.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
import redis
from sqlalchemy import event

from extproc.core.estimates import EstimateMode, EstimatePlan
from extproc.core.policies import Dimension, Rule
from extproc.core.policy_plan import EPOCH, PolicyDraft, PolicyFile
from extproc.core.reservations import Admitted, Rejected
from extproc.core.reserving import Attempt, Reserver
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.limit_admin import PolicyAdmin
from extproc.stores.limit_lookup import CachedLimitSource
from extproc.stores.limit_table import LimitTable
from extproc.stores.policy_table import PolicyTable
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.sql import Database
from extproc.stores.views import Views
from tests.support.policies import ROOT, descriptor, policy
from tests.support.reservations import request

CONFIG = keys.config(ROOT)
FOREIGN = {
    "newer": '{"format":99,"root":"acme"}',
    "cut off": '{"format":1,"root":"ac',
    "nested": "[" * 20_000,
    "nested deeper": '{"a":' * 100_000,
    "no text": b"\xff\xfe\x00",
    "of another root": '{"format":1,"root":"other","service":null,"policies":[],"blocks":[],'
    '"overrides":[]}',
}


@dataclass
class Worker:
    """What `serve` has of limits, over a real Redis and a real database."""

    source: CachedLimitSource
    reserver: Reserver
    admin: PolicyAdmin
    selects: list[str]

    async def apply(self, limit: int) -> None:
        """A limit of requests a minute for each user."""
        rules = (Rule(dimension=Dimension.RPM, limit=limit),)
        one = policy("p", root=ROOT, rules=rules, effective_from=EPOCH)
        file = PolicyFile(root=ROOT, drafts=(PolicyDraft(policy=one),))
        await self.admin.apply(file, await self.admin.plan(file))

    async def ask(self) -> Any:
        return await self.reserver.reserve(Attempt(request(root=ROOT), descriptor()))


@pytest.fixture
async def worker(batcher: RedisBatcher, database: Database) -> AsyncIterator[Worker]:
    table = PolicyTable(database)
    source = CachedLimitSource(batcher, table)
    reserver = Reserver(
        store=RedisReservationStore(batcher),
        limits=source,
        views=Views(),
        estimate=EstimatePlan(mode=EstimateMode.QUANTILE),
        clock=lambda: datetime.now(UTC),
    )
    selects: list[str] = []

    def note(*args: object) -> None:
        if "FROM limit_policy" in str(args[2]):
            selects.append(str(args[2]))

    event.listen(database.engine, "before_cursor_execute", note)
    yield Worker(source, reserver, PolicyAdmin(batcher, table), selects)
    await source.close()


@pytest.mark.parametrize("view", FOREIGN.values(), ids=FOREIGN)
async def test_sql_decides_and_the_cache_stays_as_it_was(
    worker: Worker,
    redis_client: redis.Redis,
    view: str | bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await worker.apply(1000)
    assert isinstance(await worker.ask(), Admitted)
    redis_client.hset(CONFIG, mapping={"version": "f" * 16, "view": view})
    life = redis_client.pttl(CONFIG)
    before = redis_client.dump(CONFIG) if isinstance(view, str) else None
    with caplog.at_level(logging.WARNING, "tokenweir.limits"):
        verdict = await worker.ask()
    assert isinstance(verdict, Admitted)
    assert [bucket.label for bucket in verdict.buckets] == ["p/rpm"]
    assert {record.getMessage() for record in caplog.records} == {"view not understood"}
    assert before is None or redis_client.dump(CONFIG) == before
    assert 0 < redis_client.pttl(CONFIG) <= life

    # A storm of requests does not become a storm of SELECTs.
    worker.selects.clear()
    started = time.monotonic()
    for _ in range(50):
        assert isinstance(await worker.ask(), Admitted)
    assert len(worker.selects) <= 2 + (time.monotonic() - started)

    # An administrator's change is seen by the next request here too.
    await worker.apply(0)
    assert isinstance(await worker.ask(), Rejected)


@pytest.mark.parametrize("knows_it", [True, False], ids=["same worker", "new worker"])
@pytest.mark.parametrize("simple", [True, False], ids=["simple limits too", "only policies"])
@pytest.mark.parametrize(
    "spoilt", [{"view": ""}, {"version": ""}, {"view": None}, {"version": None}], ids=str
)
async def test_half_of_a_view_is_none(  # noqa: PLR0917 - fixtures
    worker: Worker,
    database: Database,
    redis_client: redis.Redis,
    spoilt: dict[str, str | None],
    simple: bool,
    knows_it: bool,
) -> None:
    if simple:
        await LimitTable(database).put(ROOT, rpm=1000, tpm=1_000_000)
    await worker.apply(0)
    assert isinstance(await worker.ask(), Rejected)
    await worker.apply(1000)
    if knows_it:
        assert isinstance(await worker.ask(), Admitted)
    else:
        await worker.source.load(ROOT)
    for field, value in spoilt.items():
        if value is None:
            redis_client.hdel(CONFIG, field)
        else:
            redis_client.hset(CONFIG, field, value)
    for _ in range(2):
        verdict = await worker.ask()
        assert isinstance(verdict, Admitted)
        assert "p/rpm" in [bucket.label for bucket in verdict.buckets]


async def test_a_value_that_is_no_text_does_not_spoil_the_replies_beside_it(
    batcher: RedisBatcher, redis_client: redis.Redis
) -> None:
    redis_client.set("binary", b"\xff")
    redis_client.set("text", "x")
    found = await asyncio.gather(
        *(batcher.command("GET", name) for name in ("text", "binary", "text"))
    )
    assert (found[0], found[2]) == ("x", "x")
