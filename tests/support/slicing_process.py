"""A worker that admits from a slice and is stuck before it gives anything a record:
``python -m tests.support.slicing_process URL COUNT``.

Says one line of JSON, the handles of what it has admitted so, and then waits to be killed.
"""

import asyncio
import json
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from extproc.core.estimates import EstimatePlan
from extproc.core.handles import Handle
from extproc.core.local_view import LocalReserver
from extproc.core.policies import Descriptor
from extproc.core.reservations import Admitted
from extproc.core.reserving import Attempt
from extproc.core.slice_keeper import SliceKeeper
from extproc.core.slices import SlicePlan
from extproc.stores.batcher import RedisBatcher
from extproc.stores.slice_store import SlicedReservationStore
from extproc.stores.views import Views
from tests.support.reservations import ROOT, request, settlement


class _Silent:
    def slices_held(self, tokens: int) -> None:
        pass


def _handle(admitted: Admitted) -> Handle:
    return Handle(
        reservation_id=admitted.reservation_id,
        root=admitted.root,
        wire_format="openai_chat",
        model="gpt-4o",
        input_tokens=admitted.input_tokens,
        reserved_tokens=admitted.reserved_tokens,
        encoding="o200k_base",
        hides_usage=False,
        slice_id=admitted.slice_id,
    )


def _stick() -> None:
    time.sleep(600)  # the whole loop: nothing is drawn any more


async def main(url: str, count: int) -> None:
    """Become hot at the usual root, then admit ``count`` requests in one turn of the loop."""
    store = SlicedReservationStore(RedisBatcher(url=url, timeout_ms=10_000))
    plan = SlicePlan(hot_requests=2)
    unused: Any = None
    reserver = LocalReserver(
        store=store,
        limits=unused,
        views=Views(),
        estimate=EstimatePlan(),
        clock=lambda: datetime.now(UTC),
        keeper=SliceKeeper(store, plan, _Silent()),
        plan=plan,
    )
    descriptor = Descriptor(root=ROOT, values={}, requested_model="gpt-4o")

    def attempt() -> Attempt:
        return Attempt(replace(request(), owner="me"), descriptor)

    while True:
        verdict = await reserver.reserve(attempt())
        assert isinstance(verdict, Admitted)
        if verdict.slice_id:
            break
        await store.settle(settlement(verdict.reservation_id, 0, 0))
    admitted = [verdict, *filter(None, (reserver.admit(attempt()) for _ in range(count - 1)))]
    print(json.dumps([_handle(one).to_fields() for one in admitted]), flush=True)
    _stick()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
