"""The local view: hot subjects are admitted from small slices, without a word from Redis.

A worker that sees a subject (one resolved set of counters of one root) asked for often, with all
of them far from full, takes a slice of what is left ahead of the requests, and admits out of it.
Each such request gets its record a moment later, many in one call; what is left goes back when the
slice is idle, at the end of its short life, when the limits change, or when the worker stops. A
slice ends with its minute. Off by default, and never with strict estimates. See ADR 12.

Whatever is not plainly right goes the ordinary way: see ``_subject_of`` and ``may_be_sliced``.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from extproc.core.buckets import Bucket, Unit
from extproc.core.estimates import EstimateMode, EstimatePlan
from extproc.core.ports import LimitSource, PolicyViews, ReservationStore
from extproc.core.reservations import (
    Admitted,
    BucketState,
    ReserveRequest,
    Verdict,
    WindowView,
)
from extproc.core.reserving import Attempt, Reserver
from extproc.core.slice_keeper import Slice, SliceKeeper
from extproc.core.slices import Drawing, SlicePlan, SliceRequest, may_be_sliced, new_slice_id

# The reaper may return a slice so long after its life.
_OVERDUE_SLACK_MS = 5000
# Smaller than so many times the request that asks for it, a slice is not worth its calls.
_LEAST_REQUESTS = 4
# A subject that could not have a slice does not ask for one again so soon.
_REST_SECONDS = 1.0
_MOST_SUBJECTS = 4096


@dataclass(frozen=True, slots=True)
class _Subject:
    version: str
    buckets: tuple[Bucket, ...]
    key: tuple[object, ...]


@dataclass(slots=True)
class _Heat:
    """How often a subject is asked for, in this second and in the one before, and its slice."""

    since: float = 0.0
    count: int = 0
    before: int = 0
    rests_until: float = 0.0
    is_taking: bool = False
    current: Slice | None = None

    def asked(self, now: float) -> int:
        """Count one more; how many there were in a second."""
        elapsed = now - self.since
        if elapsed >= 1.0:
            self.before = self.count if elapsed < 2.0 else 0
            self.since, self.count = now, 0
        self.count += 1
        return max(self.count, self.before)


class LocalReserver(Reserver):
    """Decides attempts as ``Reserver`` does, those of hot subjects from slices of ``keeper``.

    The sum of all slices is the error that others can see: they may be refused although so much is
    unused. Raises ValueError with strict estimates.
    """

    def __init__(
        self,
        *,
        store: ReservationStore,
        limits: LimitSource,
        views: PolicyViews,
        estimate: EstimatePlan,
        clock: Callable[[], datetime],
        keeper: SliceKeeper,
        plan: SlicePlan,
    ) -> None:
        if estimate.mode is EstimateMode.STRICT:
            raise ValueError("no slices with strict estimates")
        super().__init__(store=store, limits=limits, views=views, estimate=estimate, clock=clock)
        self._keeper = keeper
        self._plan = plan
        self._heats: dict[tuple[object, ...], _Heat] = {}

    async def reserve(self, attempt: Attempt) -> Verdict:
        """As ``Reserver.reserve``; from a slice without any wait."""
        admitted = self.admit(attempt)
        return await super().reserve(attempt) if admitted is None else admitted

    def admit(self, attempt: Attempt) -> Admitted | None:
        """Admitted from a slice, or None: ask Redis. Never awaits, so nothing comes between."""
        subject = self._subject_of(attempt)
        if subject is None:
            return None
        now = time.monotonic()
        heat = self._heats.get(subject.key)
        if heat is None:
            if len(self._heats) >= _MOST_SUBJECTS:
                self._heats = {
                    key: one
                    for key, one in self._heats.items()
                    if one.is_taking or (one.current is not None and one.current.is_open)
                }
            heat = self._heats[subject.key] = _Heat()
        asked = heat.asked(now)
        current = heat.current
        if current is not None:
            if current.is_open and now < current.ends:
                return self._admit_from(current, subject, attempt.request, now)
            heat.current = None
        if (
            asked >= self._plan.hot_requests
            and not heat.is_taking
            and now >= heat.rests_until
            and self._keeper.has_room(attempt.request.root)
        ):
            self._take(heat, subject, attempt.request)
        return None

    def _subject_of(self, attempt: Attempt) -> _Subject | None:
        """What may be admitted from a slice at all; None where it is not plainly right."""
        request = attempt.request
        if request.idempotency_key or request.limit is not None:
            return None
        view = self._views.get(request.root)
        if view is None:
            return _Subject("", (), (request.root,))
        resolved = view.resolve(attempt.descriptor, self._clock())
        buckets = resolved.buckets
        if resolved.across or resolved.blocked_by is not None or not buckets:
            return None
        if not all(map(may_be_sliced, buckets)):
            return None
        limits = tuple((bucket.key, bucket.limit) for bucket in buckets)
        prices = request.input_price, request.output_price
        key = (request.root, view.version, request.model, prices, limits)
        return _Subject(view.version, buckets, key)

    def _take(self, heat: _Heat, subject: _Subject, request: ReserveRequest) -> None:
        life_ms = round(self._plan.life_seconds * 1000)
        reserve = request.input_tokens + self._output(request, None)
        heat.is_taking = True

        def taken(found: Slice | None) -> None:
            heat.is_taking, heat.current = False, found
            if found is None:
                heat.rests_until = time.monotonic() + _REST_SECONDS

        self._keeper.take_soon(
            SliceRequest(
                slice_id=new_slice_id(),
                root=request.root,
                model=request.model,
                version=subject.version,
                buckets=subject.buckets,
                least_tokens=_LEAST_REQUESTS * max(1, reserve),
                overdue_ms=life_ms + _OVERDUE_SLACK_MS,
                deadline_ms=request.deadline_ms,
                estimate=self._estimate,
                input_price=request.input_price,
                output_price=request.output_price,
            ),
            taken,
        )

    def _output(self, request: ReserveRequest, expected: int | None) -> int:
        """The estimate, as the scripts make it. They also make it fit an empty counter; who needs
        that does not fit a slice."""
        output = request.default_output_tokens
        if expected is not None and not request.skips_history:
            output = expected
        for cap in (request.output_cap_tokens, self._estimate.platform_cap_tokens):
            if cap is not None:
                output = min(output, cap)
        return max(0, output)

    def _admit_from(
        self, current: Slice, subject: _Subject, request: ReserveRequest, now: float
    ) -> Admitted | None:
        output = self._output(request, current.taken.expected_output_tokens)
        input_tokens = max(0, request.input_tokens)
        reserved = input_tokens + output
        drawing = Drawing(
            reservation_id=request.reservation_id,
            input_tokens=input_tokens,
            reserved_tokens=reserved,
            wire_format=request.wire_format,
            model=request.model,
            request_id=request.request_id,
            owner=request.owner,
            request_hash=request.request_hash,
            subject=request.subject,
        )
        if not current.admit(drawing, now):
            if current.requests < 1 or reserved * _LEAST_REQUESTS <= current.taken.tokens:
                current.close()  # worn out; a request that is large for its size is no reason
            return None
        return _admitted(current, subject, drawing, now)


def _admitted(current: Slice, subject: _Subject, drawing: Drawing, now: float) -> Admitted:
    """What is shown as left is what was left of the counter and is left of the slice."""
    units = [bucket.unit for bucket in subject.buckets] or [Unit.REQUESTS, Unit.TOTAL]
    passed_ms = round((now - current.minute_ends) * 1000) + current.taken.minute_left_ms
    tightest: dict[Unit, WindowView] = {}
    views = []
    for unit, view in zip(units, current.taken.views, strict=True):
        left = view.remaining + (current.requests if unit is Unit.REQUESTS else current.tokens)
        reset_ms = max(0, view.reset_ms - passed_ms)
        shown = WindowView(limit=view.limit, remaining=left, reset_ms=reset_ms)
        views.append(shown)
        if unit not in tightest or left < tightest[unit].remaining:
            tightest[unit] = shown
    return Admitted(
        reservation_id=drawing.reservation_id,
        root=current.asked.root,
        minute=current.taken.minute,
        input_tokens=drawing.input_tokens,
        reserved_tokens=drawing.reserved_tokens,
        requests=tightest.get(Unit.REQUESTS),
        tokens=tightest.get(Unit.TOTAL),
        buckets=tuple(
            BucketState(
                label=bucket.label,
                unit=bucket.unit,
                limit=shown.limit,
                remaining=shown.remaining,
                reset_ms=shown.reset_ms,
            )
            for bucket, shown in zip(subject.buckets, views, strict=False)
        ),
        slice_id=current.asked.slice_id,
    )
