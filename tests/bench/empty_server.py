"""The empty server: answers Envoy the same messages as tokenweir does, and does nothing else.

What it costs is the price of Python's gRPC itself, and the floor of what any server in this place
can cost. Its replies are bytes made once, by the same builders as tokenweir's, so they have its
size. The options of gRPC, the event loop and the tuning of the interpreter are those of
``tokenweir serve``.
"""

import argparse
import asyncio
import gc
import signal
import sys
from functools import partial

import grpc
import uvloop
from envoy.service.accesslog.v3 import als_pb2, als_pb2_grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as aio_health

from extproc.core.handles import Handle, Profile
from extproc.core.ids import new_reservation_id
from extproc.core.reservations import Admitted, WindowView
from extproc.envoy_io import server as serving
from extproc.envoy_io.replies import (
    CONTINUE_RESPONSE_BODY,
    CONTINUE_RESPONSE_HEADERS,
    admitted_reply,
    body_reply,
)
from tests.bench.traffic import MODEL, chat_body, counted

# As `tokenweir serve` sets it.
SWITCH_SECONDS = 0.0005
HEADERS = CONTINUE_RESPONSE_HEADERS.SerializeToString()
BODY = CONTINUE_RESPONSE_BODY.SerializeToString()
LAST_BODY = body_reply(None, metered=True).SerializeToString()


def prebuilt_answer(profile: Profile) -> bytes:
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
        profile=profile,
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
    reply: bytes = admitted_reply(verdict, handle.to_fields(), new_body=None).SerializeToString()
    return reply


async def _process(
    admitted: bytes, request_iterator: object, context: grpc.aio.ServicerContext
) -> None:
    """Admission: one message. Metering: head, chunks, end; copies of them are not answered."""
    del request_iterator
    while True:
        message: pb.ProcessingRequest = await context.read()
        if message is grpc.aio.EOF:
            return
        kind = message.WhichOneof("request")
        if kind == "response_body":
            if message.response_body.end_of_stream:
                if not message.observability_mode:
                    await context.write(LAST_BODY)
                return
            if not message.observability_mode:
                await context.write(BODY)
        elif kind == "request_body":
            await context.write(admitted)
            return
        elif kind == "response_headers":
            if not message.observability_mode:
                await context.write(HEADERS)
        else:
            raise RuntimeError(f"the benchmark's answers have no {kind}")


class _AccessLog(als_pb2_grpc.AccessLogServiceServicer):
    async def StreamAccessLogs(  # noqa: N802 - the generated interface fixes the name
        self, request_iterator: object, context: grpc.aio.ServicerContext
    ) -> als_pb2.StreamAccessLogsResponse:
        while await context.read() is not grpc.aio.EOF:
            pass
        return als_pb2.StreamAccessLogsResponse()


async def serve(listen: str, profile: Profile) -> None:
    """Serve on ``unix:/path`` or ``HOST:PORT`` until SIGTERM."""
    sys.setswitchinterval(SWITCH_SECONDS)
    server = grpc.aio.server(options=serving._OPTIONS)
    method = grpc.stream_stream_rpc_method_handler(
        partial(_process, prebuilt_answer(profile)),
        request_deserializer=pb.ProcessingRequest.FromString,
        response_serializer=None,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(serving.EXT_PROC_SERVICE, {"Process": method}),)
    )
    als_pb2_grpc.add_AccessLogServiceServicer_to_server(_AccessLog(), server)
    health = aio_health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    await health.set("", health_pb2.HealthCheckResponse.SERVING)
    if not server.add_insecure_port(listen):
        raise OSError(f"cannot listen on {listen}")
    await server.start()
    gc.collect()
    gc.freeze()
    print("listening", flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await server.stop(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.empty_server")
    parser.add_argument("--listen", required=True)
    parser.add_argument("--profile", choices=("inline", "observe", "native"), required=True)
    args = parser.parse_args()
    uvloop.run(serve(args.listen, args.profile))
