"""Which counters a request of the ledger met, and what it took from them."""

from collections.abc import Iterator
from datetime import UTC, datetime

from extproc.core.buckets import Bucket, Period, Unit
from extproc.core.ledger_rows import INPUT, OUTPUT, LedgerRow
from extproc.core.policies import Descriptor, Scope
from extproc.core.resolve import PolicyIndex
from extproc.core.subjects import read_subject


def buckets_of(row: LedgerRow, index: PolicyIndex) -> Iterator[Bucket]:
    """The buckets that the row's request met at its admission, those across roots too."""
    now = datetime.fromtimestamp(row.admitted_at_ms // 1000, UTC)
    found = index.resolve(descriptor_of(row), now)
    yield from found.buckets
    for buckets in found.across.values():
        yield from buckets


def descriptor_of(row: LedgerRow) -> Descriptor:
    """Who asked, as far as the ledger tells: keys of APIs are not written down."""
    try:
        values = dict(read_subject(row.subject).values)
    except ValueError:
        values = {}
    values.setdefault(Scope.SERVICE, row.root)
    values.setdefault(Scope.PROVIDER, row.provider)
    return Descriptor(root=row.root, values=values, requested_model=row.model)


def hidden_scopes(row: LedgerRow) -> tuple[Scope, ...]:
    """Scopes of which the request had a value that the ledger does not tell."""
    try:
        return read_subject(row.subject).hidden
    except ValueError:
        return ()


def taken(row: LedgerRow, unit: Unit) -> int:
    """What the request took, as it was settled."""
    given, made = row.tokens.get(INPUT, 0), row.tokens.get(OUTPUT, 0)
    match unit:
        case Unit.REQUESTS:
            return row.requests
        case Unit.SLOT:
            return 1
        case Unit.INPUT:
            return given
        case Unit.OUTPUT:
            return made
        case Unit.TOTAL:
            return given + made
        case Unit.COST:
            return row.cost_micros


def period_of(bucket: Bucket, at_ms: int) -> str:
    """The name of the period of a quota at a time, as keys in Redis end with it; "" for none."""
    if bucket.period is Period.CYCLE:
        return bucket.period_id
    moment = datetime.fromtimestamp(at_ms // 1000, UTC)
    if bucket.period is Period.DAY:
        return f"{moment:%Y%m%d}"
    return f"{moment:%Y%m}" if bucket.period is Period.MONTH else ""
