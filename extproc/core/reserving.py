"""The reserve call with its cold path, and with the other slots that a request meets.

Warm: one round trip. What this worker believes of a root's limits and policies is compared inside
the script; when it is missing or old, nothing is taken, and we load it and ask again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from extproc.core.buckets import Bucket, Unit
from extproc.core.errors import StoreUnavailableError
from extproc.core.estimates import EstimateMode, EstimatePlan
from extproc.core.outcomes import undo_of
from extproc.core.policies import Block, Descriptor, PolicySet
from extproc.core.ports import (
    LimitLookup,
    LimitSource,
    PolicyView,
    PolicyViews,
    ReservationStore,
)
from extproc.core.reservations import (
    Admitted,
    Conflict,
    IdConflict,
    LimitsMissing,
    LimitsStale,
    Rejected,
    ReserveRequest,
    ServiceRefused,
    ServiceState,
    Source,
    StoreVerdict,
    Unpriced,
    Verdict,
    WindowView,
)
from extproc.core.resolve import Resolved

# A change of limits between our load and our reserve empties the cache again. Each round reads the
# newest limits, so a few rounds are plenty; a storm of changes must not hold a request for ever.
_ROUNDS = 5
# Asking again is for a lost reply now and then; a Redis that is too slow is not asked twice by all.
_MOST_RETRIES = 64


@dataclass(slots=True)
class Attempt:
    """One request's reserve. ``request`` is given without limits, which the Reserver fills in.
    ``roots`` grows by each root before it is asked, so that whoever is
    interrupted knows where something may have been taken; the request's own root is the first.
    ``is_refused``: another root has refused, so what the earlier ones took is undone.
    ``is_doubtful``: a reply was lost, so a call of ours may still be on its way.
    """

    request: ReserveRequest
    descriptor: Descriptor
    roots: list[str] = field(default_factory=list)
    is_refused: bool = False
    is_doubtful: bool = False


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
        self._retries = 0

    async def reserve(self, attempt: Attempt) -> Verdict:
        """Admitted by every root, or nothing is taken anywhere.

        Raises StoreUnavailableError when no decision could be had; then something may be taken at
        ``attempt.roots``, which the caller releases if the error says so.
        """
        verdict = await self._reserve(attempt)
        if attempt.is_doubtful and not isinstance(verdict, Admitted):
            # The call whose reply was lost may arrive after the one that was refused: it finds the
            # mark of this, and takes nothing.
            attempt.is_refused = True
            for root in attempt.roots:
                await self._store.release(
                    undo_of(attempt.request.reservation_id, root, Source.ADMISSION)
                )
        return verdict

    async def _reserve(self, attempt: Attempt) -> Verdict:
        root = attempt.request.root
        view = self._views.get(root)
        pinned: LimitLookup | None = None
        attempt.roots.append(root)
        for number in range(_ROUNDS):
            # The caller's own object, made for this; a later round must not change what was asked.
            request = replace(attempt.request) if number else attempt.request
            resolved = self._complete(request, attempt.descriptor, view, pinned)
            verdict = await self._ask(attempt, request)
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
                decided = _decided(verdict, request)
                return await self._across(attempt, request, resolved, decided)
        raise StoreUnavailableError(
            "redis", "the limits change faster than they load", transient=True
        )

    def block_on(self, policies: PolicySet, descriptor: Descriptor) -> Block | None:
        """The block that stands against a request which no limit is asked for."""
        return self._views.learn(policies).resolve(descriptor, self._clock()).blocked_by

    def _learn(self, root: str, found: LimitLookup) -> PolicyView | None:
        if found.policies is None:
            return self._views.put(root, "", "")
        return self._views.learn(found.policies)

    def _complete(
        self,
        request: ReserveRequest,
        descriptor: Descriptor,
        view: PolicyView | None,
        pinned: LimitLookup | None,
    ) -> Resolved | None:
        """Fill in what is known of the limits."""
        if view is None:
            request.version, request.buckets, request.other_roots = "", (), ()
            request.is_pinned = False
            request.limit = None if pinned is None else pinned.limit
            request.estimate = _estimate_for(request, self._simple_estimate)
            return None
        resolved = view.resolve(descriptor, self._clock())
        request.limit = None
        request.version = view.version
        request.buckets = _affordable(resolved.buckets, request)
        request.other_roots = tuple(resolved.across)
        request.is_pinned = pinned is not None
        request.estimate = _estimate_for(request, self._estimate)
        return resolved

    async def _across(
        self, attempt: Attempt, request: ReserveRequest, resolved: Resolved | None, first: Verdict
    ) -> Verdict:
        """The other slots, always in the order of their names and after the own one, so that two
        requests never wait for each other. A refusal there undoes what the earlier ones took."""
        verdict = first
        if resolved is None or not isinstance(verdict, Admitted):
            return verdict
        # What the own root has estimated is asked of all.
        estimate = request.estimate
        if estimate.mode is not EstimateMode.STRICT:
            estimate = replace(estimate, mode=EstimateMode.GIVEN)
        output_tokens = max(0, verdict.reserved_tokens - verdict.input_tokens)
        for root, buckets in resolved.across.items():
            attempt.roots.append(root)
            there = replace(
                request,
                root=root,
                buckets=_affordable(buckets, request),
                # The view was compared a moment ago at the own root; this one has none.
                is_pinned=True,
                estimate=estimate,
                default_output_tokens=output_tokens,
                other_roots=(),
                idempotency_key="",
            )
            answer = _decided(await self._ask(attempt, there), there)
            if not isinstance(answer, Admitted):
                attempt.is_refused = True
                for taken in attempt.roots[:-1]:
                    await self._store.release(
                        undo_of(request.reservation_id, taken, Source.ADMISSION)
                    )
                # Whom it refused is a client of the own root, which is what people know.
                if isinstance(answer, Rejected):
                    answer = replace(answer, root=request.root)
                return answer
            verdict = _tightened(verdict, answer)
        return verdict

    async def _ask(self, attempt: Attempt, request: ReserveRequest) -> StoreVerdict:
        """Ask the store; where it is not known whether the script ran, ask again: the same id,
        owner and hash get the decision that was made, and nothing is taken twice."""
        try:
            return await self._store.reserve(request)
        except StoreUnavailableError as error:
            if not (error.maybe_applied and error.transient) or self._retries >= _MOST_RETRIES:
                raise
        self._retries += 1
        attempt.is_doubtful = True
        try:
            return await self._store.reserve(request)
        except StoreUnavailableError as error:
            error.maybe_applied = True  # by the first call
            raise
        finally:
            self._retries -= 1


def _estimate_for(request: ReserveRequest, plan: EstimatePlan) -> EstimatePlan:
    is_given = request.skips_history and plan.mode is not EstimateMode.STRICT
    return replace(plan, mode=EstimateMode.GIVEN) if is_given else plan


def _affordable(buckets: tuple[Bucket, ...], request: ReserveRequest) -> tuple[Bucket, ...]:
    """Without a price no limit of cost admits anything; the script says so, which compares the
    view, and never an old view."""
    if request.is_priced:
        return buckets
    return tuple(
        replace(bucket, limit=0) if _asks_for_a_price(bucket) else bucket for bucket in buckets
    )


def _asks_for_a_price(bucket: Bucket) -> bool:
    return bucket.unit is Unit.COST and bucket.enforced and bucket.refuses


def _decided(verdict: StoreVerdict, request: ReserveRequest) -> Verdict:
    if isinstance(verdict, Rejected) and not request.is_priced:
        labels = {bucket.label for bucket in request.buckets if _asks_for_a_price(bucket)}
        if found := tuple(one.label for one in verdict.refusals if one.label in labels):
            return Unpriced(found)
    if isinstance(verdict, IdConflict) and verdict.what in (Conflict.OWNER, Conflict.REQUEST):
        raise StoreUnavailableError("redis", "the reservation id is in use", transient=False)
    if isinstance(verdict, LimitsMissing | LimitsStale):
        raise StoreUnavailableError("redis", "a pinned view was not taken", transient=True)
    return verdict


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
