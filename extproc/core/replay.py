"""What proposed policies would have refused of the requests that the ledger knows.

Each request is decided in the order of admission, with the algorithms of the counters in plain
integers. What it approximates: a request takes what it was settled to, at its admission, while a
live decision reserves an estimate that is mostly larger; a slot is held from admission to
settlement; a refused request takes nothing and its client does not ask again; requests that were
refused when they came are not in the ledger.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from extproc.core.buckets import Bucket, BucketKind
from extproc.core.counted import buckets_of, hidden_scopes, period_of, taken
from extproc.core.ledger_rows import LedgerRow, reservations
from extproc.core.policies import LimitPolicy, PolicySet, Scope
from extproc.core.resolve import PolicyIndex

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request that would have been refused, and by which rules ("policy/dimension")."""

    row: LedgerRow
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTotal:
    """What one rule would have exceeded for one subject. ``refuses`` is False for a rule that only
    records, or shadows. A request that several rules refuse counts in each."""

    label: str
    subject: str
    refuses: bool
    requests: int
    tokens: int
    cost_micros: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The result. ``refusals`` are the first ones. ``unseen`` requests had a value of a scope that
    the ledger does not tell, and that the policies ask for."""

    requests: int
    refused: int
    refused_cost_micros: int
    rules: tuple[RuleTotal, ...]
    refusals: tuple[Refusal, ...]
    unseen: Mapping[Scope, int]


def replay(
    rows: Iterable[LedgerRow], policies: Iterable[LimitPolicy], *, most_refusals: int = 100
) -> Replay:
    """Decide the requests of ``rows``, which are in the order of admission."""
    policies = tuple(policies)
    asked = {policy.scope for policy in policies}
    indexes: dict[str, PolicyIndex] = {}
    counters: dict[str, _Counter] = {}
    totals: dict[tuple[str, str, bool], list[int]] = {}
    refusals: list[Refusal] = []
    unseen: dict[Scope, int] = {}
    requests = refused = refused_cost = 0
    for row in reservations(rows):
        requests += 1
        for scope in asked.intersection(hidden_scopes(row)):
            unseen[scope] = unseen.get(scope, 0) + 1
        index = indexes.get(row.root)
        if index is None:
            own = PolicySet(root=row.root, service=None, policies=policies)
            index = indexes[row.root] = PolicyIndex(own, key=_key)
        met = [(bucket, _counter(counters, bucket)) for bucket in buckets_of(row, index)]
        exceeded = [bucket for bucket, counter in met if not counter.has_room(bucket, row)]
        refusing = [bucket for bucket in exceeded if _refuses(bucket)]
        for bucket in exceeded:
            place = (bucket.label, bucket.subject, _refuses(bucket))
            _count(totals.setdefault(place, [0, 0, 0]), row)
        if refusing:
            refused += 1
            refused_cost += row.cost_micros
            if len(refusals) < most_refusals:
                labels = tuple(dict.fromkeys(bucket.label for bucket in refusing))
                refusals.append(Refusal(row=row, labels=labels))
            continue
        for bucket, counter in met:
            counter.take(bucket, row)
    return Replay(
        requests=requests,
        refused=refused,
        refused_cost_micros=refused_cost,
        rules=tuple(_totals(totals)),
        refusals=tuple(refusals),
        unseen=dict(sorted(unseen.items())),
    )


class _Counter:
    """One counter. ``has_room`` comes before ``take`` for each request, and times do not go back:
    a request that was admitted before the last one counts at the last one's time."""

    def has_room(self, bucket: Bucket, row: LedgerRow) -> bool:
        amount = taken(row, bucket.unit)
        self._forget(bucket, row.admitted_at_ms)
        full = bucket.capacity if bucket.kind is BucketKind.BUCKET else bucket.limit
        return full > 0 and self._used(bucket) + amount <= full

    def take(self, bucket: Bucket, row: LedgerRow) -> None:
        raise NotImplementedError

    def _forget(self, bucket: Bucket, now_ms: int) -> None:
        raise NotImplementedError

    def _used(self, bucket: Bucket) -> int:
        raise NotImplementedError


