"""From policies to counters: which buckets one request meets.

A policy is found by its scope's value, so the work grows with the policies that apply, not with all
there are. Nothing here asks a clock or a store: the caller says what time it is, and how a key is
spelt.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from extproc.core.buckets import Bucket, BucketKind, Period, Unit
from extproc.core.ids import ACROSS_PREFIX, MAX_ID_LENGTH, key_digest, key_word
from extproc.core.policies import (
    ANY,
    EACH,
    SERVICE_LIMIT,
    Algorithm,
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

# (kind, root, suffix) -> the complete key without the period. A suffix has the characters of an id.
KeyBuilder = Callable[[BucketKind, str, str], str]

# What the counters of ``service_limit`` are called, for a KeyBuilder.
SERVICE_RPM = f"{SERVICE_LIMIT}.{Dimension.RPM}"
SERVICE_TPM = f"{SERVICE_LIMIT}.{Dimension.TOTAL_TPM}"

# Begins the label of what a block refuses; no policy's name has a slash.
BLOCK_LABEL = "block/"

_MAX_SHOWN_CHARACTERS = 64
_FOR_EVER = datetime.max.replace(tzinfo=UTC)

_KINDS = {
    Algorithm.MINUTE: BucketKind.MINUTE,
    Algorithm.SLIDING: BucketKind.SLIDING,
    Algorithm.BUCKET: BucketKind.BUCKET,
}
_RATE_UNITS = {
    Dimension.RPM: Unit.REQUESTS,
    Dimension.INPUT_TPM: Unit.INPUT,
    Dimension.OUTPUT_TPM: Unit.OUTPUT,
    Dimension.TOTAL_TPM: Unit.TOTAL,
}
_QUOTAS = {
    Dimension.TOKENS_PER_DAY: (Unit.TOTAL, Period.DAY),
    Dimension.TOKENS_PER_MONTH: (Unit.TOTAL, Period.MONTH),
    Dimension.COST_MICROS_PER_DAY: (Unit.COST, Period.DAY),
    Dimension.COST_MICROS_PER_MONTH: (Unit.COST, Period.MONTH),
    Dimension.COST_MICROS_PER_CYCLE: (Unit.COST, Period.CYCLE),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What one request meets. The same policies give the same order, however they were stored.

    ``across`` holds the buckets of other Redis slots by their root, in the order in which they are
    to be reserved, after ``buckets``.
    """

    buckets: tuple[Bucket, ...]
    across: Mapping[str, tuple[Bucket, ...]]
    blocked_by: Block | None = None


