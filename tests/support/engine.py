"""Policy roots in tests: counters, reserve calls that meet them, and the state they leave."""

from dataclasses import dataclass, replace
from typing import Any

import redis

from extproc.core.buckets import Bucket, BucketKind, Period, Unit
from extproc.core.estimates import EstimateMode, EstimatePlan
from extproc.core.reservations import Admitted, Rejected, ReserveRequest
from extproc.stores import keys
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.reservations import ROOT, request

VERSION = "00112233aabbccdd"


def minute(name: str, unit: Unit, limit: int, *, root: str = ROOT, **more: Any) -> Bucket:
    """A counter of the UTC minute."""
    key = keys.minute_prefix(root, name)
    return Bucket(label=name, kind=BucketKind.MINUTE, unit=unit, key=key, limit=limit, **more)


def sliding(
    name: str, unit: Unit, limit: int, *, window_ms: int, root: str = ROOT, **more: Any
) -> Bucket:
    """An exact sliding window."""
    return Bucket(
        label=name,
        kind=BucketKind.SLIDING,
        unit=unit,
        key=keys.window(root, name),
        limit=limit,
        window_ms=window_ms,
        **more,
    )


def token_bucket(
    name: str, unit: Unit, per_minute: int, *, capacity: int, root: str = ROOT, **more: Any
) -> Bucket:
    """A token bucket."""
    return Bucket(
        label=name,
        kind=BucketKind.BUCKET,
        unit=unit,
        key=keys.bucket(root, name),
        limit=per_minute,
        capacity=capacity,
        refill_per_minute=per_minute,
        **more,
    )


def slots(name: str, limit: int, *, root: str = ROOT, **more: Any) -> Bucket:
    """A limit of concurrency."""
    return Bucket(
        label=name,
        kind=BucketKind.SLOTS,
        unit=Unit.SLOT,
        key=keys.slots(root, name),
        limit=limit,
        **more,
    )


def quota(
    name: str, unit: Unit, limit: int, *, period: Period = Period.DAY, root: str = ROOT, **more: Any
) -> Bucket:
    """A quota of a period."""
    return Bucket(
        label=name,
        kind=BucketKind.QUOTA,
        unit=unit,
        key=keys.quota_prefix(root, name),
        limit=limit,
        period=period,
        **more,
    )


def asking(*buckets: Bucket, **values: Any) -> ReserveRequest:
    """A reserve call that meets ``buckets``; what ``request`` does not know goes to the call."""
    own = {"estimate", "input_price", "output_price", "owner", "request_hash", "is_pinned"}
    extra = {name: values.pop(name) for name in own & values.keys()}
    version = values.pop("version", VERSION)
    return replace(request(**values), version=version, buckets=buckets, **extra)


async def admit(store: RedisReservationStore, *buckets: Bucket, **values: Any) -> Admitted:
    """Reserve, which must succeed. By default 10 input tokens and 100 expected ones."""
    verdict = await store.reserve(asking(*buckets, **values))
    assert isinstance(verdict, Admitted), verdict
    return verdict


async def reject(store: RedisReservationStore, *buckets: Bucket, **values: Any) -> Rejected:
    """Reserve, which must be refused."""
    verdict = await store.reserve(asking(*buckets, **values))
    assert isinstance(verdict, Rejected), verdict
    return verdict


STRICT = EstimatePlan(mode=EstimateMode.STRICT)


def cache_view(client: redis.Redis, *, root: str = ROOT, version: str = VERSION) -> None:
    """Put a view into the cache, as a backfill would."""
    client.hset(keys.config(root), mapping={"status": 1, "version": version, "view": '{"view":1}'})
    client.expire(keys.config(root), 600)


@dataclass
class Counters:
    """Reads (and shifts in time) the counters of policies."""

    client: redis.Redis

    def state(self) -> dict[str, Any]:
        """Every counter and its content; what only exists to be forgotten is left out."""
        found: dict[str, Any] = {}
        for key in sorted(self.client.scan_iter()):
            kind = self.client.type(key)
            if key.startswith(("rate:", "window:", "amounts:", "slots:", "bucket:", "quota:")):
                if kind == "string":
                    found[key] = self.client.get(key)
                elif kind == "hash":
                    found[key] = self.client.hgetall(key)
                else:
                    found[key] = self.client.zrange(key, 0, -1)
        return found

    def quota(self, bucket: Bucket, period: str) -> tuple[int, int] | None:
        """Used and held in a period; None where there is no key."""
        found: Any = self.client.hmget(bucket.key + period, "used", "held")
        if found == [None, None]:
            return None
        return int(found[0] or 0), int(found[1] or 0)

    def without_ttl(self) -> list[str]:
        """Keys that would stay for ever."""
        names = [key for key in self.client.scan_iter() if self.client.ttl(key) == -1]
        return [key for key in names if key not in (keys.ROOTS, keys.ROOTS_ACROSS)]

    def age(self, key: str, milliseconds: int) -> None:
        """Make what ``key`` (a sliding window, slots, a token bucket) holds so much older."""
        if self.client.type(key) == "hash":
            self.client.hincrby(key, "at", -milliseconds)
            return
        entries: Any = self.client.zrange(key, 0, -1, withscores=True)
        for member, score in entries:
            self.client.zadd(key, {member: score - milliseconds})


def twelve_limits(*, limit: int = 2**40) -> tuple[Bucket, ...]:
    """Twelve limits over five scopes, as a company may have them."""
    return (
        minute("service_limit.rpm", Unit.REQUESTS, limit),
        minute("service_limit.total_tpm", Unit.TOTAL, limit),
        minute("org.total_tpm.organization:acme", Unit.TOTAL, limit),
        quota("org.cost_micros_per_month.organization:acme", Unit.COST, limit, period=Period.MONTH),
        minute("dep.rpm.department:research", Unit.REQUESTS, limit),
        quota("dep.tokens_per_day.department:research", Unit.TOTAL, limit),
        sliding("user.rpm.user:alice", Unit.REQUESTS, limit, window_ms=60_000),
        token_bucket("user.total_tpm.user:alice", Unit.TOTAL, limit, capacity=limit),
        quota("user.tokens_per_day.user:alice", Unit.TOTAL, limit),
        slots("agent.concurrent.agent:crawler", limit),
        minute("model.input_tpm.model:gpt-4o", Unit.INPUT, limit),
        minute("model.output_tpm.model:gpt-4o", Unit.OUTPUT, limit),
    )
