"""A real Envoy between a scripted server and a scripted provider."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import yaml
from aiohttp import web
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf import json_format
from yarl import URL

from extproc.demo.envoy_binary import envoy_command
from extproc.demo.processes import free_ports
from extproc.envoyconfig import RenderOptions, render_bootstrap

NAME = "x-tokenweir-service"
ROOT = Path(__file__).parents[2]
KEY = {"authorization": "Bearer key-a"}
HEADERS = "x-ratelimit-"
Change = Callable[[dict[str, Any]], None]


@dataclass
class Server:
    """Answers as its fields say, and keeps what it was told."""

    metadata: dict[str, Any] = field(default_factory=dict)
    refuse: bool = False
    meters: bool = True
    asked: list[dict[str, Any]] = field(default_factory=list)
    metered: list[str] = field(default_factory=list)
    # Headers of the last answer, as metering saw them.
    seen_headers: dict[str, str] = field(default_factory=dict)
    endings: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)

    def attribute(self, name: str) -> Any:
        (message,) = self.asked
        return message["attributes"]["envoy.filters.http.ext_proc"].get(name)

    async def process(self, _: Any, context: Any) -> None:
        conversation = dict(context.invocation_metadata())["x-tokenweir-conversation"]
        await (self._admit(context) if conversation == "admission" else self._meter(context))

    async def _admit(self, context: Any) -> None:
        self.asked.append(json_format.MessageToDict(await context.read()))
        reply = ext_proc.ProcessingResponse()
        if self.refuse:
            reply.immediate_response.status.code = 429
            header = reply.immediate_response.headers.set_headers.add().header
            header.key, header.raw_value = f"{HEADERS}limit-tokens", b"7"
        else:
            reply.request_body.SetInParent()
            if self.metadata:
                reply.dynamic_metadata.update({"llm": self.metadata})
        await context.write(reply)

    async def _meter(self, context: Any) -> None:
        self.metered.append("begun")
        while self.meters:
            message = await context.read()
            if message is grpc.aio.EOF:
                return
            kind = message.WhichOneof("request")
            self.metered.append(kind)
            if kind == "response_headers":
                listed = message.response_headers.headers.headers
                self.seen_headers = {each.key: each.raw_value.decode() for each in listed}
            reply = ext_proc.ProcessingResponse()
            getattr(reply, kind).SetInParent()
            if ended := getattr(getattr(message, kind), "end_of_stream", True):
                reply.dynamic_metadata.update({"llm": {"met": 1}})
            await context.write(reply)
            if ended:
                return

    async def end(self, messages: AsyncIterator[Any], _: Any) -> Any:
        async for message in messages:
            for entry in message.http_logs.log_entry:
                await self.endings.put(json_format.MessageToDict(entry))
        return als_pb2.StreamAccessLogsResponse()

    def handlers(self) -> list[Any]:
        answers = ext_proc.ProcessingResponse.SerializeToString
        process = grpc.stream_stream_rpc_method_handler(
            self.process, ext_proc.ProcessingRequest.FromString, answers
        )
        end = grpc.stream_unary_rpc_method_handler(
            self.end,
            als_pb2.StreamAccessLogsMessage.FromString,
            als_pb2.StreamAccessLogsResponse.SerializeToString,
        )
        make = grpc.method_handlers_generic_handler
        return [
            make("envoy.service.ext_proc.v3.ExternalProcessor", {"Process": process}),
            make("envoy.service.accesslog.v3.AccessLogService", {"StreamAccessLogs": end}),
        ]


class Provider:
    """Keeps the headers of each request; answers JSON, or a stream when asked, or 503; takes
    sockets."""

    def __init__(self) -> None:
        self.requests: list[dict[str, str]] = []
        self.headers: dict[str, str] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append({name.lower(): value for name, value in request.headers.items()})
        if request.headers.get("upgrade") == "websocket":
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            await socket.close()
            return socket
        if b"fail" in body:
            return web.Response(status=503)
        if b"stream" not in body:
            return web.json_response({"ok": True}, headers=self.headers)
        answer = web.StreamResponse()
        await answer.prepare(request)
        for number in range(3):
            await answer.write(b"data: %d\n\n" % number)
        return answer


@dataclass
class Rig:
    """A running Envoy between a client and the two scripted ends."""

    url: str
    admin_port: int
    server: Server
    provider: Provider
    grpc_server: Any
    client: aiohttp.ClientSession

    async def post(
        self,
        body: bytes = b"{}",
        *,
        headers: Mapping[str, str] = KEY,
        path: str = "/v1/chat/completions",
    ) -> tuple[int, str, dict[str, str]]:
        # The path goes out as it is written, with its escapes and slashes.
        url = URL(f"{self.url}{path}", encoded=True)
        async with self.client.post(url, data=BytesIO(body), headers=headers) as answer:
            found = {name.lower(): value for name, value in answer.headers.items()}
            return answer.status, await answer.text(), found

    async def ending(self) -> dict[str, Any]:
        return await asyncio.wait_for(self.server.endings.get(), timeout=10)


async def wait_ready(url: str, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(20), aiohttp.ClientSession() as client:
        while process.returncode is None:
            try:
                async with client.get(url) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.02)
    pytest.fail("Envoy ended before it was ready")


@asynccontextmanager
async def running(
    folder: Path,
    *,
    change: Change | None = None,
    server: Server | None = None,
    provider: Provider | None = None,
    auto_decompress: bool = True,
    **options: Any,
) -> AsyncIterator[Rig]:
    """Start all three; ``change`` edits the configuration first."""
    provider_port, listen, admin = free_ports(3)
    server, provider = server or Server(), provider or Provider()
    grpc_server = grpc.aio.server()
    grpc_server.add_generic_rpc_handlers(server.handlers())
    address = f"unix:{folder}/t.sock"
    grpc_server.add_insecure_port(address)
    await grpc_server.start()
    app = web.Application(client_max_size=4_000_000)
    app.router.add_route("*", "/{path:.*}", provider.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", provider_port).start()
    settings: dict[str, Any] = {
        "upstream_url": f"http://127.0.0.1:{provider_port}",
        "listen_port": listen,
        "admin_port": admin,
        "tokenweir_addresses": (address,),
        "api_keys": {"key-a": "team-a"},
    }
    config = render_bootstrap(RenderOptions(**{**settings, **options}))
    if change is not None:
        change(config)
    file = folder / "envoy.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    log = folder / "envoy.log"
    with log.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            *envoy_command(file), stdout=sink, stderr=sink, env={**os.environ, "KEY": "real"}
        )
    try:
        await wait_ready(f"http://127.0.0.1:{admin}/ready", process)
        async with aiohttp.ClientSession(auto_decompress=auto_decompress) as client:
            yield Rig(f"http://127.0.0.1:{listen}", admin, server, provider, grpc_server, client)
    except BaseException:
        print(log.read_text(encoding="utf-8", errors="replace")[-4000:])
        raise
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()
        await grpc_server.stop(0)
        await runner.cleanup()
