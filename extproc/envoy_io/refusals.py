"""Refusals: the answer in the client's own API's shape, one log line, one counter."""

import logging

from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from extproc.core.errors import RequestError, StoreUnavailableError
from extproc.core.policies import Descriptor
from extproc.core.ports import Telemetry
from extproc.core.reservations import Rejected
from extproc.core.subjects import told_values
from extproc.envoy_io.replies import (
    INSUFFICIENT_QUOTA,
    bad_request_headers,
    error_type,
    immediate,
    is_spent,
    rejected_headers,
    rejected_message,
    unavailable_headers,
    unmetered_reply,
)
from extproc.providers.errors_shape import error_body, error_headers

log = logging.getLogger("tokenweir.admission")

_MAX_LOGGED = 256
# What a client can quote, and what the log line is found by.
REQUEST_ID = "x-request-id"
# How our refusals begin in Envoy's %RESPONSE_CODE_DETAILS%.
DETAILS_PREFIX = "tokenweir_"


class Refusals:
    """Builds immediate responses."""

    def __init__(self, telemetry: Telemetry, *, fails_open: bool) -> None:
        self._telemetry = telemetry
        self._fails_open = fails_open

    def bad_request(
        self, error: RequestError, *, path: str, service_id: str, request_id: str
    ) -> pb.ProcessingResponse:
        """4xx: the request itself is wrong, or it may not be made at all."""
        self._telemetry.refused(error.code)
        log.warning(
            "refused",
            extra={
                "status": error.status,
                "code": error.code,
                "param": error.param,
                "reason": error.message[:_MAX_LOGGED],
                "service_id": service_id,
                "path": path[:_MAX_LOGGED],
                "request_id": request_id,
            },
        )
        body = error_body(
            path,
            status=error.status,
            code=error.code,
            message=error.message,
            param=error.param,
        )
        return immediate(
            error.status,
            body,
            headers=bad_request_headers(error.status) | _named(path, error.status, request_id),
            details=f"{DETAILS_PREFIX}{error.code}",
        )

    def unreadable(self) -> pb.ProcessingResponse:
        """400 for a request whose headers are not text; not even its path is known."""
        error = RequestError(400, "invalid_header", "A request header is not valid UTF-8.")
        return self.bad_request(error, path="", service_id="", request_id="")

    def over_limit(
        self,
        verdict: Rejected,
        descriptor: Descriptor,
        *,
        path: str,
        request_id: str,
        model: str,
    ) -> pb.ProcessingResponse:
        """429: a limit refused. In the log, ``limit`` is the one that lasts longest."""
        code = INSUFFICIENT_QUOTA if is_spent(verdict) else "rate_limit_exceeded"
        log.warning(
            "refused",
            extra={
                "status": 429,
                "code": code,
                "limit": verdict.refused_by,
                **_logged_amounts(verdict),
                "service_id": verdict.root,
                "subject": told_values(descriptor),
                "model": model,
                "requested_tokens": verdict.requested_tokens,
                "retry_after_ms": verdict.retry_after_ms,
                # A simple limit is the only one that it names.
                "refusals": [refusal.label for refusal in verdict.refusals] or [verdict.refused_by],
                "path": path[:_MAX_LOGGED],
                "request_id": request_id,
            },
        )
        body = error_body(
            path,
            status=429,
            code=code,
            message=rejected_message(verdict),
            param=None,
            error_type=error_type(verdict),
        )
        return immediate(
            429,
            body,
            headers=rejected_headers(verdict) | _named(path, 429, request_id),
            details=f"{DETAILS_PREFIX}over_limit",
        )

    def unavailable(
        self,
        error: StoreUnavailableError,
        *,
        path: str,
        service_id: str,
        request_id: str,
        may_open: bool = True,
    ) -> pb.ProcessingResponse:
        """A store did not answer: 503, or through without metering, as the operator decided.

        Failing open is about Redis only: without SQL a cold service has no limits to apply.
        """
        if error.store == "redis" and self._fails_open and may_open:
            self._telemetry.failed_open(error.store)
            log.error(
                "failed open",
                extra={
                    "store": error.store,
                    "reason": str(error),
                    "service_id": service_id,
                    "request_id": request_id,
                },
            )
            return unmetered_reply("failed_open")
        self._telemetry.refused(f"{error.store}_unavailable")
        log.error(
            "refused",
            extra={
                "status": 503,
                "code": "limiter_unavailable",
                "store": error.store,
                "reason": str(error),
                "service_id": service_id,
                "path": path[:_MAX_LOGGED],
                "request_id": request_id,
            },
        )
        body = error_body(
            path,
            status=503,
            code="limiter_unavailable",
            message="The rate limiter is not available at the moment. Please try again shortly.",
            param=None,
        )
        return immediate(
            503,
            body,
            headers=unavailable_headers() | _named(path, 503, request_id),
            details=f"{DETAILS_PREFIX}{error.store}_unavailable",
        )


def _named(path: str, status: int, request_id: str) -> dict[str, str]:
    return error_headers(path, status=status) | {REQUEST_ID: request_id}


def _logged_amounts(verdict: Rejected) -> dict[str, int]:
    """Both windows of a simple root; of policies only the binding limit, in its own unit."""
    for refusal in verdict.refusals:
        if refusal.label == verdict.refused_by:
            full = refusal.limit if refusal.burst is None else refusal.burst
            return {"limit_of": full, "limit_remaining": refusal.remaining}
    views = (("rpm", verdict.requests), ("tpm", verdict.tokens))
    return {
        f"{name}_{what}": amount
        for name, view in views
        if view is not None
        for what, amount in (("limit", view.limit), ("remaining", view.remaining))
    }
