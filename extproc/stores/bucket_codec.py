"""Counters as the scripts read them, and as a record keeps them (lua/include/counters.lua)."""

import json
from dataclasses import dataclass

from extproc.core.buckets import MAX_BUCKETS, Bucket, BucketKind, Period, Unit
from extproc.core.limits import MAX_LIMIT
from extproc.core.policies import ANY, SERVICE_LIMIT, Dimension, Scope
from extproc.stores import keys
from extproc.stores.record_words import lengthen, shorten

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
_PERIODS = {Period.DAY: "d", Period.MONTH: "m", Period.CYCLE: "c"}
_BEGINNINGS = {
    BucketKind.MINUTE: keys.minute_prefix("", "").partition("{")[0],
    BucketKind.SLIDING: keys.window("", "").partition("{")[0],
    BucketKind.BUCKET: keys.bucket("", "").partition("{")[0],
    BucketKind.SLOTS: keys.slots("", "").partition("{")[0],
    BucketKind.QUOTA: keys.quota_prefix("", "").partition("{")[0],
}
_KIND_OF = {letter: kind for kind, letter in _KINDS.items()}
_UNIT_OF = {letter: unit for unit, letter in _UNITS.items()}
_PERIOD_OF = {letter: period for period, letter in _PERIODS.items()}
# The counters of a simple root, as a record of a root with policies would keep them.
SIMPLE_RPM = f"mr|{keys.rpm_prefix('')}"
SIMPLE_TPM = f"mt|{keys.tpm_prefix('')}"


@dataclass(frozen=True, slots=True)
class EncodedBuckets:
    """``keys`` to be declared, ``for_script`` is JSON, ``for_record`` is what the record keeps."""

    keys: tuple[str, ...]
    for_script: str
    for_record: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCounter:
    """What a record says of one counter. ``label`` and ``subject`` are as in ``Bucket``, but of a
    value that is no id only the hash is known, and the counter of a block has no subject."""

    label: str
    subject: str
    kind: BucketKind
    unit: Unit
    period: Period = Period.NONE
    period_id: str = ""


def encode(root: str, buckets: tuple[Bucket, ...]) -> EncodedBuckets:
    """Raises ValueError for counters that the scripts could not keep apart or find again."""
    if len(buckets) > MAX_BUCKETS:
        text = f"{len(buckets)} limits for one request at {root}; at most {MAX_BUCKETS}"
        raise ValueError(f"{text}: see `tokenweir limits check`")
    names = tuple(bucket.key for bucket in buckets)
    if len(set(names)) < len(names):
        raise ValueError(f"two limits share one counter: {sorted(names)}")
    return EncodedBuckets(
        keys=names,
        for_script=json.dumps([_for_script(bucket) for bucket in buckets], separators=(",", ":")),
        for_record=shorten(";".join(for_record(root, bucket) for bucket in buckets)),
    )


def decode(root: str, text: str) -> NamedCounter:
    """The reverse of ``for_record``, shortened or not. Raises ValueError for anything else."""
    text = lengthen(text)
    head, _, tail = text.partition("|")
    try:
        kind, unit = _KIND_OF[head[0]], _UNIT_OF[head[1]]
        period = _PERIOD_OF[head[2]] if kind is BucketKind.QUOTA else Period.NONE
    except (IndexError, KeyError) as error:
        raise ValueError(f"not a counter: {text!r:.80}") from error
    if text in (SIMPLE_RPM, SIMPLE_TPM):
        dimension = Dimension.RPM if text == SIMPLE_RPM else Dimension.TOTAL_TPM
        label, subject = f"{SERVICE_LIMIT}/{dimension}", f"{Scope.SERVICE}:{root}"
        return NamedCounter(label=label, subject=subject, kind=kind, unit=unit)
    suffix = tail.removeprefix(":")
    if kind in (BucketKind.MINUTE, BucketKind.QUOTA):
        suffix = suffix.removesuffix(":")
    policy, _, rest = suffix.partition(".")
    what, _, subject = rest.partition(".")
    if subject and ":" not in subject:
        subject = f"{subject}:{ANY}"
    return NamedCounter(
        label=f"{policy}/{what}",
        subject=subject,
        kind=kind,
        unit=unit,
        period=period,
        period_id=head[3:],
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


def for_record(root: str, bucket: Bucket) -> str:
    """A counter as a record keeps it (see lua/include/correct.lua), and a refusal.

    Raises ValueError for a counter of another root.
    """
    tag = f"{{{root}}}"
    before, found, after = bucket.key.partition(tag)
    if not found or "|" in bucket.key or ";" in bucket.key:
        raise ValueError(f"not a counter of {tag}: {bucket.key}")
    # The usual beginning of its kind's keys goes without saying.
    usual = _BEGINNINGS[bucket.kind]
    key = after if before == usual else f"{before}{{}}{after}"
    period = _period(bucket) if bucket.kind is BucketKind.QUOTA else ""
    return f"{_KINDS[bucket.kind]}{_UNITS[bucket.unit]}{period}|{key}"


def _period(bucket: Bucket) -> str:
    if bucket.period is Period.NONE:
        raise ValueError(f"{bucket.label}: a quota needs a period")
    return _PERIODS[bucket.period] + (bucket.period_id if bucket.period is Period.CYCLE else "")