class PolicyIndex:
    """A PolicySet made ready for many requests."""

    def __init__(self, policies: PolicySet, *, key: KeyBuilder) -> None:
        self.policies = policies
        self._key = key
        self._by_value: dict[tuple[Scope, str], list[LimitPolicy]] = defaultdict(list)
        for policy in policies.policies:
            if policy.root in (None, policies.root):
                self._by_value[policy.scope, policy.value].append(policy)
        self._blocks: dict[tuple[Scope, str], list[Block]] = defaultdict(list)
        for block in policies.blocks:
            if block.root in (None, policies.root):
                self._blocks[block.scope, block.value].append(block)
        self._overrides: dict[tuple[str, Dimension], list[Override]] = defaultdict(list)
        for override in policies.overrides:
            self._overrides[override.policy, override.dimension].append(override)
        self._service = tuple(self._service_buckets())

    def resolve(self, descriptor: Descriptor, now: datetime) -> Resolved:
        """The buckets of one request at ``now`` (with a time zone)."""
        own: list[Bucket] = list(self._service)
        across: dict[str, list[Bucket]] = defaultdict(list)
        values = _values(descriptor)
        for policy in _newest(self._matching(values, descriptor.requested_model, now)):
            value = values[policy.scope]
            root = self.policies.root
            if policy.across_roots:
                root = across_root(policy.scope, ANY if policy.value == ANY else value)
            target = across[root] if policy.across_roots else own
            for rule in policy.rules:
                bucket = self._bucket(policy, rule, root=root, value=value, now=now)
                if bucket is not None:
                    target.append(bucket)
        block = self._block(values, now)
        if block is not None:
            # A counter that admits nothing: so a block too is refused by the script, which compares
            # the view's version, and never by an old view.
            own.append(self._block_bucket(block))
        return Resolved(
            buckets=_in_order(own),
            across={root: _in_order(across[root]) for root in sorted(across) if across[root]},
            blocked_by=block,
        )

    def _block_bucket(self, block: Block) -> Bucket:
        return Bucket(
            label=f"{BLOCK_LABEL}{block.scope}",
            kind=BucketKind.MINUTE,
            unit=Unit.REQUESTS,
            key=self._key(BucketKind.MINUTE, self.policies.root, f"block.{block.scope}"),
            limit=0,
            subject=f"{block.scope}:{_shown(block.value)}",
        )

    def _matching(
        self, values: Mapping[Scope, str], model: str, now: datetime
    ) -> Iterator[LimitPolicy]:
        for scope, value in values.items():
            for wanted in (value, ANY, EACH):
                for policy in self._by_value.get((scope, wanted), ()):
                    if policy.is_in_force(now) and fnmatchcase(model, policy.model):
                        yield policy

    def _block(self, values: Mapping[Scope, str], now: datetime) -> Block | None:
        """The block that lasts longest."""
        standing = [
            block
            for item in values.items()
            for block in self._blocks.get(item, ())
            if block.until is None or now < block.until
        ]
        return min(
            standing,
            key=lambda b: (-(b.until or _FOR_EVER).timestamp(), b.scope, b.value, b.reason),
            default=None,
        )

    def _limit(self, policy: LimitPolicy, rule: Rule, now: datetime) -> int:
        standing = [
            override
            for override in self._overrides.get((policy.name, rule.dimension), ())
            if now < override.until
        ]
        if not standing:
            return rule.limit
        return min(standing, key=lambda o: (o.until, o.limit)).limit

    def _bucket(
        self, policy: LimitPolicy, rule: Rule, *, root: str, value: str, now: datetime
    ) -> Bucket | None:
        kind, unit, period = _shape(rule)
        period_id, period_end_ms = "", 0
        if rule.cycle_start is not None and rule.cycle_end is not None:
            if not rule.cycle_start <= now < rule.cycle_end:
                return None
            period_id = rule.cycle_start.astimezone(UTC).strftime("%Y%m%dT%H%M%S")
            period_end_ms = round(rule.cycle_end.timestamp() * 1000)
        limit = self._limit(policy, rule, now)
        is_bucket = kind is BucketKind.BUCKET
        suffix = f"{policy.name}.{rule.dimension}.{policy.scope}"
        subject = f"{policy.scope}:{ANY}"
        if policy.value != ANY:
            suffix += f":{key_word(value)}"
            subject = f"{policy.scope}:{_shown(value)}"
        return Bucket(
            label=f"{policy.name}/{rule.dimension}",
            kind=kind,
            unit=unit,
            key=self._key(kind, root, suffix),
            limit=limit,
            # A limit of 0 refuses everything, a burst included.
            capacity=min(limit, 1) * (rule.burst or limit) if is_bucket else 0,
            refill_per_minute=limit if is_bucket else 0,
            window_ms=rule.window_seconds * 1000 if kind is BucketKind.SLIDING else 0,
            period=period,
            period_id=period_id,
            period_end_ms=period_end_ms,
            enforced=policy.mode is Mode.ENFORCE,
            refuses=policy.on_exceed is OnExceed.REFUSE,
            subject=subject,
        )

    def _service_buckets(self) -> Iterator[Bucket]:
        service, root = self.policies.service, self.policies.root
        if service is None:
            return
        for suffix, unit, limit in (
            (SERVICE_RPM, Unit.REQUESTS, service.rpm),
            (SERVICE_TPM, Unit.TOTAL, service.tpm),
        ):
            yield Bucket(
                label=suffix.replace(".", "/"),
                kind=BucketKind.MINUTE,
                unit=unit,
                key=self._key(BucketKind.MINUTE, root, suffix),
                limit=limit,
                subject=f"{Scope.SERVICE}:{root}",
            )


def resolve(
    policies: PolicySet, descriptor: Descriptor, now: datetime, *, key: KeyBuilder
) -> Resolved:
    """The same for one request; who has many keeps the PolicyIndex."""
    return PolicyIndex(policies, key=key).resolve(descriptor, now)


def across_root(scope: Scope, value: str) -> str:
    """The root of a policy across roots: an id, whatever ``value`` is."""
    word = ":any" if value == ANY else key_word(value)
    if len(ACROSS_PREFIX) + len(scope) + 1 + len(word) > MAX_ID_LENGTH:
        word = key_digest(value)
    return f"{ACROSS_PREFIX}{scope}:{word}"


def _values(descriptor: Descriptor) -> dict[Scope, str]:
    values = {scope: value for scope, value in descriptor.values.items() if value}
    if descriptor.requested_model:
        values.setdefault(Scope.MODEL, descriptor.requested_model)
    return values


def _newest(policies: Iterable[LimitPolicy]) -> Iterable[LimitPolicy]:
    """One version of each: its counters would else be asked twice."""
    newest: dict[str, LimitPolicy] = {}
    for policy in policies:
        known = newest.get(policy.name)
        if known is None or policy.version > known.version:
            newest[policy.name] = policy
    return newest.values()


def _shape(rule: Rule) -> tuple[BucketKind, Unit, Period]:
    if rule.dimension is Dimension.CONCURRENT:
        return BucketKind.SLOTS, Unit.SLOT, Period.NONE
    if rule.dimension in _QUOTAS:
        return BucketKind.QUOTA, *_QUOTAS[rule.dimension]
    return _KINDS[rule.algorithm], _RATE_UNITS[rule.dimension], Period.NONE


def _in_order(buckets: list[Bucket]) -> tuple[Bucket, ...]:
    return tuple(sorted(buckets, key=lambda bucket: (bucket.label, bucket.key)))


def _shown(value: str) -> str:
    text = value[:_MAX_SHOWN_CHARACTERS]
    return "".join(character if character.isprintable() else "?" for character in text)
