"""What the configuration relies on, asked of the real Envoy with a scripted server behind it."""

import asyncio
import base64
import hashlib
import hmac
import json
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
    """Keeps the headers of each request; answers JSON, or a stream when asked, or 503."""

    def __init__(self) -> None:
        self.requests: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append({name.lower(): value for name, value in request.headers.items()})
        if b"fail" in body:
            return web.Response(status=503)
        if b"stream" not in body:
            return web.json_response({"ok": True})
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
    folder: Path, *, change: Change | None = None, **options: Any
) -> AsyncIterator[Rig]:
    """Start all three; ``change`` edits the configuration first."""
    provider_port, listen, admin = free_ports(3)
    server, provider = Server(), Provider()
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
        async with aiohttp.ClientSession() as client:
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


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    headers = {"authorization": "Bearer %ENVIRONMENT(KEY)%"}
    async with running(
        tmp_path, upstream_headers=headers, unmetered_prefixes=("/v1/models",)
    ) as started:
        yield started


async def test_metadata_of_admission_becomes_headers_and_what_is_absent_becomes_none(
    rig: Rig,
) -> None:
    rig.server.metadata = {"rid": "r1", "limit_tokens": "100", "reset_tokens": "1.5s"}
    _, _, headers = await rig.post()
    found = {name: value for name, value in headers.items() if name.startswith(HEADERS)}
    assert found == {f"{HEADERS}limit-tokens": "100", f"{HEADERS}reset-tokens": "1.5s"}


async def test_a_refusal_has_its_own_headers_and_reaches_no_provider(rig: Rig) -> None:
    rig.server.refuse = True
    status, _, headers = await rig.post()
    assert (status, headers[f"{HEADERS}limit-tokens"]) == (429, "7")
    assert rig.provider.requests == []


async def test_the_clients_word_about_who_it_is_counts_for_nothing(rig: Rig) -> None:
    await rig.post(headers={**KEY, NAME: "team-b"})
    assert rig.server.attribute(f"request.headers['{NAME}']") == "team-a"
    assert NAME not in rig.provider.requests[0]


async def test_without_a_filter_that_authenticates_a_forged_identity_is_gone(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, api_keys=None) as rig:
        await rig.post(headers={NAME: "team-b"})
        assert rig.server.attribute(f"request.headers['{NAME}']") is None


async def test_keys_are_known_as_openai_and_as_anthropic_clients_send_them(rig: Rig) -> None:
    for headers in ({"authorization": "Bearer key-a"}, {"x-api-key": "key-a"}):
        rig.server.asked.clear()
        status, _, _ = await rig.post(headers=headers)
        assert (status, rig.server.attribute(f"request.headers['{NAME}']")) == (200, "team-a")
    for headers in ({"authorization": "Bearer key-b"}, {"x-api-key": "key-b"}, {"x-other": "1"}):
        status, _, _ = await rig.post(headers=headers)
        assert status == 401
    for sent in rig.provider.requests:
        assert sent["authorization"] == "Bearer real"
        assert "x-api-key" not in sent


async def test_the_answer_passes_when_metering_leaves_at_once(rig: Rig) -> None:
    rig.server.meters = False
    status, text, _ = await rig.post(b'{"stream": 1}')
    assert (status, text) == (200, "data: 0\n\ndata: 1\n\ndata: 2\n\n")
    assert rig.server.metered == ["begun"]


async def test_the_ending_tells_what_admission_and_metering_wrote(rig: Rig) -> None:
    rig.server.metadata = {"rid": "r1"}
    await rig.post(b'{"stream": 1}')
    ending = await rig.ending()
    told = ending["commonProperties"]["metadata"]["filterMetadata"]["llm"]
    assert told == {"rid": "r1", "met": 1}
    request_id = rig.server.attribute("request.id")
    assert ending["request"]["requestHeaders"] == {"x-request-id": request_id}


async def test_requests_without_a_reservation_have_no_ending(rig: Rig) -> None:
    await rig.post()
    rig.server.metadata = {"rid": "second"}
    await rig.post()
    ending = await rig.ending()
    assert ending["commonProperties"]["metadata"]["filterMetadata"]["llm"]["rid"] == "second"


async def test_the_provider_is_not_asked_to_compress(rig: Rig) -> None:
    await rig.post(headers={**KEY, "accept-encoding": "gzip"})
    assert "accept-encoding" not in rig.provider.requests[0]


