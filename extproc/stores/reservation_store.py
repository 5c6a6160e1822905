"""Reservations in Redis: one script a verb, one round trip a call."""

from dataclasses import replace

from extproc.core.buckets import Bucket, BucketKind, Unit
from extproc.core.errors import StoreUnavailableError
from extproc.core.estimates import EstimateMode
from extproc.core.ids import ACROSS_PREFIX
from extproc.core.limits import MAX_LIMIT, ServiceLimit
from extproc.core.ports import OpenReservation
from extproc.core.reservations import (
    Admitted,
    Rejected,
    ReserveRequest,
    Settlement,
    SettleResult,
    StoreVerdict,
)
from extproc.core.usage import TOTALS
from extproc.stores import keys, scripts
from extproc.stores.bucket_codec import encode
from extproc.stores.client import RedisClient
from extproc.stores.redis_link import Word
from extproc.stores.root_registry import RootRegistry
from extproc.stores.scripts import load_script
from extproc.stores.verdicts import read_roots, read_settle_result, read_verdict

# A model name or request id is kept for people to read; a client may send a very long one.
_MAX_NOTE_CHARACTERS = 256
# Of a root without policies: it knows one kind of history, the mean.
_SIMPLE_MODES = {EstimateMode.STRICT: 1, EstimateMode.GIVEN: 2}


