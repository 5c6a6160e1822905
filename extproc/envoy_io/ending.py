"""Ending: Envoy's access log entries tell how each metered request ended.

Entries can be lost, so nothing depends on one: they release what metering never saw, name the
reason of a cut, and the reaper is the net below. Periodic entries say that a long stream still
runs. Entries of requests that admission never saw are counted (see ``unseen``).
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

import grpc
from envoy.data.accesslog.v3.accesslog_pb2 import (
    AccessLogType,
    HTTPAccessLogEntry,
    ResponseFlags,
)
from envoy.service.accesslog.v3 import als_pb2

from extproc.core.errors import RequestError
from extproc.core.handles import METERED_KEY, NAMESPACE, UNMETERED_KEY, Handle
from extproc.core.ids import reservation_id_of
from extproc.core.metered import Metered
from extproc.core.outcomes import release_of, settle_ending
from extproc.core.ports import Telemetry
from extproc.core.provider_errors import ErrorCode
from extproc.core.renewals import Renewals
from extproc.core.reservations import Outcome, Source
from extproc.core.settler import Settler
from extproc.envoy_io.attributes import VIA_UPSTREAM, namespace_fields, read_handle
from extproc.envoy_io.held_endings import HOLD_SECONDS, HeldEndings
from extproc.envoy_io.identity import IdentitySource, identify
from extproc.envoy_io.native import Native
from extproc.envoy_io.provider_reports import report_answer, report_silence
from extproc.envoy_io.refusals import DETAILS_PREFIX
from extproc.envoy_io.unseen import NO_BODY, logged_path, unseen_reason

log = logging.getLogger("tokenweir.ending")

_PERIODIC, _START = AccessLogType.DownstreamPeriodic, AccessLogType.DownstreamStart
# Envoy never got the request to an upstream.
_NEVER_SENT_FLAGS = (
    "no_healthy_upstream",
    "upstream_connection_failure",
    "upstream_overflow",
    "no_route_found",
    "no_cluster_found",
    "dns_resolution_failure",
)
_CLIENT_GONE_FLAGS = (
    "downstream_connection_termination",
    "downstream_remote_reset",
    "downstream_protocol_error",
)
# The response code of an entry whose client got no answer at all.
_NOTHING_SENT = 0
_CLIENT_ERROR, _SERVER_ERROR = 400, 500
_TIMEOUT_FLAGS = ("upstream_request_timeout", "duration_timeout", "stream_idle_timeout")
# The configuration's fault, not the provider's.
_NO_TARGET_FLAGS = ("no_route_found", "no_cluster_found")
_BROKEN_FLAGS = (
    "upstream_connection_termination",
    "upstream_remote_reset",
    "upstream_protocol_error",
    "upstream_request_timeout",
    "stream_idle_timeout",
    "duration_timeout",
    "upstream_max_stream_duration_reached",
    "local_reset",
)


def outcome_of(entry: HTTPAccessLogEntry) -> Outcome:
    """How the request ended, by Envoy's flags, code and times.

    Source: Envoy's access log API (ResponseFlags) and what was measured on Envoy 1.40: a client
    that leaves sets a downstream flag, an upstream reset in mid-stream upstream_protocol_error, a
    route time-out in mid-stream upstream_request_timeout.
    """
    common, response = entry.common_properties, entry.response
    flags = common.response_flags
    code = response.response_code.value
    called = _was_called(entry)
    answered = common.HasField("time_to_first_upstream_rx_byte") and 200 <= code < 300
    if _any(flags, _NEVER_SENT_FLAGS):
        return Outcome.UPSTREAM_REFUSED
    if _any(flags, _CLIENT_GONE_FLAGS) or code == _NOTHING_SENT:
        # After the upstream was called it may well have worked on, answer seen or not.
        return Outcome.CLIENT_GONE if called else Outcome.NOT_FORWARDED
    if not called:
        return Outcome.NOT_FORWARDED
    if answered:
        if _any(flags, _BROKEN_FLAGS):
            return Outcome.UPSTREAM_BROKEN
        # An HTTP/2 client that resets its stream with NO_ERROR leaves no flag, only an answer
        # whose last byte never came.
        whole = common.HasField("time_to_last_upstream_rx_byte")
        return Outcome.COMPLETE_ESTIMATED if whole else Outcome.CLIENT_GONE
    if _any(flags, _TIMEOUT_FLAGS):
        # It has our request and may have answered it in full, a moment too late.
        return Outcome.UPSTREAM_BROKEN
    if is_undelivered(entry):
        return Outcome.UPSTREAM_BROKEN
    return Outcome.UPSTREAM_REFUSED


def silence_of(entry: HTTPAccessLogEntry, outcome: Outcome) -> ErrorCode | None:
    """What the provider failed at, where it gave no whole answer; None: it is not to blame, or its
    answer says it."""
    flags = entry.common_properties.response_flags
    if outcome not in (Outcome.UPSTREAM_REFUSED, Outcome.UPSTREAM_BROKEN):
        return None
    if entry.response.response_code_details == VIA_UPSTREAM and not _any(flags, _BROKEN_FLAGS):
        return None
    if _any(flags, _NO_TARGET_FLAGS):
        return None
    if _any(flags, _TIMEOUT_FLAGS):
        return ErrorCode.TIMEOUT
    if outcome is Outcome.UPSTREAM_REFUSED:
        return ErrorCode.UNREACHABLE
    # Without a flag it was Envoy itself that gave the answer up, because it was too large.
    return ErrorCode.BROKEN if _any(flags, _BROKEN_FLAGS) else None


def is_undelivered(entry: HTTPAccessLogEntry) -> bool:
    """The upstream began to answer and broke off before Envoy had passed anything on, so that the
    client got Envoy's own 502 or 503."""
    return (
        entry.common_properties.HasField("time_to_first_upstream_rx_byte")
        and entry.response.response_code.value >= 500
        and entry.response.response_code_details != VIA_UPSTREAM
        and _any(entry.common_properties.response_flags, _BROKEN_FLAGS)
    )


