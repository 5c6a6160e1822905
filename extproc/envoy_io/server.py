"""One grpc.aio server for the three conversations and for health.

Both ext_proc filters call the same method; gRPC initial metadata says which of them is speaking.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NoReturn

import grpc
from envoy.service.accesslog.v3 import als_pb2, als_pb2_grpc
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    ProcessingRequest,
    ProcessingResponse,
)
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as aio_health

from extproc.core.ports import Telemetry
from extproc.envoy_io.admission import Admission, UnexpectedMessageError
from extproc.envoy_io.attributes import read_request
from extproc.envoy_io.ending import Ending
from extproc.envoy_io.metering import Metering
from extproc.envoy_io.replies import serialized

log = logging.getLogger("tokenweir.server")

# Admission and metering are spoken in the words of the Envoy's profile; without one it is inline.
CONVERSATION_KEY = "x-tokenweir-conversation"
ADMISSION, ADMISSION_OBSERVE, ADMISSION_NATIVE = (
    "admission",
    "admission/observe",
    "admission/native",
)
METERING, METERING_OBSERVE = "metering", "metering/observe"
EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
_METHOD = f"/{EXT_PROC_SERVICE}/Process"

# A message is a body plus attributes and metadata.
_MESSAGE_OVERHEAD_BYTES = 1024 * 1024
# Envoys ping every 10 to 30 s; gRPC's default minimum of 300 s would answer "too many pings".
_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
)

_DRAIN_POLL_SECONDS = 0.02
_CUT_MARGIN_SECONDS = 1.0

Handler = Callable[[grpc.aio.ServicerContext], Awaitable[None]]
Decision = Callable[[ProcessingRequest], Awaitable[ProcessingResponse]]


class _Processor(grpc.GenericRpcHandler):
    """Finds the handler of an ext_proc stream by its initial metadata.

    To gRPC admission is a call of one message and one answer, though Envoy's stream could have
    more: answer and end then leave together, which is a tenth of what an empty server costs.
    A message that cannot be parsed reaches the handlers, which answer it; gRPC would drop the
    stream, and an Envoy that fails open would let it pass.
    """

    def __init__(
        self,
        *,
        admissions: Mapping[str, Decision],
        meterings: Mapping[str, Handler],
        telemetry: Telemetry,
    ) -> None:
        self._telemetry = telemetry
        self.active = 0
        self._handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                self._deciding(decide),
                request_deserializer=read_request,
                response_serializer=serialized,
            )
            for name, decide in admissions.items()
        } | {name: self._stream(self._metering(meter)) for name, meter in meterings.items()}
        self._unknown = self._stream(self._refuse)

    @staticmethod
    def _stream(handler: Callable[..., Awaitable[None]]) -> grpc.RpcMethodHandler:
        return grpc.stream_stream_rpc_method_handler(
            handler, request_deserializer=read_request, response_serializer=serialized
        )

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """gRPC asks this for each call; None: not a method of ours."""
        if details.method != _METHOD:
            return None
        for key, value in details.invocation_metadata or ():
            if key == CONVERSATION_KEY:
                return self._handlers.get(value, self._unknown)
        return self._unknown

    # gRPC asks of each call whether its handler is a coroutine function: of plain ones it sees that
    # at once.
    def _deciding(self, decide: Decision) -> Callable[..., Awaitable[ProcessingResponse]]:
        async def handler(
            message: ProcessingRequest, context: grpc.aio.ServicerContext
        ) -> ProcessingResponse:
            self.active += 1
            try:
                return await decide(message)
            except Exception as error:  # noqa: BLE001  # said and answered there
                await _fail(context, self._telemetry, error)
            finally:
                self.active -= 1

        return handler

    def _metering(self, meter: Handler) -> Callable[..., Awaitable[None]]:
        async def handler(_messages: object, context: grpc.aio.ServicerContext) -> None:
            self.active += 1
            try:
                await meter(context)
            except grpc.aio.BaseError:
                # The stream broke under a read or a write: the other side left. Handlers have
                # cleaned up.
                return
            except Exception as error:  # noqa: BLE001  # said and answered there
                await _fail(context, self._telemetry, error)
            finally:
                self.active -= 1

        return handler

    async def _refuse(self, _messages: object, context: grpc.aio.ServicerContext) -> None:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"initial metadata {CONVERSATION_KEY} must be one of {sorted(self._handlers)}",
        )


class _AccessLog(als_pb2_grpc.AccessLogServiceServicer):
    def __init__(self, ending: Ending, telemetry: Telemetry) -> None:
        self._ending = ending
        self._telemetry = telemetry

    async def StreamAccessLogs(  # noqa: N802
        self, request_iterator: object, context: grpc.aio.ServicerContext
    ) -> als_pb2.StreamAccessLogsResponse:
        try:
            await self._ending.process(context)
        except grpc.aio.BaseError:
            pass  # as with metering
        except Exception as error:  # noqa: BLE001  # said and answered there
            await _fail(context, self._telemetry, error)
        return als_pb2.StreamAccessLogsResponse()


async def _fail(
    context: grpc.aio.ServicerContext, telemetry: Telemetry, error: Exception
) -> NoReturn:
    """A fault of ours becomes one log line and an error status, so Envoy's failure mode decides."""
    if isinstance(error, UnexpectedMessageError):
        telemetry.refused("unexpected_message")
        log.error("unexpected message", extra={"reason": str(error)})
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
    telemetry.refused("internal_error")
    log.error("handler failed", exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, "internal error")
    raise AssertionError  # abort raises


