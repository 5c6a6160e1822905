"""The reaper: ends reservations of which nobody reported the end before their deadline.

A server that is killed between reserve and settle, or a lost log entry, leaves a reservation open.
The reaper guesses, so whoever knows better later can still correct it. Several may run at once: the
store ends a reservation once.
"""

import asyncio
import logging
import time
from typing import Literal

from extproc.core.errors import StoreUnavailableError
from extproc.core.ids import ACROSS_PREFIX
from extproc.core.outcomes import undo_of
from extproc.core.ports import OpenReservation, ReservationStore, Telemetry
from extproc.core.reservations import Knowledge, Outcome, Settlement, SettleStatus, Source, State

log = logging.getLogger("tokenweir.reaper")

Policy = Literal["estimate", "release", "review"]

_STATES: dict[Policy, State] = {
    "estimate": State.EXPIRED,
    "release": State.RELEASED,
    "review": State.RECONCILING,
}
# Reservations asked for at once, and roots looked at side by side.
_BATCH = 100
_ROOTS_AT_ONCE = 50


class Reaper:
    """Sweeps all roots every ``interval`` seconds.

    ``policy`` "estimate" charges what was reserved, "release" gives it back; "review" charges it
    and keeps the reservation for people (``stores.reviews``). What is left of a slice, which a
    worker took ahead of requests and did not return, is given back whatever the policy is.
    """

    def __init__(
        self,
        store: ReservationStore,
        telemetry: Telemetry,
        *,
        policy: Policy = "estimate",
        interval: float = 5.0,
    ) -> None:
        self._store = store
        self._telemetry = telemetry
        self._policy = policy
        self._interval = interval

    async def run(self, stop: asyncio.Event) -> None:
        """Sweep until ``stop`` is set. An outage of the store is logged and waited out."""
        while not stop.is_set():
            try:
                await self.sweep()
            except StoreUnavailableError as error:
                log.warning("reaper_sweep_failed", extra={"error": str(error)})
            try:
                async with asyncio.timeout(self._interval):
                    await stop.wait()
            except TimeoutError:
                continue

    async def sweep(self) -> int:
        """Resolve what is overdue now; how many this call resolved.

        A root that fails does not keep the others from being swept: in a cluster one part may be
        away for long. Raises the first StoreUnavailableError after all were tried, at once when
        the whole store seems to be away.
        """
        resolved = still_open = waiting = 0
        failure: StoreUnavailableError | None = None
        roots = await self._store.roots()
        for start in range(0, len(roots), _ROOTS_AT_ONCE):
            results = await asyncio.gather(
                *(self._sweep_root(root) for root in roots[start : start + _ROOTS_AT_ONCE]),
                return_exceptions=True,
            )
            failed = [one for one in results if isinstance(one, StoreUnavailableError)]
            if len(failed) == len(results) and all(one.transient for one in failed):
                raise failed[0]
            for result in results:
                if isinstance(result, StoreUnavailableError):
                    failure = failure or result
                elif isinstance(result, BaseException):
                    raise result
                else:
                    resolved += result[0]
                    still_open += result[1]
                    waiting += result[2]
        if failure is not None:
            raise failure
        self._telemetry.open_reservations(still_open)
        self._telemetry.open_reviews(waiting)
        return resolved

    async def _sweep_root(self, root: str) -> tuple[int, int, int]:
        """Resolve one root's overdue reservations: how many, and how many are open and how many
        wait for people after it."""
        resolved = 0
        failure: StoreUnavailableError | None = None
        while found := await self._store.overdue(root, at_most=_BATCH):
            before = resolved
            for reservation in found:
                try:
                    resolved += await self._resolve(reservation)
                except StoreUnavailableError as error:
                    if error.transient:
                        raise
                    failure = error  # of this one: those behind it must not wait for it
            if len(found) < _BATCH or resolved == before:
                break
        if failure is not None:
            raise failure
        still_open, waiting = await asyncio.gather(
            self._store.open_count(root), self._store.review_count(root)
        )
        # What a request holds at a root that all share waits at its own root too.
        return resolved, still_open, 0 if root.startswith(ACROSS_PREFIX) else waiting

    async def _resolve(self, reservation: OpenReservation) -> int:
        if reservation.is_slice:
            end = undo_of(reservation.reservation_id, reservation.root, Source.REAPER)
            returned = await self._store.release(end)
            return int(returned.status is SettleStatus.APPLIED)
        charges = self._policy != "release"
        settlement = Settlement(
            reservation_id=reservation.reservation_id,
            root=reservation.root,
            input_tokens=reservation.input_tokens if charges else 0,
            output_tokens=(
                reservation.reserved_tokens - reservation.input_tokens if charges else 0
            ),
            knowledge=Knowledge.GUESSED,
            outcome=Outcome.UNREPORTED,
            source=Source.REAPER,
            state=_STATES[self._policy],
        )
        started = time.perf_counter()
        try:
            if charges:
                result = await self._store.settle(settlement)
            else:
                result = await self._store.release(settlement)
        except StoreUnavailableError:
            self._telemetry.settlement_failed(Source.REAPER)
            raise
        if result.status is not SettleStatus.APPLIED:
            return 0  # its own end came, or another reaper, since we looked
        self._telemetry.settled(settlement, result, seconds=time.perf_counter() - started)
        log.warning(
            "reservation_in_review" if self._policy == "review" else "reservation_expired",
            extra={
                "service_id": reservation.root,
                "reservation_id": reservation.reservation_id,
                "overdue_ms": reservation.overdue_ms,
                "policy": self._policy,
                "reserved_tokens": result.reserved_tokens,
                "charged_tokens": result.charged_tokens,
            },
        )
        return 1