def _was_called(entry: HTTPAccessLogEntry) -> bool:
    return bool(entry.common_properties.HasField("time_to_first_upstream_tx_byte"))


def _any(flags: ResponseFlags, names: tuple[str, ...]) -> bool:
    # Nearly every entry has none.
    return any(field.name in names for field, _ in flags.ListFields())


class Ending:
    """Reads access log streams, one per Envoy worker."""

    def __init__(
        self,
        settler: Settler,
        renewals: Renewals,
        telemetry: Telemetry,
        *,
        identity: Sequence[IdentitySource],
        stopping: asyncio.Event,
        metered: Metered | None = None,
        native: Native | None = None,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        self._held = HeldEndings(hold_seconds)
        self._metered = metered or Metered()
        self._native = native or Native()
        self._settler = settler
        self._renewals = renewals
        self._identity = identity
        self._telemetry = telemetry
        self._stopping = stopping

    async def process(self, context: grpc.aio.ServicerContext) -> None:
        """One access log stream. Returns when the server stops, so that Envoy loses no entry."""
        # One task for all messages: to wait for each of them and the stop costs more than an entry.
        reading = asyncio.ensure_future(self._read(context))
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({reading, stop}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
        finally:
            stop.cancel()
            if not reading.cancel() and not reading.cancelled():
                reading.exception()  # was told, or nobody is there to be told

    async def _read(self, context: grpc.aio.ServicerContext) -> None:
        while True:
            message: als_pb2.StreamAccessLogsMessage = await context.read()
            if message is grpc.aio.EOF:
                return
            for entry in message.http_logs.log_entry:
                self.on_entry(entry)

    def flush(self) -> None:
        """The server has stopped: nobody's word is waited for any longer."""
        self._held.flush()

    def on_entry(self, entry: HTTPAccessLogEntry) -> None:
        """Settle or classify one ended request, renew one that still runs; never awaits."""
        common = entry.common_properties
        if common.access_log_type == _PERIODIC:
            self._renew(entry)
            return
        if common.intermediate_log_entry or common.access_log_type == _START:
            return
        fields = namespace_fields(common.metadata, NAMESPACE)
        if METERED_KEY in fields:
            # The ordinary case, and the only one that costs something under load.
            self._telemetry.ended("metered")
            return
        handle = read_handle(fields)
        if handle is None:
            self._on_entry_without_handle(entry)
            return
        if handle.profile == "observe" and self._is_metered(handle):
            return
        outcome, undelivered = outcome_of(entry), is_undelivered(entry)
        if handle.profile == "observe" and outcome is Outcome.COMPLETE_ESTIMATED:
            self._held.hold(partial(self._settle_unless_metered, handle, outcome))
            return
        if handle.profile == "native":
            end = self._native.settlement(handle, outcome, entry, undelivered=undelivered)
        else:
            end = settle_ending(handle, outcome, undelivered=undelivered)
        self._telemetry.ended(end.outcome.value)
        self._settler.submit(end)
        self._report(handle, entry, end.outcome)

    def _is_metered(self, handle: Handle) -> bool:
        is_metered = self._metered.take(handle.reservation_id)
        if is_metered:
            self._telemetry.ended("metered")
        return is_metered

    def _settle_unless_metered(self, handle: Handle, outcome: Outcome) -> None:
        """Of a whole answer whose copies had time to come."""
        if not self._is_metered(handle):
            self._telemetry.ended(outcome.value)
            self._settler.submit(settle_ending(handle, outcome))

    def _report(self, handle: Handle, entry: HTTPAccessLogEntry, outcome: Outcome) -> None:
        """What the provider failed at, where metering does not say it."""
        code, status = silence_of(entry, outcome), entry.response.response_code.value
        if code is not None:
            report_silence(self._telemetry, handle, code, status=status)
        elif (
            handle.profile == "native"
            and outcome is Outcome.UPSTREAM_REFUSED
            and status >= _CLIENT_ERROR
            and entry.response.response_code_details == VIA_UPSTREAM
        ):
            # Metering, which would read the error, is not there; of a redirect nothing is to say.
            report_answer(self._telemetry, handle, status=status, headers={}, value=None)

    def _renew(self, entry: HTTPAccessLogEntry) -> None:
        fields = namespace_fields(entry.common_properties.metadata, NAMESPACE)
        if METERED_KEY in fields:
            return  # the answer has ended; only its entry is still to come
        handle = read_handle(fields)
        if handle is not None:
            # Other roots that hold some of it follow; the record names them.
            self._renewals.renew(handle.root, handle.reservation_id)

    def _on_entry_without_handle(self, entry: HTTPAccessLogEntry) -> None:
        if DETAILS_PREFIX in entry.response.response_code_details:
            return  # our own refusal, counted by admission
        if UNMETERED_KEY in namespace_fields(entry.common_properties.metadata, NAMESPACE):
            return  # admission let it through and has counted it
        found = unseen_reason(entry)
        if found is None:
            self._release_undelivered(entry)
            return
        reason, sent = found
        self._telemetry.unmetered(reason, allowed=sent)
        # Polls of lists and health checks have no body and are many.
        log.log(
            logging.DEBUG if reason == NO_BODY else logging.INFO,
            "unmetered",
            extra={
                "reason": reason,
                "action": "allowed" if sent else "refused",
                "status": entry.response.response_code.value,
                "path": logged_path(entry),
                "route": entry.common_properties.route_name,
                "request_id": entry.request.request_id,
            },
        )

    def _release_undelivered(self, entry: HTTPAccessLogEntry) -> None:
        """A request without a handle that was never sent on: Envoy may have given it up (the client
        left, a time-out) at the very moment when we admitted it. Release what there may be."""
        code = entry.response.response_code.value
        if code != _NOTHING_SENT and code < _SERVER_ERROR:
            return  # another filter's answer: the request was not given up
        common, request = entry.common_properties, entry.request
        address = common.downstream_remote_address.socket_address
        if not request.request_id or not address.address:
            return
        try:
            service_id = identify(
                self._identity, header=request.request_headers.get, metadata=common.metadata
            )
        except RequestError:
            return
        start = common.start_time
        host = f"[{address.address}]" if ":" in address.address else address.address
        self._telemetry.ended("undelivered")
        self._settler.submit(
            release_of(
                reservation_id_of(
                    request_id=request.request_id,
                    start_us=start.seconds * 1_000_000 + start.nanos // 1000,
                    client=f"{host}:{address.port_value}",
                ),
                service_id,
                Outcome.NOT_FORWARDED,
                Source.ENDING,
            )
        )
