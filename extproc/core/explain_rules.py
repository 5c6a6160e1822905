"""How `explain` comes to its answers: the arithmetic of the scripts, without taking anything.

The scripts decide (lua/include: look.lua, counters.lua, cost.lua, periods.lua); here it only tells
people. Times are milliseconds of Redis' clock.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from extproc.core.buckets import Bucket, BucketKind, Period
from extproc.core.explain import LimitReport, Reading, RootState
from extproc.core.policies import (
    SERVICE_LIMIT,
    Block,
    Descriptor,
    Dimension,
    LimitPolicy,
    Mode,
    OnExceed,
    Override,
    PolicySet,
    Rule,
    Scope,
)
from extproc.core.resolve import KeyBuilder, Resolved, resolve

MINUTE_MS = 60_000
# Token buckets keep millionths.
MICRO = 1_000_000
_MOST_MONEY = 2**52


def moment_of(milliseconds: int) -> datetime:
    """Unix milliseconds as UTC."""
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)


def never_fits(bucket: Bucket, amount: int) -> bool:
    """Whether ``amount`` is too much even for an empty counter."""
    size = bucket.capacity if bucket.kind is BucketKind.BUCKET else bucket.limit
    return bucket.limit == 0 or amount > size


def refilled(level: int, *, stamp: int, now: int, bucket: Bucket) -> int:
    """The level of a token bucket (millionths) at ``now``, known at ``stamp``."""
    gained = max(0, now - stamp) * bucket.refill_per_minute * MICRO // MINUTE_MS
    return min(bucket.capacity * MICRO, level + gained)


def refill_ms(level: int, amount: int, *, bucket: Bucket) -> int | None:
    """How long until a token bucket holds ``amount``; None: for ever."""
    missing = amount * MICRO - level
    if missing <= 0:
        return 0
    if bucket.refill_per_minute == 0:
        return None
    return -(-missing * MINUTE_MS // (bucket.refill_per_minute * MICRO))


def period_name(period: Period, now: int, *, period_id: str = "") -> str:
    """The end of a quota's key at ``now``."""
    match period:
        case Period.DAY:
            return moment_of(now).strftime("%Y%m%d")
        case Period.MONTH:
            return moment_of(now).strftime("%Y%m")
        case _:
            return period_id


def period_left_ms(bucket: Bucket, now: int) -> int:
    """How long a quota's period lasts still."""
    today = moment_of(now).replace(hour=0, minute=0, second=0, microsecond=0)
    match bucket.period:
        case Period.DAY:
            ends = today + timedelta(days=1)
        case Period.MONTH:
            ends = (today.replace(day=1) + timedelta(days=31)).replace(day=1)
        case _:
            return max(0, bucket.period_end_ms - now)
    return (ends - moment_of(now)) // timedelta(milliseconds=1)


def cost_of(input_tokens: int, output_tokens: int, prices: tuple[int, int]) -> int:
    """Micro-USD of tokens at prices for a million, each class rounded up."""
    pairs = zip((input_tokens, output_tokens), prices, strict=True)
    return min(_MOST_MONEY, sum(-(-tokens * price // MICRO) for tokens, price in pairs))


def origins(
    policies: PolicySet, descriptor: Descriptor, now: datetime, *, key: KeyBuilder
) -> dict[str, tuple[LimitPolicy, Rule]]:
    """Which policy, and which rule of it, is behind each label that the request meets."""
    found: dict[str, tuple[LimitPolicy, Rule]] = {}
    for policy in sorted(policies.policies, key=lambda policy: policy.version):
        alone = PolicySet(root=policies.root, service=None, policies=(policy,))
        met = resolve(alone, descriptor, now, key=key)
        labels = {bucket.label for _, bucket in placed(met, policies.root)}
        for rule in policy.rules:
            if (label := f"{policy.name}/{rule.dimension}") in labels:
                found[label] = policy, rule
    return found


def placed(resolved: Resolved, root: str) -> Iterator[tuple[str, Bucket]]:
    """All counters of a request with the root that each is kept at, in the order of reserving."""
    for bucket in resolved.buckets:
        yield root, bucket
    for other, buckets in resolved.across.items():
        for bucket in buckets:
            yield other, bucket


def limit_report(
    root: str,
    bucket: Bucket,
    *,
    origin: tuple[LimitPolicy, Rule] | None,
    overrides: Iterable[Override],
    now: datetime,
    asked: int,
    reading: Reading,
) -> LimitReport:
    """Put together what is known of one limit. ``origin`` is None for a service limit."""
    policy, rule = origin if origin is not None else (None, None)
    name, _, dimension = bucket.label.partition("/")
    until = None
    if rule is not None and rule.limit != bucket.limit:
        until = min(
            (
                each.until
                for each in overrides
                if (each.policy, each.dimension, each.limit) == (name, rule.dimension, bucket.limit)
                and now < each.until
            ),
            default=None,
        )
    return LimitReport(
        label=bucket.label,
        root=root,
        policy=name,
        version=policy.version if policy else None,
        scope=policy.scope if policy else Scope.SERVICE,
        value=policy.value if policy else root,
        subject=bucket.subject,
        model=policy.model if policy else "*",
        dimension=Dimension(dimension),
        algorithm=bucket.kind,
        period=bucket.period,
        window_seconds=bucket.window_ms // 1000 or None,
        burst=bucket.burst,
        mode=policy.mode if policy else Mode.ENFORCE,
        on_exceed=policy.on_exceed if policy else OnExceed.REFUSE,
        refuses=bucket.enforced and bucket.refuses,
        unit=bucket.unit,
        limit=bucket.limit,
        policy_limit=rule.limit if rule else bucket.limit,
        override_until=until,
        used=reading.used,
        held=reading.held,
        remaining=reading.remaining,
        asked=asked,
        fits_in_ms=reading.fits_in_ms,
    )


def when_all_fit(
    state: RootState, block: Block | None, limits: Iterable[LimitReport], now: datetime
) -> tuple[int | None, str | None]:
    """How long until nothing refuses (None: never), and what lasts longest (None: fits now)."""
    if state is not RootState.ENABLED:
        return None, state.value
    waits: list[tuple[int | None, str]] = [
        (limit.fits_in_ms, limit.label) for limit in limits if limit.refuses
    ]
    if block is not None:
        ends = block.until
        left = None if ends is None else -((now - ends) // timedelta(milliseconds=1))
        waits.insert(0, (left, "block"))
    for wait, label in waits:
        if wait is None:
            return None, label
    longest, label = max(((w or 0, name) for w, name in waits), key=lambda w: w[0], default=(0, ""))
    return longest, label if longest > 0 else None


def policy_word(name: str, version: int | None) -> str:
    """A policy as it is named to people."""
    if name == SERVICE_LIMIT:
        return name
    return f"{name} v{version}" if version is not None else name


def without_view(policies: PolicySet) -> bool:
    """Whether a root is a simple one, whose cached limits have no version."""
    return not (policies.policies or policies.blocks)
