"""Slices: a small part of a subject's limits that a worker takes ahead of requests.

A slice is a reservation of many requests, so counters hold it like any other. What is admitted from
it is moved to a record of its own afterwards ("drawn"), and the rest is given back. See
``core.local_view`` and ADR 12.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from extproc.core.buckets import Bucket, BucketKind, Unit
from extproc.core.estimates import EstimatePlan
from extproc.core.reservations import WindowView


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePlan:
    """How large slices are, how long they live, and for whom they are.

    ``share_permille`` is of what is left of the tightest limit; ``used_permille``: none is taken
    where more of a limit is used. ``life_seconds`` is the longest that a slice admits anything,
    ``idle_seconds`` without a request end it. A subject is hot from ``hot_requests`` in a second.
    ``most_slices`` of one root are held at once.
    """

    share_permille: int = 10
    most_requests: int = 1000
    most_tokens: int = 1_000_000
    used_permille: int = 500
    life_seconds: float = 1.0
    idle_seconds: float = 0.25
    hot_requests: int = 50
    most_slices: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRequest:
    """What one slice is asked of. ``version`` and ``buckets`` are as in ``ReserveRequest``; both
    are empty for a simple root. ``least_tokens``: a smaller one is not worth it. ``deadline_ms`` is
    that of the reservations drawn from it, ``overdue_ms`` its own."""

    slice_id: str
    root: str
    model: str
    version: str
    buckets: tuple[Bucket, ...]
    least_tokens: int
    overdue_ms: int
    deadline_ms: int
    estimate: EstimatePlan
    input_price: int = 0
    output_price: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceTaken:
    """What was taken. ``minute_left_ms`` is how long from then the slice's minute lasted;
    ``expected_output_tokens`` what the history says in it, None without one. ``views`` are the
    counters after it was taken, in the order of the request's buckets (a simple root: requests,
    tokens)."""

    minute: str
    requests: int
    tokens: int
    minute_left_ms: int
    expected_output_tokens: int | None
    views: tuple[WindowView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """One request that was admitted from a slice, as its record keeps it."""

    reservation_id: str
    input_tokens: int
    reserved_tokens: int
    wire_format: str = ""
    model: str = ""
    request_id: str = ""
    owner: str = ""
    request_hash: str = ""
    subject: str = ""


class SliceStore(Protocol):
    """Slices in Redis; each call is one round trip, atomic, repeatable, and raises
    StoreUnavailableError on failure and nothing else."""

    async def take_slice(self, request: SliceRequest, plan: SlicePlan) -> SliceTaken | None:
        """None where nothing was taken: limits are too full or too small, or have changed."""
        ...

    async def draw(self, root: str, slice_id: str, drawings: Sequence[Drawing]) -> bool:
        """Make records of what was admitted; whether the slice may admit more: it is known, and the
        limits are still those by which it was taken."""
        ...

    async def return_slice(self, root: str, slice_id: str) -> None:
        """Give back what is left."""
        ...


def new_slice_id() -> str:
    """A fresh id, in which people recognise a slice."""
    return f"slice.{secrets.token_hex(8)}"


def may_be_sliced(bucket: Bucket) -> bool:
    """Whether taking ahead keeps this counter exact: those of a minute or a period are sums, where
    it does not matter when within it something was added. A sliding window and a token bucket know
    when, a lease has an owner, money depends on each request's price; and what does not refuse is
    to be seen at each request."""
    return (
        bucket.kind in (BucketKind.MINUTE, BucketKind.QUOTA)
        and bucket.unit in (Unit.REQUESTS, Unit.TOTAL)
        and bucket.enforced
        and bucket.refuses
        and bucket.limit > 0
    )
