"""The empty server: answers Envoy the same messages as tokenweir does, and does nothing else.

What it costs is the price of Python's gRPC itself, and the floor of what any server in this place
can cost. Its replies are made once, from the same builders as tokenweir's, so they have its size.
"""

import argparse
import asyncio
import signal

import grpc
import uvloop
from envoy.service.accesslog.v3 import als_pb2, als_pb2_grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as aio_health

from extproc.core.handles import Handle
from extproc.core.ids import new_reservation_id
from extproc.core.reservations import Admitted, WindowView
from extproc.envoy_io.replies import (
    CONTINUE_RESPONSE_BODY,
    CONTINUE_RESPONSE_HEADERS,
    admitted_reply,
    body_reply,
)
from tests.bench.traffic import MODEL, chat_body, counted

_LAST_BODY = body_reply(None, metered=True)


def _admitted() -> pb.ProcessingResponse:
    """The answer to a request of the benchmark, with plausible numbers."""
    facts = counted(chat_body())
    handle = Handle(
        reservation_id=new_reservation_id(),
        root="svc-bench",
        wire_format=facts.wire_format,
        model=MODEL,
        input_tokens=facts.input_tokens,
        reserved_tokens=facts.input_tokens + 256,
        encoding=facts.encoding,
        hides_usage=facts.hides_usage,
        request_id="01234567-89ab-cdef-0123-456789abcdef",
    )
    view = WindowView(limit=2_000_000_000, remaining=1_999_900_000, reset_ms=30_000)
    verdict = Admitted(
        reservation_id=handle.reservation_id,
        root=handle.root,
        minute="202601010000",
        input_tokens=handle.input_tokens,
        reserved_tokens=handle.reserved_tokens,
        requests=view,
        tokens=view,
    )
    return admitted_reply(verdict, handle.to_fields(), new_body=None)


class _Processor(external_processor_pb2_grpc.ExternalProcessorServicer):
    def __init__(self) -> None:
        self._admitted = _admitted()

    async def Process(  # noqa: N802 - the generated interface fixes the name
        self, request_iterator: object, context: grpc.aio.ServicerContext
    ) -> None:
        while True:
            message: pb.ProcessingRequest = await context.read()
            if message is grpc.aio.EOF:
                return
            kind = message.WhichOneof("request")
            if kind == "request_body":
                await context.write(self._admitted)
                return
            if kind == "response_body":
                if message.response_body.end_of_stream:
                    await context.write(_LAST_BODY)
                    return
                await context.write(CONTINUE_RESPONSE_BODY)
            elif kind == "response_headers":
                await context.write(CONTINUE_RESPONSE_HEADERS)
            else:
                raise RuntimeError(f"the benchmark's answers have no {kind}")


class _AccessLog(als_pb2_grpc.AccessLogServiceServicer):
    async def StreamAccessLogs(  # noqa: N802
        self, request_iterator: object, context: grpc.aio.ServicerContext
    ) -> als_pb2.StreamAccessLogsResponse:
        while await context.read() is not grpc.aio.EOF:
            pass
        return als_pb2.StreamAccessLogsResponse()


async def serve(listen: str) -> None:
    """Serve on ``unix:/path`` or ``HOST:PORT`` until SIGTERM."""
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    external_processor_pb2_grpc.add_ExternalProcessorServicer_to_server(_Processor(), server)
    als_pb2_grpc.add_AccessLogServiceServicer_to_server(_AccessLog(), server)
    health = aio_health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    await health.set("", health_pb2.HealthCheckResponse.SERVING)
    if not server.add_insecure_port(listen):
        raise OSError(f"cannot listen on {listen}")
    await server.start()
    print("listening", flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await server.stop(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.empty_server")
    parser.add_argument("--listen", required=True)
    uvloop.run(serve(parser.parse_args().listen))