async def test_a_client_can_neither_ask_for_retries_nor_choose_its_request_id(rig: Rig) -> None:
    chosen = "11111111-1111-4111-8111-111111111111"
    retries = {"x-envoy-retry-on": "5xx", "x-envoy-max-retries": "3", "x-request-id": chosen}
    status, _, _ = await rig.post(b"fail", headers={**KEY, **retries})
    assert (status, len(rig.provider.requests)) == (503, 1)
    assert rig.server.attribute("request.id") != chosen


async def test_an_unmetered_path_asks_nobody_and_another_spelling_is_metered(rig: Rig) -> None:
    await rig.post(path="/v1/models/one")
    assert (rig.server.asked, rig.server.metered) == ([], [])
    for path in ("/v1/models-two", "/v1/models/..%2fchat/completions"):
        rig.server.asked.clear()
        await rig.post(path=path)
        assert len(rig.server.asked) == 1, path


async def test_admission_sees_one_spelling_of_a_path(rig: Rig) -> None:
    await rig.post(path="//v1/models/%2e%2e//chat/./completions")
    assert rig.server.attribute("request.path") == "/v1/chat/completions"


async def test_an_upgrade_is_refused(rig: Rig) -> None:
    headers = {**KEY, "connection": "upgrade", "upgrade": "websocket"}
    async with rig.client.get(f"{rig.url}/v1/realtime", headers=headers) as answer:
        assert answer.status == 403
    assert rig.provider.requests == []


async def test_a_body_above_envoys_own_limit_is_admitted_whole(rig: Rig) -> None:
    status, _, _ = await rig.post(b"x" * 2_000_000)
    body = rig.server.asked[0]["requestBody"]["body"]
    assert (status, len(base64.b64decode(body))) == (200, 2_000_000)


@pytest.mark.parametrize(("mode", "expected"), [("closed", 503), ("open", 200)])
async def test_without_a_server_the_failure_mode_decides(
    mode: str, expected: int, tmp_path: Path
) -> None:
    async with running(tmp_path, failure_mode=mode) as rig:
        await rig.grpc_server.stop(0)
        status, _, _ = await rig.post()
        assert status == expected


async def test_the_health_check_of_compose_sees_that_envoy_is_ready(rig: Rig) -> None:
    stack = yaml.safe_load((ROOT / "compose/docker-compose.yaml").read_text("utf-8"))
    program, *arguments = stack["services"]["envoy"]["healthcheck"]["test"][1:]
    for port, expected in ((rig.admin_port, 0), (free_ports(1)[0], 1)):
        found = [word.replace("/19000 ", f"/{port} ") for word in arguments]
        process = await asyncio.create_subprocess_exec(
            program, *found, stderr=asyncio.subprocess.DEVNULL
        )
        assert await asyncio.wait_for(process.wait(), timeout=10) == expected


def _segment(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


async def test_the_payload_of_a_jwt_reaches_admission_as_metadata(tmp_path: Path) -> None:
    """The identity source that docs/envoy.md describes."""
    secret = b"a secret of at least 32 characters"
    key = {"kty": "oct", "alg": "HS256", "k": _segment(secret)}
    jwt_authn = {
        "name": "envoy.filters.http.jwt_authn",
        "typed_config": {
            "@type": "type.googleapis.com/"
            "envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
            "providers": {
                "yours": {
                    "local_jwks": {"inline_string": json.dumps({"keys": [key]})},
                    "payload_in_metadata": "jwt_payload",
                }
            },
            "rules": [{"match": {"prefix": "/"}, "requires": {"provider_name": "yours"}}],
        },
    }

    def insert(config: dict[str, Any]) -> None:
        (listener,) = config["static_resources"]["listeners"]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        manager["http_filters"].insert(1, jwt_authn)

    head, payload = _segment(b'{"alg":"HS256"}'), _segment(b'{"sub":"team-a"}')
    digest = hmac.new(secret, f"{head}.{payload}".encode(), hashlib.sha256).digest()
    async with running(tmp_path, change=insert, api_keys=None) as rig:
        token = f"{head}.{payload}.{_segment(digest)}"
        status, _, _ = await rig.post(headers={"authorization": f"Bearer {token}"})
        assert status == 200
        forwarded = rig.server.asked[0]["metadataContext"]["filterMetadata"]
        assert forwarded["envoy.filters.http.jwt_authn"]["jwt_payload"]["sub"] == "team-a"
        status, _, _ = await rig.post(headers={"authorization": f"Bearer {token[:-4]}AAAA"})
        assert status == 401