class GrpcServer:
    """Listens on ``HOST:PORT`` or ``unix:/path``; NOT_SERVING until told otherwise."""

    def __init__(self, *, listen: str, max_body_bytes: int, telemetry: Telemetry) -> None:
        self._listen = listen
        self._is_up = False
        self._telemetry = telemetry
        self._health = aio_health.HealthServicer()
        size = max_body_bytes + _MESSAGE_OVERHEAD_BYTES
        self._server = grpc.aio.server(
            options=(
                *_OPTIONS,
                ("grpc.max_receive_message_length", size),
                ("grpc.max_send_message_length", size),
            )
        )

    def register(self, *, admission: Admission, metering: Metering, ending: Ending) -> None:
        """Bind the three conversations; call once, before ``start``."""
        self._processor = _Processor(
            admissions={
                ADMISSION: admission.decide,
                ADMISSION_OBSERVE: partial(admission.decide, profile="observe"),
                ADMISSION_NATIVE: partial(admission.decide, profile="native"),
            },
            meterings={METERING: metering.process, METERING_OBSERVE: metering.observe},
            telemetry=self._telemetry,
        )
        self._server.add_generic_rpc_handlers((self._processor,))
        self._ending = ending
        als_pb2_grpc.add_AccessLogServiceServicer_to_server(
            _AccessLog(ending, self._telemetry), self._server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    @property
    def open_streams(self) -> int:
        """How many ext_proc streams are open now."""
        return self._processor.active

    async def start(self) -> int:
        """Bind and listen; returns the port (1 for a unix socket). Raises OSError if it cannot."""
        await self.serving(up=False)
        try:
            port: int = self._server.add_insecure_port(self._listen)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._listen}: {error}") from error
        if port == 0:
            raise OSError(f"cannot listen on {self._listen}")
        await self._server.start()
        return port

    async def serving(self, *, up: bool) -> None:
        """Set the health that load balancers and Envoy's health checks see."""
        self._is_up = up
        state = health_pb2.HealthCheckResponse
        await self._health.set("", state.SERVING if up else state.NOT_SERVING)

    async def drain(self, seconds: float, *, hurry: asyncio.Event) -> None:
        """Say NOT_SERVING and go on as before, until Envoy has noticed (``seconds``) or ``hurry``.
        Whom nobody was ever sent need not wait."""
        await self._health.enter_graceful_shutdown()
        if self._is_up:
            with suppress(TimeoutError):
                await asyncio.wait_for(hurry.wait(), seconds)

    async def stop(self, *, grace_seconds: float, on_drained: Callable[[], None]) -> None:
        """Refuse new streams, let those under way end within the grace, then cut them.

        ``on_drained`` is called when no ext_proc stream is left, or shortly before those left are
        cut; access log streams never end by themselves and are to return then.
        """
        await self._health.enter_graceful_shutdown()
        stopping = asyncio.ensure_future(self._server.stop(grace_seconds))
        margin = min(_CUT_MARGIN_SECONDS, grace_seconds / 2)
        deadline = time.monotonic() + grace_seconds - margin
        while self._processor.active and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_POLL_SECONDS)
        on_drained()
        await stopping
        self._ending.flush()
