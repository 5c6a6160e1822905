"""A worker with a local view, for tests: what it is asked, and how what it admitted ends."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from extproc.core.errors import StoreUnavailableError
from extproc.core.local_view import LocalReserver
from extproc.core.policies import Descriptor, Scope
from extproc.core.ports import LimitLookup
from extproc.core.reservations import Admitted, Settlement, Slip, Verdict
from extproc.core.reserving import Attempt
from extproc.core.slice_keeper import SliceKeeper
from extproc.core.slices import SlicePlan
from extproc.stores.slice_store import SlicedReservationStore
from tests.support.reservations import ROOT, request, settlement

# Slices of 1 % of 1,000,000 tokens, from the third request of a second on.
PLAN = SlicePlan(hot_requests=3, life_seconds=0.5, idle_seconds=0.2)
RESERVE = 110
DESCRIPTOR = Descriptor(root=ROOT, values={Scope.SERVICE: ROOT}, requested_model="gpt-4o")


class Lookup:
    """SQL, which nobody may need here."""

    async def load(self, service_id: str) -> LimitLookup:
        raise StoreUnavailableError("sql", "not here", transient=False)


@dataclass
class Worker:
    """One worker's reserver, and what it tells."""

    reserver: LocalReserver
    keeper: SliceKeeper
    store: SlicedReservationStore
    held: list[int]
    admitted: list[Admitted] = field(default_factory=list)

    async def ask(self, **values: Any) -> Verdict:
        extra = {name: values.pop(name) for name in ("idempotency_key", "owner") if name in values}
        asked = replace(request(**values), idempotency_ttl_ms=60_000, **extra)
        verdict = await self.reserver.reserve(Attempt(asked, DESCRIPTOR))
        if isinstance(verdict, Admitted):
            self.admitted.append(verdict)
        return verdict

    async def ask_until_local(self, **values: Any) -> Admitted:
        """Ask until one is admitted from a slice."""
        async with asyncio.timeout(20):
            while True:
                verdict = await self.ask(**values)
                if isinstance(verdict, Admitted) and verdict.slice_id:
                    return verdict
                await asyncio.sleep(0.002)

    async def end_all(self, *, output: int = 20) -> int:
        """Settle what was admitted; how many tokens they used."""
        ended, self.admitted = self.admitted, []
        for one in ended:
            await self.store.settle(end_of(one, output))
        return len(ended) * (10 + output)


def end_of(admitted: Admitted, output: int = 20) -> Settlement:
    slip = Slip(
        slice_id=admitted.slice_id,
        input_tokens=admitted.input_tokens,
        reserved_tokens=admitted.reserved_tokens,
    )
    end = settlement(admitted.reservation_id, 10, output)
    return replace(end, slip=slip if admitted.slice_id else None)
