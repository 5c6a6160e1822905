"""The floor: a server that does of a request only what no server in this place can leave out.

There is no validation, no type of ours, no error, no time-out, no metric, no policy and no log
line, and the bytes that it says are made beforehand but for what varies. ``--step`` tells how far
it goes; every step includes those before it:

* ``answer``: one prebuilt answer to each admission, as a call of one message; answers of the model
  pass, the access log is received and not looked at.
* ``read``: the message, its path, request id and service id, the JSON; its tokens are counted.
* ``reply``: an answer of this request's own, with an id, the handle and the limits.
* ``reserve``: the product's reserve script in Redis, whose counts go into the answer.
* ``ending``: native: the access log entry, its handle and usage. Others: the answer's usage, and
  the entries, skimmed for the mark that metering leaves.
* ``settle``: the product's settle script in Redis.

Event loop, gRPC options and tuning are those of ``tokenweir serve``, as in ``empty_server``.
"""

import argparse
import asyncio
import gc
import signal
import sys
from typing import get_args

import grpc
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as aio_health

from extproc.core.handles import Profile
from extproc.envoy_io import server as serving
from extproc.providers.tokens import count_tokens
from extproc.stores import scripts
from extproc.stores.scripts import load_script
from tests.bench.empty_server import BODY, HEADERS, LAST_BODY, SWITCH_SECONDS, prebuilt_answer
from tests.bench.floor_messages import ProcessingRequest
from tests.bench.floor_redis import FloorRedis
from tests.bench.floor_work import STEPS, FloorWork

_ENDS = STEPS.index("ending")
_PROCESS = f"/{serving.EXT_PROC_SERVICE}/Process"
_ACCESS_LOGS = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"


class _Floor(grpc.GenericRpcHandler):
    """Nothing is deserialised by gRPC, which would do it by calls of its own."""

    def __init__(self, work: FloorWork, step: int, profile: Profile) -> None:
        self._work = work
        self._reads_ends = step >= _ENDS
        self._is_native = profile == "native"
        self._admission = grpc.unary_unary_rpc_method_handler(work.admit)
        meter = self._pass if profile == "inline" else self._observe
        self._metering = grpc.stream_stream_rpc_method_handler(meter)
        self._entries = grpc.stream_unary_rpc_method_handler(self._read_entries)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """gRPC asks this for each call; None: not a method of ours."""
        if details.method == _PROCESS:
            if self._is_native:
                return self._admission  # there is no other conversation
            for key, value in details.invocation_metadata:
                if key == serving.CONVERSATION_KEY:
                    return self._admission if value.startswith("adm") else self._metering
        return self._entries if details.method == _ACCESS_LOGS else None

    async def _pass(self, _messages: object, context: grpc.aio.ServicerContext) -> None:
        """An answer that waits for us: head, chunks, end."""
        head = await context.read()
        if head is grpc.aio.EOF:
            return
        await context.write(HEADERS)
        chunks = []
        while (data := await context.read()) is not grpc.aio.EOF:
            body = ProcessingRequest.FromString(data).response_body
            chunks.append(body.body)
            if body.end_of_stream:
                if self._reads_ends:
                    self._work.settle_body(head, b"".join(chunks))
                await context.write(LAST_BODY)
                return
            await context.write(BODY)

    async def _observe(self, _messages: object, context: grpc.aio.ServicerContext) -> None:
        """Copies of an answer, which nobody waits for."""
        head = await context.read()
        chunks = []
        while (data := await context.read()) is not grpc.aio.EOF:
            body = ProcessingRequest.FromString(data).response_body
            chunks.append(body.body)
            if body.end_of_stream:
                if self._reads_ends:
                    self._work.settle_body(head, b"".join(chunks))
                return

    async def _read_entries(self, _messages: object, context: grpc.aio.ServicerContext) -> bytes:
        while (data := await context.read()) is not grpc.aio.EOF:
            if self._reads_ends:
                self._work.read_entries(data)
        return b""


async def serve(listen: str, profile: Profile, step: int, redis_url: str) -> None:
    """Serve on ``unix:/path`` or ``HOST:PORT`` until SIGTERM."""
    sys.setswitchinterval(SWITCH_SECONDS)
    count_tokens("one")  # loads the vocabulary of this encoding
    redis = await FloorRedis.connect(redis_url)
    for name in (scripts.RESERVE, scripts.SETTLE):
        await redis.load(load_script(name).source)
    server = grpc.aio.server(options=serving._OPTIONS)
    work = FloorWork(step, profile, redis, prebuilt_answer(profile))
    server.add_generic_rpc_handlers((_Floor(work, step, profile),))
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
    parser = argparse.ArgumentParser(prog="python -m tests.bench.floor_server")
    parser.add_argument("--listen", required=True)
    parser.add_argument("--profile", choices=get_args(Profile), required=True)
    parser.add_argument("--step", choices=STEPS, default=STEPS[-1])
    parser.add_argument("--redis", required=True, help="redis://HOST:PORT/DB, without a password")
    args = parser.parse_args()
    uvloop.run(serve(args.listen, args.profile, STEPS.index(args.step), args.redis))