@dataclass(slots=True)
class _Period(_Counter):
    """A minute or a quota: starts anew when the name of the period changes."""

    period: str = ""
    used: int = 0

    def take(self, bucket: Bucket, row: LedgerRow) -> None:
        self.used += taken(row, bucket.unit)

    def _forget(self, bucket: Bucket, now_ms: int) -> None:
        is_minute = bucket.kind is BucketKind.MINUTE
        # Of one length, so that their order is that of time.
        period = f"{now_ms // _MINUTE_MS:012}" if is_minute else period_of(bucket, now_ms)
        if period > self.period:
            self.period, self.used = period, 0

    def _used(self, bucket: Bucket) -> int:
        return self.used


@dataclass(slots=True)
class _Window(_Counter):
    """A sliding window: what was taken in the last ``window_ms``."""

    entries: deque[tuple[int, int]] = field(default_factory=deque)
    used: int = 0
    now_ms: int = 0

    def take(self, bucket: Bucket, row: LedgerRow) -> None:
        amount = taken(row, bucket.unit)
        self.entries.append((self.now_ms, amount))
        self.used += amount

    def _forget(self, bucket: Bucket, now_ms: int) -> None:
        self.now_ms = max(self.now_ms, now_ms)
        while self.entries and self.entries[0][0] <= self.now_ms - bucket.window_ms:
            self.used -= self.entries.popleft()[1]

    def _used(self, bucket: Bucket) -> int:
        return self.used


@dataclass(slots=True)
class _Leak(_Counter):
    """A token bucket, by what is missing from it: in units and the remainder of a minute's ms."""

    missing: int = 0  # units times _MINUTE_MS
    now_ms: int = 0

    def take(self, bucket: Bucket, row: LedgerRow) -> None:
        self.missing += taken(row, bucket.unit) * _MINUTE_MS

    def _forget(self, bucket: Bucket, now_ms: int) -> None:
        if now_ms > self.now_ms:
            back = (now_ms - self.now_ms) * bucket.refill_per_minute
            self.missing = max(0, self.missing - back)
            self.now_ms = now_ms

    def _used(self, bucket: Bucket) -> int:
        return -(-self.missing // _MINUTE_MS)


@dataclass(slots=True)
class _Slots(_Counter):
    """Concurrency: ends of what is under way."""

    ends: list[int] = field(default_factory=list)

    def take(self, bucket: Bucket, row: LedgerRow) -> None:
        heappush(self.ends, row.settled_at_ms)

    def _forget(self, bucket: Bucket, now_ms: int) -> None:
        while self.ends and self.ends[0] <= now_ms:
            heappop(self.ends)

    def _used(self, bucket: Bucket) -> int:
        return len(self.ends)


_COUNTERS: Mapping[BucketKind, type[_Counter]] = {
    BucketKind.MINUTE: _Period,
    BucketKind.QUOTA: _Period,
    BucketKind.SLIDING: _Window,
    BucketKind.BUCKET: _Leak,
    BucketKind.SLOTS: _Slots,
}


def _counter(counters: dict[str, _Counter], bucket: Bucket) -> _Counter:
    found = counters.get(bucket.key)
    if found is None:
        found = counters[bucket.key] = _COUNTERS[bucket.kind]()
    return found


def _refuses(bucket: Bucket) -> bool:
    return bucket.enforced and bucket.refuses


def _key(kind: BucketKind, root: str, suffix: str) -> str:
    return f"{kind}/{root}/{suffix}"


def _count(sums: list[int], row: LedgerRow) -> None:
    sums[0] += 1
    sums[1] += row.tokens.get("input", 0) + row.tokens.get("output", 0)
    sums[2] += row.cost_micros


def _totals(totals: Mapping[tuple[str, str, bool], list[int]]) -> Iterator[RuleTotal]:
    for (label, subject, refuses), (requests, tokens, cost) in sorted(totals.items()):
        yield RuleTotal(
            label=label,
            subject=subject,
            refuses=refuses,
            requests=requests,
            tokens=tokens,
            cost_micros=cost,
        )
