"""`explain` for a subject: what would decide about its next request, and what it would say now.

Only reads, and takes nothing. Counters are read by plain commands, one after the other, so under
traffic the numbers may be a moment apart; the scripts alone decide.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from extproc.core.buckets import Bucket, BucketKind, Unit
from extproc.core.errors import StoreUnavailableError
from extproc.core.explain import (
    Asked,
    Hold,
    LimitReport,
    Reading,
    RootHolds,
    RootState,
    SubjectReport,
    Unreadable,
)
from extproc.core.explain_rules import (
    MICRO,
    MINUTE_MS,
    limit_report,
    moment_of,
    never_fits,
    origins,
    period_left_ms,
    period_name,
    placed,
    refill_ms,
    refilled,
    when_all_fit,
    without_view,
)
from extproc.core.limits import ServiceLimit
from extproc.core.policies import Descriptor, PolicySet
from extproc.core.resolve import BLOCK_LABEL, resolve
from extproc.core.views import from_json, to_json, version_of
from extproc.stores import keys
from extproc.stores.bucket_codec import for_record
from extproc.stores.client import RedisClient
from extproc.stores.explain_lookups import SPOILT, read_now_ms, unreadable
from extproc.stores.explain_refusals import last_refusals
from extproc.stores.policy_table import PolicyTable
from extproc.stores.sql import Database
from extproc.stores.views import bucket_key

MOST_HOLDS = 20
MOST_REFUSALS = 10
# Entries of a sliding window: read so many at once, and so many pages at most.
_PAGE = 1000
_MOST_PAGES = 100


async def explain_subject(
    redis: RedisClient,
    database: Database,
    *,
    descriptor: Descriptor,
    asked: Asked | None = None,
    most_holds: int = MOST_HOLDS,
    most_refusals: int = MOST_REFUSALS,
) -> SubjectReport:
    """Which limits a request of ``descriptor`` meets, what they hold, and when ``asked`` would fit.

    Raises StoreUnavailableError.
    """
    root, asked = descriptor.root, asked or Asked()
    stored = await PolicyTable(database).load(root)
    cached = await _cached(redis, root)
    in_force = cached or _from_sql(stored)
    now_ms = await read_now_ms(redis)
    now = moment_of(now_ms)
    policies = in_force.policies or PolicySet(root=root, service=None)
    resolved = resolve(policies, descriptor, now, key=bucket_key)
    behind = origins(policies, descriptor, now, key=bucket_key)

    async def report(where: str, bucket: Bucket) -> LimitReport:
        amount = asked.amount(bucket.unit)
        reading = await read_counter(redis, bucket, amount=amount, now=now_ms)
        if bucket.unit is Unit.COST and bucket.enforced and bucket.refuses and not asked.is_priced:
            reading = replace(reading, fits_in_ms=None)
        return limit_report(
            where,
            bucket,
            origin=behind.get(bucket.label),
            overrides=policies.overrides,
            now=now,
            asked=amount,
            reading=reading,
        )

    # A block has a counter too, which never admits; it is told by itself.
    counters = [one for one in placed(resolved, root) if not one[1].label.startswith(BLOCK_LABEL)]
    limits = await asyncio.gather(*(report(*counter) for counter in counters))
    roots = tuple(dict.fromkeys([root, *resolved.across]))
    shown = {(where, for_record(where, one)): one.subject for where, one in counters}
    wait, binding = when_all_fit(in_force.state, resolved.blocked_by, limits, now)
    return SubjectReport(
        at=now,
        root=root,
        state=in_force.state,
        version=in_force.version,
        cached=cached is not None,
        sql_differs=cached is not None
        and (
            _from_sql(stored).state is not cached.state
            or (stored is not None and resolve(stored, descriptor, now, key=bucket_key) != resolved)
        ),
        subject=dict(descriptor.values),
        model=descriptor.requested_model,
        asked=asked,
        blocked_by=resolved.blocked_by,
        limits=tuple(limits),
        fits_in_ms=wait,
        fits_at=None if wait is None else now + timedelta(milliseconds=wait),
        binding=binding,
        holds=tuple([await read_holds(redis, each, now=now_ms, most=most_holds) for each in roots]),
        refusals=await last_refusals(
            redis, database, roots=roots, most=most_refusals, subjects=shown
        ),
    )


@dataclass(frozen=True, slots=True)
class _InForce:
    state: RootState
    policies: PolicySet | None
    version: str


def _from_sql(stored: PolicySet | None) -> _InForce:
    if stored is None:
        return _InForce(RootState.UNKNOWN, None, "")
    is_enabled = stored.service is None or stored.service.enabled
    state = RootState.ENABLED if is_enabled else RootState.DISABLED
    return _InForce(state, stored, "" if without_view(stored) else version_of(to_json(stored)))


async def _cached(redis: RedisClient, root: str) -> _InForce | None:
    """What the scripts would read; None when they would find it missing."""
    status, rpm, tpm, version, view = await redis.command(
        "HMGET", keys.config(root), "status", "rpm", "tpm", "version", "view"
    )
    if status is None:
        return None
    if status == "unknown":
        return _InForce(RootState.UNKNOWN, None, "")
    if bool(view) != bool(version):
        return None
    state = RootState.ENABLED if status == "1" else RootState.DISABLED
    try:
        if view:
            return _InForce(state, from_json(view), version)
        service = ServiceLimit(service_id=root, rpm=int(rpm), tpm=int(tpm), enabled=status == "1")
    except (TypeError, ValueError):  # of another release, or spoilt: workers ask SQL too
        return None
    return _InForce(state, PolicySet(root=root, service=service), "")


async def read_counter(redis: RedisClient, bucket: Bucket, *, amount: int, now: int) -> Reading:
    """What a counter holds at ``now``, and when ``amount`` would fit."""
    try:
        return await _read_counter(redis, bucket, amount=amount, now=now)
    except SPOILT as error:
        text = f"{bucket.key} cannot be read: {error}"
        raise StoreUnavailableError("redis", text, transient=False) from error


async def _read_counter(redis: RedisClient, bucket: Bucket, *, amount: int, now: int) -> Reading:
    match bucket.kind:
        case BucketKind.MINUTE:
            name = moment_of(now).strftime("%Y%m%d%H%M")
            used = int(await redis.command("GET", bucket.key + name) or 0)
            return _reading(bucket, amount, used=used, wait=MINUTE_MS - now % MINUTE_MS)
        case BucketKind.QUOTA:
            name = period_name(bucket.period, now, period_id=bucket.period_id)
            sums = await redis.command("HMGET", bucket.key + name, "used", "held")
            used, held = (int(value or 0) for value in sums)
            wait = period_left_ms(bucket, now)
            return _reading(bucket, amount, used=used, held=held, wait=wait)
        case BucketKind.BUCKET:
            return await _token_bucket(redis, bucket, amount=amount, now=now)
        case BucketKind.SLIDING:
            return await _sliding(redis, bucket, amount=amount, now=now)
        case BucketKind.SLOTS:
            return await _slots(redis, bucket, now=now)


def _reading(
    bucket: Bucket, amount: int, *, used: int, wait: int | None, held: int | None = None
) -> Reading:
    left = bucket.limit - used - (held or 0)
    return Reading(used, held, left, _fits_in(bucket, amount, left=left, wait=wait))


def _fits_in(bucket: Bucket, amount: int, *, left: int, wait: int | None) -> int | None:
    if never_fits(bucket, amount):
        return None
    return wait if amount > left else 0


async def _token_bucket(redis: RedisClient, bucket: Bucket, *, amount: int, now: int) -> Reading:
    level, stamp = await redis.command("HMGET", bucket.key, "level", "at")
    full = bucket.capacity * MICRO
    if level is not None and stamp is not None:
        level = refilled(int(level), stamp=int(stamp), now=now, bucket=bucket)
    else:
        level = full
    left = level // MICRO
    wait = refill_ms(level, amount, bucket=bucket)
    fits = _fits_in(bucket, amount, left=left, wait=wait)
    return Reading(bucket.capacity - left, None, left, fits)


async def _slots(redis: RedisClient, bucket: Bucket, *, now: int) -> Reading:
    used = await redis.command("ZCOUNT", bucket.key, f"({now}", "+inf")
    # So many leases have to end before one is free.
    behind = max(0, used - bucket.limit)
    found = await redis.command(
        "ZRANGEBYSCORE", bucket.key, f"({now}", "+inf", "WITHSCORES", "LIMIT", behind, 1
    )
    wait = max(1, int(float(found[1])) - now) if found else 0
    return _reading(bucket, 1, used=used, wait=wait)


async def _sliding(redis: RedisClient, bucket: Bucket, *, amount: int, now: int) -> Reading:
    start = now - bucket.window_ms
    if bucket.unit is Unit.REQUESTS:
        used = await redis.command("ZCOUNT", bucket.key, f"({start}", "+inf")
    else:
        used = int(await redis.command("HGET", keys.amounts(bucket.key), "sum") or 0)
        # What has left the window is still there until the next reserve.
        async for _, gone in _entries(redis, bucket, "-inf", str(start)):
            used -= gone
        used = max(0, used)
    missing = amount - (bucket.limit - used)
    if missing <= 0 or never_fits(bucket, amount):
        return _reading(bucket, amount, used=used, wait=0)
    # Beyond the entries that are looked at: when the whole window has passed.
    wait = bucket.window_ms
    async for score, each in _entries(redis, bucket, f"({start}", "+inf"):
        missing -= each
        if missing <= 0:
            wait = max(1, score + bucket.window_ms - now)
            break
    return _reading(bucket, amount, used=used, wait=wait)


async def _entries(
    redis: RedisClient, bucket: Bucket, least: str, most: str
) -> AsyncIterator[tuple[int, int]]:
    """Score and amount of the entries of a sliding window, the oldest first."""
    for page in range(_MOST_PAGES):
        found: list[str] = await redis.command(
            *("ZRANGEBYSCORE", bucket.key, least, most, "WITHSCORES"),
            *("LIMIT", page * _PAGE, _PAGE),
        )
        ids, scores = found[::2], found[1::2]
        if not ids:
            return
        amounts: list[Any] = [1] * len(ids)
        if bucket.unit is not Unit.REQUESTS:
            amounts = await redis.command("HMGET", keys.amounts(bucket.key), *ids)
        for score, amount in zip(scores, amounts, strict=True):
            yield int(float(score)), int(amount or 0)
        if len(ids) < _PAGE:
            return


async def read_holds(redis: RedisClient, root: str, *, now: int, most: int) -> RootHolds:
    """The open reservations of a root, those first that the reaper will meet first."""
    count = await redis.command("ZCARD", keys.pending(root))
    found: list[str] = []
    if most > 0:
        found = await redis.command("ZRANGE", keys.pending(root), 0, most - 1, "WITHSCORES")
    ids, deadlines = found[::2], found[1::2]
    records = await asyncio.gather(
        *(
            redis.command(
                "HMGET", keys.reservation(root, each), "request_id", "model", "reserved", "at"
            )
            for each in ids
        )
    )
    first = (
        _hold(root, each, deadline, record, now=now)
        for each, deadline, record in zip(ids, deadlines, records, strict=True)
    )
    return RootHolds(root=root, open=count, first=tuple(first))


def _hold(
    root: str, reservation_id: str, score: str, record: list[str | None], *, now: int
) -> Hold | Unreadable:
    request_id, model, reserved, at = record
    try:
        deadline = int(float(score))
        return Hold(
            reservation_id=reservation_id,
            request_id=request_id or "",
            model=model or "",
            reserved_tokens=int(reserved or 0),
            admitted_at=moment_of(int(at)) if at else None,
            age_ms=now - int(at) if at else None,
            deadline=moment_of(deadline),
            overdue=deadline <= now,
        )
    except SPOILT as error:
        return unreadable(root, reservation_id, error)
