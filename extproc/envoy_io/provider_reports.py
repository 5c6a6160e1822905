"""Tells operators of a provider's errors and of what it has left: a counter, a gauge, a log line.

The client gets the provider's answer as it is.
"""

import logging
from collections.abc import Mapping

from extproc.core.handles import Handle
from extproc.core.ports import Telemetry
from extproc.core.provider_errors import RETRYABLE, ErrorCode, ProviderError
from extproc.providers.provider_faults import provider_error
from extproc.providers.provider_room import rooms_of
from extproc.providers.registry import provider_of

log = logging.getLogger("tokenweir.provider")


def report_rooms(telemetry: Telemetry, handle: Handle, headers: Mapping[str, str]) -> None:
    """Remember what the answer's headers say is left."""
    for room in rooms_of(headers):
        telemetry.provider_room(provider_of(handle.wire_format), handle.model, room)


def report_answer(
    telemetry: Telemetry,
    handle: Handle,
    *,
    status: int,
    headers: Mapping[str, str],
    value: object,
) -> None:
    """An answer that is an error, by its status or by what it says."""
    error = provider_error(
        provider_of(handle.wire_format), status=status, headers=headers, value=value
    )
    report(telemetry, handle, error)


def report_silence(telemetry: Telemetry, handle: Handle, code: ErrorCode, *, status: int) -> None:
    """No answer, or half of one, as Envoy saw it."""
    error = ProviderError(
        provider=provider_of(handle.wire_format),
        status=status,
        code=code,
        retryable=code in RETRYABLE,
    )
    report(telemetry, handle, error)


def report(telemetry: Telemetry, handle: Handle, error: ProviderError) -> None:
    """Count and log one error."""
    telemetry.provider_failed(error)
    log.info(
        "provider_error",
        extra={
            "provider": error.provider,
            "status": error.status,
            "code": error.code.value,
            "dimension": error.dimension.value,
            "retryable": error.retryable,
            "retry_after_seconds": error.retry_after_seconds,
            "provider_code": error.provider_code,
            "model": handle.model,
            "service_id": handle.root,
            "reservation_id": handle.reservation_id,
            "request_id": handle.request_id,
        },
    )