class RedisReservationStore:
    """Implements ``core.ports.ReservationStore``. The batcher is shared and closed by its owner.

    ``writes_events``: every change of a charge also appends a usage event for the ledger. All
    processes that share a Redis must agree on it.
    """

    def __init__(self, batcher: RedisClient, *, writes_events: bool = False) -> None:
        self._redis = batcher
        self._writes_events = writes_events
        self._reserve = load_script(scripts.RESERVE)
        self._reserve_policies = load_script(scripts.RESERVE_POLICIES)
        self._settle = load_script(scripts.SETTLE)
        self._release = load_script(scripts.RELEASE)
        self._renew = load_script(scripts.RENEW)
        self._overdue = load_script(scripts.OVERDUE)
        self._registry = RootRegistry(batcher)
        self._reviews = load_script(scripts.REVIEWS)
        self._is_loaded = False

    async def reserve(self, request: ReserveRequest) -> StoreVerdict:
        """Decide and take, in one script; the same id again gets its first answer.

        Raises StoreUnavailableError("policies") when the view in force has counters that cannot be
        asked in one call: too many of them, or of another root.
        """
        if request.limit is not None or request.is_pinned:
            # Without a cached limit nobody registered the root; the reaper must find it.
            await self._registry.add(request.root)
        problem: StoreUnavailableError | None = None
        if request.version:
            script = self._reserve_policies
            try:
                names, args = _policy_call(request, keeps_who=self._writes_events)
            except StoreUnavailableError as error:
                # Mended it may be already, so the view is compared all the same, with a counter
                # that admits nothing.
                problem = error
                request = replace(request, buckets=(_closed(request.root),))
                names, args = _policy_call(request, keeps_who=self._writes_events)
        else:
            script = self._reserve
            names, args = _simple_call(request, keeps_who=self._writes_events)
        verdict = read_verdict(request, await self._redis.run(script, names, args))
        if problem is not None and isinstance(verdict, Rejected):
            raise problem
        if isinstance(verdict, Admitted):
            self._registry.add_soon(request.root)
        return verdict

    async def settle(self, settlement: Settlement) -> SettleResult:
        """Charge what was used; only better knowledge changes an earlier end.

        Other roots that the record names get the same end. If one of them cannot be reached the
        whole call fails, and may be made again.
        """
        root = settlement.root
        reply = await self._redis.run(
            self._settle,
            (
                *_ending_keys(settlement),
                keys.output_prefix(root),
                keys.output_model_prefix(root, settlement.model),
                keys.review(root),
                *self._events(root),
            ),
            (
                settlement.reservation_id,
                int(settlement.knowledge),
                stored_count(settlement.input_tokens),
                stored_count(settlement.output_tokens),
                settlement.state,
                settlement.outcome,
                settlement.source,
                int(settlement.writes_history),
                "" if settlement.cost_micros is None else stored_count(settlement.cost_micros),
                _parts(settlement),
            ),
            # Of whole answers there are many, and nobody waits for them.
            lazily=settlement.writes_history,
        )
        result = read_settle_result(reply)
        for other in result.other_roots if settlement.follows else ():
            await self.settle(replace(settlement, root=other, writes_history=False))
        return result

    async def release(self, settlement: Settlement) -> SettleResult:
        """Give all tokens back whatever ``settlement`` counts, with its rank of knowledge.

        Other roots follow as with ``settle``.
        """
        reply = await self._redis.run(
            self._release,
            (
                *_ending_keys(settlement),
                keys.review(settlement.root),
                *self._events(settlement.root),
            ),
            (
                settlement.reservation_id,
                int(settlement.knowledge),
                settlement.outcome,
                settlement.source,
                int(settlement.undo),
            ),
        )
        result = read_settle_result(reply)
        for other in result.other_roots if settlement.follows else ():
            await self.release(replace(settlement, root=other))
        return result

    def _events(self, root: str) -> tuple[str, ...]:
        """Of a request that holds something at several roots, its own one tells all of it."""
        wanted = self._writes_events and not root.startswith(ACROSS_PREFIX)
        return (keys.events(root),) if wanted else ()

    async def renew(self, root: str, reservation_id: str, *, deadline_ms: int) -> bool:
        """Move the deadline and the leases of an open reservation, never to an earlier time; also
        at the other roots that its record names."""
        is_open, others = await self._redis.run(
            self._renew,
            (keys.reservation(root, reservation_id), keys.pending(root), keys.tpm_prefix(root)),
            (reservation_id, deadline_ms),
        )
        for other in read_roots(others):
            await self._registry.add(other)
            await self.renew(other, reservation_id, deadline_ms=deadline_ms)
        return bool(is_open)

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
                is_slice=bool(is_slice),
            )
            for reservation_id, input_tokens, reserved_tokens, overdue_ms, is_slice in found
        ]

    async def open_count(self, root: str) -> int:
        """How many reservations of ``root`` are open."""
        return int(await self._redis.command("ZCARD", keys.pending(root)))

    async def review_count(self, root: str) -> int:
        """How many reservations of ``root`` wait for people's word."""
        return int(await self._redis.run(self._reviews, (keys.review(root),), ()))

    async def roots(self) -> list[str]:
        """Every root that may hold a reservation, sorted."""
        return await self._registry.roots()

    async def close(self) -> None:
        """Stop what runs in the background; before the batcher is closed."""
        await self._registry.close()

    async def ping(self) -> None:
        """Redis answers; the first time that it does, it also gets all scripts."""
        await self._redis.ping()
        if not self._is_loaded:
            await self._redis.load(map(load_script, scripts.ALL))
            self._is_loaded = True


def stored_count(value: int) -> int:
    """A number that Redis' Lua adds exactly, and that can never mint tokens.

    In this order of arguments even what is not a number becomes 0.
    """
    return int(min(max(0, value), MAX_LIMIT))


def stored_text(text: str) -> bytes:
    """A client's text as it is kept; JSON lets it hold surrogates, which UTF-8 does not."""
    return text[:_MAX_NOTE_CHARACTERS].encode("utf-8", "replace")


def _parts(settlement: Settlement) -> str:
    """Reported usage beyond the totals, for people: kinds of input and output, and calls."""
    usage = settlement.usage
    if usage is None or not usage.has_parts:
        return ""
    kinds = usage.kinds()
    return ", ".join(
        f"{name} {stored_count(number)}" for name, number in kinds.items() if name not in TOTALS
    )


