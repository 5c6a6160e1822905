"""Decisions that are no limit's, as errors for the client."""

from extproc.core.errors import RequestError
from extproc.core.reservations import IdConflict, ServiceRefused, ServiceState, Unpriced
from extproc.envoy_io.idempotency import key_error


def error_of(
    verdict: ServiceRefused | IdConflict | Unpriced, model: str, idempotency_header: str | None
) -> RequestError:
    """What the client is told; ``model`` is the requested one."""
    if isinstance(verdict, ServiceRefused):
        return service_error(verdict)
    if isinstance(verdict, IdConflict):
        return key_error(verdict, idempotency_header)
    return RequestError(
        403,
        "unpriced_model",
        f"Model '{model}' has no price here, and limits of cost apply to this request "
        f"({', '.join(verdict.limits)}).",
        param="model",
    )


def service_error(verdict: ServiceRefused) -> RequestError:
    """403 for a service that is not known, or disabled."""
    if verdict.state is ServiceState.DISABLED:
        return RequestError(403, "service_disabled", "This service is disabled.")
    return RequestError(403, "unknown_service", "This service is not known here.")
