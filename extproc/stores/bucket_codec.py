"""Counters as the scripts read them, and as a record keeps them (lua/include/counters.lua)."""

import json
from dataclasses import dataclass

from extproc.core.buckets import MAX_BUCKETS, Bucket, BucketKind, Period, Unit
from extproc.core.limits import MAX_LIMIT
from extproc.stores import keys

_KINDS = {
    BucketKind.MINUTE: "m",
    BucketKind.SLIDING: "w",
    BucketKind.BUCKET: "b",
    BucketKind.SLOTS: "s",
    BucketKind.QUOTA: "q",
}
_UNITS = {
    Unit.REQUESTS: "r",
    Unit.INPUT: "i",
    Unit.OUTPUT: "o",
    Unit.TOTAL: "t",
    Unit.COST: "c",
    Unit.SLOT: "s",
}
_BEGINNINGS = {
    BucketKind.MINUTE: keys.minute_prefix("", "").partition("{")[0],
    BucketKind.SLIDING: keys.window("", "").partition("{")[0],
    BucketKind.BUCKET: keys.bucket("", "").partition("{")[0],
    BucketKind.SLOTS: keys.slots("", "").partition("{")[0],
    BucketKind.QUOTA: keys.quota_prefix("", "").partition("{")[0],
}


@dataclass(frozen=True, slots=True)
class EncodedBuckets:
    """``keys`` to be declared, ``for_script`` is JSON, ``for_record`` is what the record keeps."""

    keys: tuple[str, ...]
    for_script: str
    for_record: str


def encode(root: str, buckets: tuple[Bucket, ...]) -> EncodedBuckets:
    """Raises ValueError for counters that the scripts could not keep apart or find again."""
    if len(buckets) > MAX_BUCKETS:
        text = f"{len(buckets)} limits for one request at {root}; at most {MAX_BUCKETS}"
        raise ValueError(f"{text}: see `tokenweir limits check`")
    names = tuple(bucket.key for bucket in buckets)
    if len(set(names)) < len(names):
        raise ValueError(f"two limits share one counter: {sorted(names)}")
    tag = f"{{{root}}}"
    return EncodedBuckets(
        keys=names,
        for_script=json.dumps([_for_script(bucket) for bucket in buckets], separators=(",", ":")),
        for_record=";".join(_for_record(tag, bucket) for bucket in buckets),
    )


def _for_script(bucket: Bucket) -> list[str | int]:
    voice = (2 if bucket.enforced else 1) if bucket.refuses else 0
    entry: list[str | int] = [
        _KINDS[bucket.kind],
        _UNITS[bucket.unit],
        min(bucket.limit, MAX_LIMIT),
        voice,
    ]
    match bucket.kind:
        case BucketKind.SLIDING:
            return [*entry, bucket.window_ms]
        case BucketKind.BUCKET:
            return [*entry, min(bucket.capacity, MAX_LIMIT), bucket.refill_per_minute]
        case BucketKind.QUOTA:
            ends = bucket.period_end_ms if bucket.period is Period.CYCLE else 0
            return [*entry, _period(bucket), ends]
        case _:
            return entry


def _for_record(tag: str, bucket: Bucket) -> str:
    before, found, after = bucket.key.partition(tag)
    if not found or "|" in bucket.key or ";" in bucket.key:
        raise ValueError(f"not a counter of {tag}: {bucket.key}")
    # The usual beginning of its kind's keys goes without saying.
    usual = _BEGINNINGS[bucket.kind]
    key = after if before == usual else f"{before}{{}}{after}"
    period = _period(bucket) if bucket.kind is BucketKind.QUOTA else ""
    return f"{_KINDS[bucket.kind]}{_UNITS[bucket.unit]}{period}|{key}"


def _period(bucket: Bucket) -> str:
    match bucket.period:
        case Period.DAY:
            return "d"
        case Period.MONTH:
            return "m"
        case Period.CYCLE:
            return "c" + bucket.period_id
        case _:
            raise ValueError(f"{bucket.label}: a quota needs a period")
