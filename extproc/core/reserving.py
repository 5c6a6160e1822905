"""The reserve call with its cold path, and with the other slots that a request meets.

Warm: one round trip. What this worker believes of a root's limits and policies is compared inside
the script; when it is missing or old, nothing is taken, and we load it and ask again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from extproc.core.errors import StoreUnavailableError
from extproc.core.estimates import EstimateMode, EstimatePlan
from extproc.core.policies import Descriptor
from extproc.core.ports import (
    LimitLookup,
    LimitSource,
    PolicyView,
    PolicyViews,
    ReservationStore,
)
from extproc.core.reservations import (
    Admitted,
    IdConflict,
    Knowledge,
    LimitsMissing,
    LimitsStale,
    Outcome,
    ReserveRequest,
    ServiceRefused,
    ServiceState,
    Settlement,
    Source,
    State,
    StoreVerdict,
    Verdict,
    WindowView,
)
from extproc.core.resolve import Resolved

# A change of limits between our load and our reserve empties the cache again. Each round reads the
# newest limits, so a few rounds are plenty; a storm of changes must not hold a request for ever.
_ROUNDS = 5


@dataclass(slots=True)
class Attempt:
    """One request's reserve. ``roots`` grows by each root before it is asked, so that whoever is
    interrupted knows where something may have been taken; the request's own root is the first."""

    request: ReserveRequest
    descriptor: Descriptor
    roots: list[str] = field(default_factory=list)


class Reserver:
    """Decides attempts.

    ``estimate`` is for roots with policies; a simple root is estimated by the mean, unless strict
    mode reserves the caps of all. ``clock`` gives
    the time by which effective dates are judged; counters use Redis' own.
    """

    def __init__(
        self,
        *,
        store: ReservationStore,
        limits: LimitSource,
        views: PolicyViews,
        estimate: EstimatePlan,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._limits = limits
        self._views = views
        self._estimate = estimate
        is_strict = estimate.mode is EstimateMode.STRICT
        self._simple_estimate = estimate if is_strict else replace(estimate, mode=EstimateMode.MEAN)
        self._clock = clock

    async def reserve(self, attempt: Attempt) -> Verdict:
        """Admitted by every root, or nothing is taken anywhere.

        Raises StoreUnavailableError when no decision could be had; then something may be taken at
        ``attempt.roots``, which the caller releases if the error says so.
        """
        root = attempt.request.root
        view = self._views.get(root)
        pinned: LimitLookup | None = None
        attempt.roots.append(root)
        for _ in range(_ROUNDS):
            request, resolved = self._ask_with(attempt, view, pinned)
            verdict = await self._store.reserve(request)
            if isinstance(verdict, LimitsStale):
                try:
                    view, pinned = self._views.put(root, verdict.version, verdict.view), None
                    continue
                except StoreUnavailableError:
                    pass  # a view of a newer release, or spoilt: what SQL says decides
            if isinstance(verdict, LimitsMissing | LimitsStale):
                found = await self._limits.load(root)
                if not found.is_known:
                    return ServiceRefused(ServiceState.UNKNOWN)
                if found.limit is not None and not found.limit.enabled:
                    return ServiceRefused(ServiceState.DISABLED)
                view = self._learn(root, found)
                pinned = None if found.cached else found
            else:
                return await self._across(attempt, request, resolved, _decided(verdict))
        raise StoreUnavailableError(
            "redis", "the limits change faster than they load", transient=True
        )

    def _learn(self, root: str, found: LimitLookup) -> PolicyView | None:
        if found.policies is None:
            return self._views.put(root, "", "")
        return self._views.learn(found.policies)

    def _ask_with(
        self, attempt: Attempt, view: PolicyView | None, pinned: LimitLookup | None
    ) -> tuple[ReserveRequest, Resolved | None]:
        if view is None:
            limit = None if pinned is None else pinned.limit
            request = replace(attempt.request, limit=limit, estimate=self._simple_estimate)
            return request, None
        resolved = view.resolve(attempt.descriptor, self._clock())
        request = replace(
            attempt.request,
            version=view.version,
            buckets=resolved.buckets,
            is_pinned=pinned is not None,
            estimate=self._estimate,
        )
        return request, resolved

    async def _across(
        self, attempt: Attempt, request: ReserveRequest, resolved: Resolved | None, first: Verdict
    ) -> Verdict:
        """The other slots, always in the order of their names and after the own one, so that two
        requests never wait for each other. A refusal there undoes what the earlier ones took."""
        verdict = first
        if resolved is None or not isinstance(verdict, Admitted):
            return verdict
        for root, buckets in resolved.across.items():
            attempt.roots.append(root)
            # The view was compared a moment ago at the request's own root; this one has none.
            there = replace(request, root=root, buckets=buckets, is_pinned=True)
            answer = _decided(await self._store.reserve(there))
            if not isinstance(answer, Admitted):
                for taken in attempt.roots[:-1]:
                    await self._store.release(_undo(request.reservation_id, taken))
                return answer
            verdict = _tightened(verdict, answer)
        return verdict


def _decided(verdict: StoreVerdict) -> Verdict:
    if isinstance(verdict, IdConflict):
        raise StoreUnavailableError("redis", "the reservation id is in use", transient=False)
    if isinstance(verdict, LimitsMissing | LimitsStale):
        raise StoreUnavailableError("redis", "a pinned view was not taken", transient=True)
    return verdict


def _undo(reservation_id: str, root: str) -> Settlement:
    return Settlement(
        reservation_id=reservation_id,
        root=root,
        input_tokens=0,
        output_tokens=0,
        knowledge=Knowledge.KNOWN,
        outcome=Outcome.NOT_FORWARDED,
        source=Source.ADMISSION,
        state=State.RELEASED,
        undo=True,
    )


def _tightened(first: Admitted, then: Admitted) -> Admitted:
    """One answer of two slots: the request's own, with the tighter of the limits to show."""
    return replace(
        first,
        requests=_tighter(first.requests, then.requests),
        tokens=_tighter(first.tokens, then.tokens),
        buckets=first.buckets + then.buckets,
        shadow_refusals=first.shadow_refusals + then.shadow_refusals,
    )


def _tighter(one: WindowView | None, other: WindowView | None) -> WindowView | None:
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda view: view.remaining)
