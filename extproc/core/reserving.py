"""The reserve call with its cold path: ask, load the limits if the cache lacks them, ask again."""

from dataclasses import replace

from extproc.core.errors import StoreUnavailableError
from extproc.core.ports import LimitSource, ReservationStore
from extproc.core.reservations import (
    IdConflict,
    LimitsMissing,
    LimitsStale,
    ReserveRequest,
    ServiceRefused,
    ServiceState,
    Verdict,
)

# A change of limits between our load and our reserve empties the cache again. Each round reads the
# newest limits, so a few rounds are plenty; a storm of changes must not hold a request for ever.
_ROUNDS = 4


async def reserve(
    request: ReserveRequest, *, store: ReservationStore, limits: LimitSource
) -> Verdict:
    """Decide ``request``: one round trip when the limits are cached.

    Never decides by old limits: the script reads them itself, or is given what SQL said a moment
    ago. Raises StoreUnavailableError when no decision could be had; then nothing is known to be
    taken, and the caller releases the id in case something was.
    """
    for _ in range(_ROUNDS):
        verdict = await _ask(store, request)
        if verdict is not None:
            return verdict
        found = await limits.load(request.root)
        if found.limit is None:
            return ServiceRefused(ServiceState.UNKNOWN)
        if not found.limit.enabled:
            return ServiceRefused(ServiceState.DISABLED)
        if not found.cached:
            verdict = await _ask(store, replace(request, limit=found.limit))
            if verdict is not None:
                return verdict
    raise StoreUnavailableError("redis", "the limits change faster than they load", transient=True)


async def _ask(store: ReservationStore, request: ReserveRequest) -> Verdict | None:
    """None: nothing was decided, because the limits are missing or others than the request's."""
    verdict = await store.reserve(request)
    if isinstance(verdict, IdConflict):
        raise StoreUnavailableError("redis", "the reservation id is in use", transient=False)
    return None if isinstance(verdict, LimitsMissing | LimitsStale) else verdict