def _pinned(limit: ServiceLimit | None) -> tuple[str | int, str | int, str | int]:
    return ("", "", "") if limit is None else (int(limit.enabled), limit.rpm, limit.tpm)


def _caps(request: ReserveRequest) -> tuple[int, int]:
    platform = request.estimate.platform_cap_tokens
    cap = request.output_cap_tokens
    return (
        -1 if cap is None else stored_count(cap),
        -1 if platform is None else stored_count(platform),
    )


def _simple_call(
    request: ReserveRequest, *, keeps_who: bool
) -> tuple[tuple[str, ...], tuple[Word, ...]]:
    root = request.root
    cap, platform_cap = _caps(request)
    names = (
        keys.config(root),
        keys.rpm_prefix(root),
        keys.tpm_prefix(root),
        keys.output_prefix(root),
        keys.reservation(root, request.reservation_id),
        keys.pending(root),
        keys.refusals(root),
        *_idempotency_keys(request),
    )
    return names, (
        request.reservation_id,
        stored_count(request.input_tokens),
        cap,
        stored_count(request.default_output_tokens),
        request.deadline_ms,
        request.wire_format,
        stored_text(request.model),
        stored_text(request.request_id),
        *_pinned(request.limit),
        _SIMPLE_MODES.get(request.estimate.mode, 0),
        platform_cap,
        request.owner,
        request.request_hash,
        *_idempotency_args(request),
        request.subject,
        int(keeps_who),
    )


def _closed(root: str) -> Bucket:
    """A counter that admits nothing; no policy's is called so."""
    key = keys.minute_prefix(root, "no_room.rpm")
    return Bucket(label="no_room/rpm", kind=BucketKind.MINUTE, unit=Unit.REQUESTS, key=key, limit=0)


def _policy_call(
    request: ReserveRequest, *, keeps_who: bool
) -> tuple[tuple[str, ...], tuple[Word, ...]]:
    root, plan = request.root, request.estimate
    cap, platform_cap = _caps(request)
    try:
        encoded = encode(root, request.buckets)
    except ValueError as error:
        # What an administrator stored cannot be asked in one call; never a reason to fail open.
        raise StoreUnavailableError("policies", str(error), transient=False) from error
    names = (
        keys.config(root),
        keys.output_prefix(root),
        keys.reservation(root, request.reservation_id),
        keys.pending(root),
        keys.output_model_prefix(root, request.model),
        keys.refusals(root),
        *encoded.keys,
        *_idempotency_keys(request),
    )
    return names, (
        request.reservation_id,
        request.version,
        int(request.is_pinned),
        request.owner,
        request.request_hash,
        stored_count(request.input_tokens),
        cap,
        stored_count(request.default_output_tokens),
        plan.mode,
        plan.quantile_permille,
        plan.margin_percent,
        platform_cap,
        request.input_price,
        request.output_price,
        request.deadline_ms,
        request.wire_format,
        stored_text(request.model),
        stored_text(request.request_id),
        encoded.for_script,
        encoded.for_record,
        ",".join(request.other_roots),
        *_idempotency_args(request),
        request.subject,
        int(keeps_who),
    )


def _idempotency_keys(request: ReserveRequest) -> tuple[str, ...]:
    key = request.idempotency_key
    return (keys.idempotency(request.root, key),) if key else ()


def _idempotency_args(request: ReserveRequest) -> tuple[str | int, str]:
    key = request.idempotency_key
    # Not shorter than the attempt may last, or two could run at once.
    return (max(request.idempotency_ttl_ms, request.deadline_ms), key) if key else ("", "")


def _ending_keys(settlement: Settlement) -> tuple[str, str, str, str]:
    root = settlement.root
    return (
        keys.tpm_prefix(root),
        keys.reservation(root, settlement.reservation_id),
        keys.pending(root),
        keys.rpm_prefix(root),
    )
