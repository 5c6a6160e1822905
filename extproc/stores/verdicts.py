"""Answers of the scripts as values of the core."""

from collections.abc import Iterable, Sequence
from typing import Any

from extproc.core.buckets import Bucket, Unit
from extproc.core.errors import StoreUnavailableError
from extproc.core.reservations import (
    Admitted,
    BucketState,
    Conflict,
    IdConflict,
    LimitsMissing,
    LimitsStale,
    Refusal,
    Rejected,
    ReserveRequest,
    ServiceRefused,
    ServiceState,
    SettleResult,
    SettleStatus,
    StoreVerdict,
    WindowView,
)

_REQUESTS = frozenset({Unit.REQUESTS})
_TOKENS = frozenset({Unit.INPUT, Unit.OUTPUT, Unit.TOTAL})


def read_verdict(request: ReserveRequest, reply: list[Any]) -> StoreVerdict:
    """The answer of reserve.lua or reserve_policies.lua."""
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
                retry_after_ms=_retry(retry_ms),
                requested_input_tokens=request.input_tokens,
            )
        case ["taken", minute, input_tokens, reserved, cost, states, shadow]:
            counters = _states(request.buckets, states)
            return Admitted(
                reservation_id=request.reservation_id,
                root=request.root,
                minute=minute,
                input_tokens=input_tokens,
                reserved_tokens=reserved,
                requests=_tightest(request.buckets, counters, _REQUESTS),
                tokens=_tightest(request.buckets, counters, _TOKENS),
                reserved_cost_micros=cost,
                buckets=counters,
                shadow_refusals=_labels(request.buckets, shadow),
            )
        case ["exceeded", asked, cost, states, refused, shadow]:
            counters = _states(request.buckets, states)
            refusals = _refusals(request.buckets, counters, refused)
            binding = max(refusals, key=_duration)
            return Rejected(
                root=request.root,
                refused_by=binding.label,
                requested_tokens=asked,
                requests=_tightest(request.buckets, counters, _REQUESTS),
                tokens=_tightest(request.buckets, counters, _TOKENS),
                retry_after_ms=binding.retry_after_ms,
                requested_cost_micros=cost,
                requested_input_tokens=request.input_tokens,
                buckets=counters,
                refusals=refusals,
                shadow_refusals=_labels(request.buckets, shadow),
            )
        case ["stale", version, view]:
            return LimitsStale(version, view)
        case ["conflict", what]:
            return IdConflict(Conflict(what))
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


def read_settle_result(reply: list[Any]) -> SettleResult:
    """The answer of settle.lua or release.lua."""
    match reply:
        case ["missing"]:
            return SettleResult(status=SettleStatus.MISSING)
        case [status, reserved, before, charged, outcome, also]:
            return SettleResult(
                status=SettleStatus(status),
                reserved_tokens=reserved,
                charged_before_tokens=before,
                charged_tokens=charged,
                outcome=outcome,
                other_roots=read_roots(also),
            )
        case _:
            raise _unreadable("settle", reply)


def read_roots(text: str) -> tuple[str, ...]:
    """The other roots of a record."""
    return tuple(text.split(",")) if text else ()


def _states(buckets: Sequence[Bucket], flat: Sequence[int]) -> tuple[BucketState, ...]:
    return tuple(
        BucketState(
            label=bucket.label,
            unit=bucket.unit,
            limit=bucket.limit,
            remaining=flat[2 * i],
            reset_ms=flat[2 * i + 1],
        )
        for i, bucket in enumerate(buckets)
    )


def _refusals(
    buckets: Sequence[Bucket], states: Sequence[BucketState], flat: Sequence[int]
) -> tuple[Refusal, ...]:
    return tuple(
        Refusal(
            label=states[index - 1].label,
            unit=states[index - 1].unit,
            limit=states[index - 1].limit,
            remaining=states[index - 1].remaining,
            retry_after_ms=_retry(retry_ms),
            subject=buckets[index - 1].subject,
            burst=buckets[index - 1].burst,
        )
        for index, retry_ms in zip(flat[::2], flat[1::2], strict=True)
    )


def _labels(buckets: Sequence[Bucket], indices: Iterable[int]) -> tuple[str, ...]:
    return tuple(buckets[index - 1].label for index in indices if index <= len(buckets))


def _tightest(
    buckets: Sequence[Bucket], states: Sequence[BucketState], units: frozenset[Unit]
) -> WindowView | None:
    """What the headers show: of the counters that can refuse, the one with the least left."""
    found = [
        state
        for bucket, state in zip(buckets, states, strict=True)
        if bucket.unit in units and bucket.enforced and bucket.refuses
    ]
    if not found:
        return None
    least = min(found, key=lambda state: state.remaining)
    return WindowView(limit=least.limit, remaining=least.remaining, reset_ms=least.reset_ms)


def _duration(refusal: Refusal) -> float:
    return float("inf") if refusal.retry_after_ms is None else refusal.retry_after_ms


def _retry(milliseconds: int) -> int | None:
    return None if milliseconds < 0 else milliseconds


def _unreadable(verb: str, reply: object) -> StoreUnavailableError:
    text = f"{verb} answered {reply!r:.200}"
    return StoreUnavailableError("redis", text, transient=False, maybe_applied=True)
