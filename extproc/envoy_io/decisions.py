"""The log line of an admitted request, with every limit before and after; level debug."""

import logging

from extproc.core.handles import Handle
from extproc.core.reservations import Admitted, BucketState

log = logging.getLogger("tokenweir.admission")


def log_admitted(verdict: Admitted, handle: Handle) -> None:
    """One line, and nothing unless it is wanted: this is on every request's path."""
    if not log.isEnabledFor(logging.DEBUG):
        return
    output = verdict.reserved_tokens - verdict.input_tokens
    log.debug(
        "admitted",
        extra={
            "reservation_id": handle.reservation_id,
            "service_id": verdict.root,
            "model": handle.model,
            "input_tokens": verdict.input_tokens,
            "reserved_output_tokens": output,
            "reserved_cost_micros": verdict.reserved_cost_micros,
            "limits": [_plain(state, verdict) for state in verdict.buckets] or _simple(verdict),
            "shadow_refusals": list(verdict.shadow_refusals),
            "request_id": handle.request_id,
        },
    )


def _plain(state: BucketState, verdict: Admitted) -> dict[str, str | int]:
    taken = {
        "requests": 1,
        "slot": 1,
        "input": verdict.input_tokens,
        "output": verdict.reserved_tokens - verdict.input_tokens,
        "total": verdict.reserved_tokens,
        "cost": verdict.reserved_cost_micros,
    }[state.unit.value]
    return {
        "limit": state.label,
        "of": state.limit,
        "left_before": state.remaining + taken,
        "left_after": state.remaining,
    }


def _simple(verdict: Admitted) -> list[dict[str, str | int]]:
    views = (("rpm", verdict.requests, 1), ("tpm", verdict.tokens, verdict.reserved_tokens))
    return [
        {
            "limit": label,
            "of": view.limit,
            "left_before": view.remaining + taken,
            "left_after": view.remaining,
        }
        for label, view, taken in views
        if view is not None
    ]
