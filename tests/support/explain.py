"""A database, a Redis and alice, for the tests of `explain`."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from sqlalchemy import Connection, update

from extproc.core.buckets import Bucket
from extproc.core.explain import Asked, LimitReport, SubjectReport
from extproc.core.explain_rules import placed
from extproc.core.policies import (
    Dimension,
    LimitPolicy,
    Rule,
)
from extproc.core.policy_plan import EPOCH, PolicyDraft, PolicyFile
from extproc.core.reservations import (
    Admitted,
    Rejected,
    StoreVerdict,
)
from extproc.stores.batcher import RedisBatcher
from extproc.stores.explain import explain_subject
from extproc.stores.limit_admin import PolicyAdmin
from extproc.stores.limit_lookup import CachedLimitSource
from extproc.stores.policy_table import PolicyTable
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.sql import Database
from extproc.stores.tables import limit_policy
from extproc.stores.views import compile_view
from tests.support.engine import STRICT, Counters
from tests.support.policies import ROOT, descriptor
from tests.support.reservations import request

ALICE = descriptor(tenant=ROOT, user="alice", provider="openai")
# Tests move time in steps; what they do themselves takes less than this.
SLACK_MS = 5000


class World:
    """A database and a Redis as an administrator and workers use them."""

    def __init__(self, redis_url: str, sql_url: str, client: redis.Redis) -> None:
        self.client = client
        self.database = Database(url=sql_url, timeout_ms=10_000)
        self.batcher = RedisBatcher(url=redis_url, timeout_ms=5000)
        self.store = RedisReservationStore(self.batcher)
        self.admin = PolicyAdmin(self.batcher, PolicyTable(self.database))
        self.source = CachedLimitSource(self.batcher, PolicyTable(self.database))
        self.counters = Counters(client)

    async def apply(self, *of: LimitPolicy, root: str | None = ROOT) -> None:
        """Make policies true, from the beginning of time."""
        drafts = (PolicyDraft(policy=replace(p, root=root, effective_from=EPOCH)) for p in of)
        file = PolicyFile(root=root, drafts=tuple(drafts))
        await self.admin.apply(file, await self.admin.plan(file))

    async def buckets(self) -> list[tuple[str, str, Bucket]]:
        """What alice meets: root, version of the view, counter; the cache is warm then."""
        found = (await self.source.load(ROOT)).policies
        assert found is not None
        view = compile_view(found)
        met = view.resolve(ALICE, datetime.now(UTC))
        return [(root, view.version, bucket) for root, bucket in placed(met, ROOT)]

    async def ask(self, tokens: int = 100, *, rid: str | None = None, **more: Any) -> StoreVerdict:
        """A request of alice at her own root: all of ``tokens`` but 10 are output, exactly."""
        met = await self.buckets()
        plain = request(rid=rid, root=ROOT, input_tokens=10, cap=tokens - 10)
        return await self.store.reserve(
            replace(
                plain,
                version=met[0][1],
                buckets=tuple(bucket for root, _, bucket in met if root == ROOT),
                estimate=STRICT,
                **more,
            )
        )

    async def explain(self, tokens: int = 100, **more: Any) -> SubjectReport:
        """What would be said of the same request."""
        asked = Asked(tokens=tokens, output_tokens=tokens - 10, **more)
        return await explain_subject(self.batcher, self.database, descriptor=ALICE, asked=asked)

    async def limit(self, label: str, tokens: int = 100, **more: Any) -> LimitReport:
        """What is said of one limit."""
        report = await self.explain(tokens, **more)
        (found,) = [limit for limit in report.limits if limit.label == label]
        return found

    async def divide_versions(self, at: datetime) -> None:
        """Make version 1 of every policy end, and version 2 begin, at ``at``."""
        naive = at.replace(tzinfo=None)

        def move(connection: Connection) -> None:
            for version, start, end in ((1, naive - timedelta(1), naive), (2, naive, None)):
                where = limit_policy.c.version == version
                values = {"effective_from": start, "effective_to": end}
                connection.execute(update(limit_policy).where(where).values(**values))

        await self.database.run(move)

    async def close(self) -> None:
        """Close everything."""
        await self.source.close()
        await self.batcher.close()
        await self.database.close()


def rules(dimension: Dimension, limit: int, **more: Any) -> tuple[Rule, ...]:
    return (Rule(dimension=dimension, limit=limit, **more),)


def cycle() -> dict[str, Any]:
    start = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
    return {"cycle_start": start, "cycle_end": start + timedelta(days=3)}


async def exhaust(world: World, tokens: int = 100) -> Rejected:
    """Ask until refused."""
    for _ in range(50):
        verdict = await world.ask(tokens)
        if isinstance(verdict, Rejected):
            return verdict
        assert isinstance(verdict, Admitted), verdict
    raise AssertionError("nothing refuses")
