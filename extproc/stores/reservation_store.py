"""Reservations in Redis: one script a verb, one round trip a call."""

from typing import Any

from extproc.core.errors import StoreUnavailableError
from extproc.core.limits import MAX_LIMIT, ServiceLimit
from extproc.core.ports import OpenReservation
from extproc.core.reservations import (
    Admitted,
    LimitsMissing,
    Rejected,
    ReserveRequest,
    ServiceRefused,
    ServiceState,
    Settlement,
    SettleResult,
    SettleStatus,
    StoreVerdict,
    WindowView,
)
from extproc.stores import keys, scripts
from extproc.stores.batcher import RedisBatcher
from extproc.stores.scripts import load_script

# A model name or request id is kept for people to read; a client may send a very long one.
_MAX_NOTE_CHARACTERS = 256


class RedisReservationStore:
    """Implements ``core.ports.ReservationStore``. The batcher is shared and closed by its owner."""

    def __init__(self, batcher: RedisBatcher) -> None:
        self._redis = batcher
        self._reserve = load_script(scripts.RESERVE)
        self._settle = load_script(scripts.SETTLE)
        self._release = load_script(scripts.RELEASE)
        self._overdue = load_script(scripts.OVERDUE)
        self._is_loaded = False

    async def reserve(self, request: ReserveRequest) -> StoreVerdict:
        """Decide and take, in one script; the same id again gets its first answer."""
        root = request.root
        if request.limit is not None:
            # Without a cached limit nobody registered the root; the reaper must find it.
            await self._redis.command("SADD", keys.ROOTS, root)
        cap = -1 if request.output_cap_tokens is None else _count(request.output_cap_tokens)
        reply = await self._redis.run(
            self._reserve,
            (
                keys.config(root),
                keys.rpm_prefix(root),
                keys.tpm_prefix(root),
                keys.output_prefix(root),
                keys.reservation(root, request.reservation_id),
                keys.pending(root),
            ),
            (
                request.reservation_id,
                _count(request.input_tokens),
                cap,
                _count(request.default_output_tokens),
                request.deadline_ms,
                request.wire_format,
                _note(request.model),
                _note(request.request_id),
                *_pinned(request.limit),
            ),
        )
        return _verdict(request, reply)

    async def settle(self, settlement: Settlement) -> SettleResult:
        """Charge what was used; only better knowledge changes an earlier end."""
        root = settlement.root
        reply = await self._redis.run(
            self._settle,
            (*_ending_keys(settlement), keys.output_prefix(root)),
            (
                settlement.reservation_id,
                int(settlement.knowledge),
                _count(settlement.input_tokens),
                _count(settlement.output_tokens),
                settlement.state,
                settlement.outcome,
                settlement.source,
                int(settlement.writes_history),
            ),
        )
        return _settle_result(reply)

    async def release(self, settlement: Settlement) -> SettleResult:
        """Give all tokens back whatever ``settlement`` counts, with its rank of knowledge."""
        reply = await self._redis.run(
            self._release,
            _ending_keys(settlement),
            (
                settlement.reservation_id,
                int(settlement.knowledge),
                settlement.outcome,
                settlement.source,
            ),
        )
        return _settle_result(reply)

    async def overdue(self, root: str, *, at_most: int) -> list[OpenReservation]:
        """Open reservations past their deadline by Redis' clock, the longest overdue first."""
        found = await self._redis.run(
            self._overdue, (keys.pending(root), keys.reservation_prefix(root)), (at_most,)
        )
        return [
            OpenReservation(
                reservation_id=reservation_id,
                root=root,
                input_tokens=input_tokens,
                reserved_tokens=reserved_tokens,
                overdue_ms=overdue_ms,
            )
            for reservation_id, input_tokens, reserved_tokens, overdue_ms in found
        ]

    async def open_count(self, root: str) -> int:
        """How many reservations of ``root`` are open."""
        return int(await self._redis.command("ZCARD", keys.pending(root)))

    async def roots(self) -> list[str]:
        """Every root that may hold a reservation, sorted."""
        return sorted(await self._redis.command("SMEMBERS", keys.ROOTS))

    async def ping(self) -> None:
        """Redis answers; the first time that it does, it also gets all scripts."""
        await self._redis.command("PING")
        if not self._is_loaded:
            await self._redis.load(map(load_script, scripts.ALL))
            self._is_loaded = True


def _count(value: int) -> int:
    """A number that Redis' Lua adds exactly, and that can never mint tokens."""
    return min(max(value, 0), MAX_LIMIT)


def _note(text: str) -> bytes:
    """A client's text as it is kept; JSON lets it hold surrogates, which UTF-8 does not."""
    return text[:_MAX_NOTE_CHARACTERS].encode("utf-8", "replace")


def _pinned(limit: ServiceLimit | None) -> tuple[str | int, str | int, str | int]:
    return ("", "", "") if limit is None else (int(limit.enabled), limit.rpm, limit.tpm)


def _ending_keys(settlement: Settlement) -> tuple[str, str, str]:
    root = settlement.root
    return (
        keys.tpm_prefix(root),
        keys.reservation(root, settlement.reservation_id),
        keys.pending(root),
    )


def _verdict(request: ReserveRequest, reply: list[Any]) -> StoreVerdict:
    match reply:
        case ["admitted", minute, input_tokens, reserved, rpm, rpm_left, tpm, tpm_left, reset_ms]:
            return Admitted(
                reservation_id=request.reservation_id,
                root=request.root,
                minute=minute,
                input_tokens=input_tokens,
                reserved_tokens=reserved,
                requests=WindowView(limit=rpm, remaining=rpm_left, reset_ms=reset_ms),
                tokens=WindowView(limit=tpm, remaining=tpm_left, reset_ms=reset_ms),
            )
        case ["rejected", by, asked, rpm, rpm_left, tpm, tpm_left, reset_ms, retry_ms]:
            return Rejected(
                root=request.root,
                refused_by=by,
                requested_tokens=asked,
                requests=WindowView(limit=rpm, remaining=rpm_left, reset_ms=reset_ms),
                tokens=WindowView(limit=tpm, remaining=tpm_left, reset_ms=reset_ms),
                retry_after_ms=None if retry_ms < 0 else retry_ms,
            )
        case ["refused", state]:
            return ServiceRefused(ServiceState(state))
        case ["missing"]:
            return LimitsMissing()
        case ["released"]:
            raise StoreUnavailableError(
                "redis", "the reservation was released before it was made", transient=False
            )
        case _:
            raise _unreadable("reserve", reply)


def _settle_result(reply: list[Any]) -> SettleResult:
    match reply:
        case ["missing"]:
            return SettleResult(status=SettleStatus.MISSING)
        case [status, reserved, before, charged, outcome]:
            return SettleResult(
                status=SettleStatus(status),
                reserved_tokens=reserved,
                charged_before_tokens=before,
                charged_tokens=charged,
                outcome=outcome,
            )
        case _:
            raise _unreadable("settle", reply)


def _unreadable(verb: str, reply: object) -> StoreUnavailableError:
    text = f"{verb} answered {reply!r:.200}"
    return StoreUnavailableError("redis", text, transient=False, maybe_applied=True)
