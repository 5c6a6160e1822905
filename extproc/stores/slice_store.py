"""The reservation store with slices, and with the ends of what was admitted from them.

Whoever settles such a request may come before the worker that admitted it has given it its record,
or that worker may be gone. So a settlement that finds no record draws it first.
"""

from collections.abc import Coroutine, Sequence
from typing import Any

from extproc.core.errors import StoreUnavailableError
from extproc.core.outcomes import undo_of
from extproc.core.reservations import (
    Settlement,
    SettleResult,
    SettleStatus,
    Slip,
    Source,
    WindowView,
)
from extproc.core.slices import Drawing, SlicePlan, SliceRequest, SliceTaken
from extproc.stores import keys, scripts
from extproc.stores.bucket_codec import encode
from extproc.stores.client import RedisClient
from extproc.stores.redis_link import Word
from extproc.stores.reservation_store import (
    RedisReservationStore,
    stored_count,
    stored_text,
)
from extproc.stores.scripts import load_script


class SlicedReservationStore(RedisReservationStore):
    """Implements ``core.ports.ReservationStore`` and ``core.slices.SliceStore``."""

    def __init__(self, client: RedisClient, *, writes_events: bool = False) -> None:
        super().__init__(client, writes_events=writes_events)
        self._slice = load_script(scripts.SLICE)
        self._draw = load_script(scripts.DRAW)

    def settle(self, settlement: Settlement) -> Coroutine[Any, Any, SettleResult]:
        """As the base class; of a request that was admitted from a slice also without a record."""
        if settlement.slip is None:
            return super().settle(settlement)
        return self._settle_slip(settlement, settlement.slip)

    def release(self, settlement: Settlement) -> Coroutine[Any, Any, SettleResult]:
        """As the base class; a request that was admitted from a slice gets its record first, for a
        release without one leaves a mark that nothing can be charged to."""
        if settlement.slip is None:
            return super().release(settlement)
        return self._release_slip(settlement, settlement.slip)

    async def _settle_slip(self, settlement: Settlement, slip: Slip) -> SettleResult:
        result = await super().settle(settlement)
        if result.status is not SettleStatus.MISSING:
            return result
        await self._draw_slip(settlement, slip)
        return await super().settle(settlement)

    async def _release_slip(self, settlement: Settlement, slip: Slip) -> SettleResult:
        await self._draw_slip(settlement, slip)
        return await super().release(settlement)

    async def _draw_slip(self, settlement: Settlement, slip: Slip) -> None:
        drawing = Drawing(
            reservation_id=settlement.reservation_id,
            input_tokens=slip.input_tokens,
            reserved_tokens=slip.reserved_tokens,
            wire_format=slip.wire_format,
            model=slip.model,
            request_id=slip.request_id,
        )
        await self.draw(settlement.root, slip.slice_id, (drawing,))

    async def take_slice(self, request: SliceRequest, plan: SlicePlan) -> SliceTaken | None:
        """See ``SliceStore``."""
        root, estimate = request.root, request.estimate
        if request.version:
            try:
                encoded = encode(root, request.buckets)
            except ValueError:
                return None  # an ordinary reserve says what is wrong with them
            names, counters, kept = encoded.keys, encoded.for_script, encoded.for_record
        else:
            names, counters, kept = (keys.rpm_prefix(root), keys.tpm_prefix(root)), "", ""
        # The reaper must find what a worker that dies leaves.
        await self._registry.add(root)
        reply = await self._redis.run(
            self._slice,
            (
                keys.config(root),
                keys.output_prefix(root),
                keys.reservation(root, request.slice_id),
                keys.pending(root),
                keys.output_model_prefix(root, request.model),
                *names,
            ),
            (
                request.slice_id,
                request.version,
                request.overdue_ms,
                request.deadline_ms,
                plan.share_permille,
                plan.most_requests,
                plan.most_tokens,
                plan.used_permille,
                request.least_tokens,
                estimate.mode,
                estimate.quantile_permille,
                estimate.margin_percent,
                counters,
                kept,
                request.input_price,
                request.output_price,
            ),
        )
        match reply:
            case ["sliced", minute, requests, tokens, minute_left_ms, expected, flat]:
                return SliceTaken(
                    minute=minute,
                    requests=requests,
                    tokens=tokens,
                    minute_left_ms=minute_left_ms,
                    expected_output_tokens=None if expected < 0 else expected,
                    views=tuple(
                        WindowView(limit=limit, remaining=left, reset_ms=reset_ms)
                        for limit, left, reset_ms in zip(
                            flat[::3], flat[1::3], flat[2::3], strict=True
                        )
                    ),
                )
            case ["none", _]:
                return None
            case _:
                text = f"slice answered {reply!r:.200}"
                raise StoreUnavailableError("redis", text, transient=False, maybe_applied=True)

    async def draw(self, root: str, slice_id: str, drawings: Sequence[Drawing]) -> bool:
        """See ``SliceStore``."""
        args: list[Word] = [slice_id]
        for one in drawings:
            args += (
                one.reservation_id,
                stored_count(one.input_tokens),
                stored_count(one.reserved_tokens),
                one.wire_format,
                stored_text(one.model),
                stored_text(one.request_id),
                one.owner,
                one.request_hash,
                one.subject if self._writes_events else "",
            )
        made, is_current = await self._redis.run(
            self._draw,
            (
                keys.config(root),
                keys.reservation(root, slice_id),
                keys.pending(root),
                *(keys.reservation(root, one.reservation_id) for one in drawings),
            ),
            args,
        )
        return bool(made >= 0 and is_current)

    async def return_slice(self, root: str, slice_id: str) -> None:
        """See ``SliceStore``."""
        await super().release(undo_of(slice_id, root, Source.ADMISSION))
