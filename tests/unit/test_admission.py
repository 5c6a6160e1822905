"""Admission over an in-memory stream: every path that took something and does not deliver it gives
it back, and every refusal is in the client's own API's shape."""

import asyncio
import gzip
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from extproc.core.errors import StoreUnavailableError
from extproc.core.estimates import EstimateMode, EstimatePlan
from extproc.core.handles import handle_from_fields
from extproc.core.limits import ServiceLimit
from extproc.core.ports import LimitLookup
from extproc.core.reservations import (
    LimitsMissing,
    Outcome,
    Rejected,
    ServiceRefused,
    ServiceState,
    Source,
    State,
    WindowView,
)
from extproc.core.reserving import Reserver
from extproc.core.settler import Settler
from extproc.envoy_io.admission import Admission, AdmissionPolicy
from extproc.envoy_io.attributes import read_request
from extproc.envoy_io.identity import FromHeader, FromMetadata
from extproc.stores.views import Views
from tests.support.fakes import ListedLimits, RecordingStore, RecordingTelemetry
from tests.support.streams import MemoryContext

CHAT = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Say hi"}]}
ANTHROPIC = {**CHAT, "model": "claude-sonnet-4-5", "max_tokens": 100}
POLICY = AdmissionPolicy(
    identity=(FromHeader("x-tokenweir-service"),),
    default_output_tokens=500,
    deadline_ms=900_000,
    timeout_seconds=0.5,
    allows_unmetered=False,
    fails_open=False,
    count_inline_max_bytes=32_768,
    max_body_bytes=1_000_000,
)


def message(
    body: object = CHAT,
    *,
    path: str = "/v1/chat/completions",
    service: str | None = "svc",
) -> pb.ProcessingRequest:
    request = pb.ProcessingRequest()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request.request_body.body = data
    request.request_body.end_of_stream = True
    fields = request.attributes["envoy.filters.http.ext_proc"].fields
    fields["request.path"].string_value = path
    fields["request.id"].string_value = "req-1"
    fields["request.headers['content-type']"].string_value = "application/json"
    if service is not None:
        fields["request.headers['x-tokenweir-service']"].string_value = service
    return request


@dataclass
class Bench:
    """An Admission with recording ports."""

    store: RecordingStore = field(default_factory=RecordingStore)
    limits: ListedLimits = field(default_factory=ListedLimits)
    telemetry: RecordingTelemetry = field(default_factory=RecordingTelemetry)
    views: Views = field(default_factory=Views)
    policy: AdmissionPolicy = POLICY

    def __post_init__(self) -> None:
        self.settler = Settler(self.store, self.telemetry)
        self.executor = ThreadPoolExecutor(1)

    def admission(self) -> Admission:
        return Admission(
            self.policy,
            reserver=Reserver(
                store=self.store,
                limits=self.limits,
                views=self.views,
                estimate=EstimatePlan(mode=EstimateMode.QUANTILE),
                clock=lambda: datetime.now(UTC),
            ),
            limits=self.limits,
            settler=self.settler,
            telemetry=self.telemetry,
            executor=self.executor,
        )

    async def ask(self, *messages: pb.ProcessingRequest) -> Any:
        context = MemoryContext(messages)
        await self.admission().process(context)
        await self.settler.flush(timeout_seconds=2)
        return context.written[-1] if context.written else None


def fields_of(reply: Any) -> dict[str, object]:
    struct = reply.dynamic_metadata.fields["llm"].struct_value
    return {k: getattr(v, v.WhichOneof("kind")) for k, v in struct.fields.items()}


def headers_of(reply: Any) -> dict[str, str]:
    options = reply.immediate_response.headers.set_headers
    return {option.header.key: option.header.raw_value.decode() for option in options}


async def test_an_admitted_request_continues_with_its_handle() -> None:
    bench = Bench()
    reply = await bench.ask(message())
    assert reply.WhichOneof("response") == "request_body"
    fields = fields_of(reply)
    handle = handle_from_fields(fields)
    assert handle is not None
    assert handle.root == "svc"
    assert handle.wire_format == "openai_chat"
    assert handle.input_tokens > 2
    assert handle.request_id == "req-1"
    assert fields["limit_requests"] == "100"
    assert fields["reset_tokens"] == "12s"
    assert bench.store.released == []
    assert not reply.request_body.response.HasField("body_mutation")


async def test_a_stream_that_did_not_ask_for_usage_gets_a_body_that_does() -> None:
    reply = await Bench().ask(message({**CHAT, "stream": True}))
    body = json.loads(reply.request_body.response.body_mutation.body)
    assert body == {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    assert fields_of(reply)["hide"] == 1


async def test_the_clients_own_request_for_usage_is_left_alone() -> None:
    asked = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    reply = await Bench().ask(message(asked))
    assert not reply.request_body.response.HasField("body_mutation")
    assert fields_of(reply)["hide"] == 0


@pytest.mark.parametrize(
    ("service", "status", "code"),
    [
        (None, 401, "missing_service_id"),
        ("", 400, "invalid_service_id"),
        ("a{b}", 400, "invalid_service_id"),
        ("x" * 129, 400, "invalid_service_id"),
    ],
)
async def test_without_a_valid_identity_nothing_is_reserved(
    service: str | None, status: int, code: str
) -> None:
    bench = Bench()
    reply = await bench.ask(message(service=service))
    assert reply.immediate_response.status.code == status
    assert json.loads(reply.immediate_response.body)["error"]["code"] == code
    assert bench.store.reserved == []
    assert bench.telemetry.lines == [f"refused {code}"]


async def test_the_identity_may_come_from_an_auth_filters_metadata() -> None:
    source = FromMetadata("envoy.filters.http.jwt_authn", ("payload", "service_id"))
    bench = Bench(policy=replace(POLICY, identity=(source, FromHeader("x-tokenweir-service"))))
    request = message(service="from-header")
    payload = request.metadata_context.filter_metadata["envoy.filters.http.jwt_authn"]
    payload.fields["payload"].struct_value.fields["service_id"].string_value = "from-token"
    await bench.ask(request)
    assert bench.store.reserved[0].root == "from-token"
    await bench.ask(message(service="from-header"))
    assert bench.store.reserved[1].root == "from-header"


@pytest.mark.parametrize("state", list(ServiceState))
async def test_unknown_and_disabled_services_are_403(state: ServiceState) -> None:
    bench = Bench(store=RecordingStore(verdicts=[ServiceRefused(state)]))
    reply = await bench.ask(message())
    assert reply.immediate_response.status.code == 403


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"[]", None),
        (b"not json", None),
        ({**CHAT, "max_tokens": -5}, "max_tokens"),
        ({**CHAT, "max_tokens": "100"}, "max_tokens"),
        ({"messages": CHAT["messages"]}, "model"),
        ({**CHAT, "messages": "x"}, "messages"),
    ],
)
async def test_a_body_that_makes_no_sense_is_400_and_takes_nothing(
    body: object, param: str | None
) -> None:
    bench = Bench()
    reply = await bench.ask(message(body))
    assert reply.immediate_response.status.code == 400
    assert json.loads(reply.immediate_response.body)["error"]["param"] == param
    assert bench.store.reserved == []


async def test_over_the_limit_is_429_with_headers_and_names_the_limit() -> None:
    view = WindowView(limit=100, remaining=3, reset_ms=11_200)
    verdict = Rejected(
        root="svc",
        refused_by="tpm",
        requested_tokens=80,
        requests=WindowView(limit=60, remaining=59, reset_ms=11_200),
        tokens=view,
        retry_after_ms=11_200,
    )
    bench = Bench(store=RecordingStore(verdicts=[verdict]))
    reply = await bench.ask(message())
    assert reply.immediate_response.status.code == 429
    headers = headers_of(reply)
    # 11.2 s, and a little jitter.
    assert headers["retry-after"] in ("12", "13")
    assert headers["x-ratelimit-limit-tokens"] == "100"
    assert headers["x-ratelimit-remaining-tokens"] == "3"
    assert headers["x-ratelimit-remaining-requests"] == "59"
    assert headers["x-ratelimit-reset-requests"] == "12s"
    assert headers["x-request-id"] == "req-1"
    error = json.loads(reply.immediate_response.body)["error"]
    assert error["code"] == "rate_limit_exceeded"
    assert error["type"] == "tokens"
    assert "tokens per minute" in error["message"]
    assert bench.telemetry.lines == ["rejected tpm"]


async def test_what_can_never_fit_tells_the_client_not_to_retry() -> None:
    view = WindowView(limit=10, remaining=10, reset_ms=1000)
    verdict = Rejected(
        root="svc",
        refused_by="tpm",
        requested_tokens=11,
        requests=view,
        tokens=view,
        retry_after_ms=None,
    )
    reply = await Bench(store=RecordingStore(verdicts=[verdict])).ask(message())
    headers = headers_of(reply)
    assert "retry-after" not in headers
    assert headers["x-should-retry"] == "false"


async def test_an_anthropic_client_gets_anthropics_error_shape() -> None:
    verdict = ServiceRefused(ServiceState.DISABLED)
    bench = Bench(store=RecordingStore(verdicts=[verdict]))
    reply = await bench.ask(message(ANTHROPIC, path="/v1/messages"))
    body = json.loads(reply.immediate_response.body)
    assert body["type"] == "error"
    assert body["error"]["type"] == "permission_error"


@pytest.mark.parametrize(("allowed", "word"), [(False, "refused"), (True, "allowed")])
async def test_an_unknown_path_follows_the_setting_and_is_counted(allowed: bool, word: str) -> None:
    bench = Bench(policy=replace(POLICY, allows_unmetered=allowed))
    limit = ServiceLimit(service_id="svc", rpm=1, tpm=1)
    bench.limits.lookups.append(LimitLookup(limit, True))
    reply = await bench.ask(message(path="/v1/other?key=secret"))
    assert bench.telemetry.lines[0] == f"unmetered unknown_path {word}"
    kind = "request_body" if allowed else "immediate_response"
    assert reply.WhichOneof("response") == kind
    assert bench.store.reserved == []


@pytest.mark.parametrize(
    ("service", "limit", "status"),
    [
        (None, None, 401),
        ("svc", None, 403),
        ("svc", ServiceLimit(service_id="svc", rpm=1, tpm=1, enabled=False), 403),
    ],
)
async def test_unmetered_requests_too_need_a_known_and_enabled_service(
    service: str | None, limit: ServiceLimit | None, status: int
) -> None:
    bench = Bench(policy=replace(POLICY, allows_unmetered=True))
    bench.limits.lookups.append(LimitLookup(limit, True))
    reply = await bench.ask(message(path="/v1/other", service=service))
    assert reply.immediate_response.status.code == status


@pytest.mark.parametrize("allowed", [False, True])
async def test_an_encoding_that_we_cannot_read_follows_the_setting(allowed: bool) -> None:
    bench = Bench(policy=replace(POLICY, allows_unmetered=allowed))
    limit = ServiceLimit(service_id="svc", rpm=1, tpm=1)
    bench.limits.lookups.append(LimitLookup(limit, True))
    request = message(b"\x0b\x02\x80compressed")
    fields = request.attributes["envoy.filters.http.ext_proc"].fields
    fields["request.headers['content-encoding']"].string_value = "br"
    reply = await bench.ask(request)
    if allowed:
        assert reply.WhichOneof("response") == "request_body"
        assert bench.telemetry.lines == ["unmetered content_encoding allowed"]
    else:
        assert reply.immediate_response.status.code == 415
        assert bench.telemetry.lines == ["refused unsupported_content_encoding"]
    assert bench.store.reserved == []


async def test_redis_away_is_503_when_closed() -> None:
    lost = StoreUnavailableError("redis", "refused", transient=True)
    bench = Bench(store=RecordingStore(verdicts=[lost]))
    reply = await bench.ask(message())
    assert reply.immediate_response.status.code == 503
    assert headers_of(reply)["retry-after"] == "1"
    assert bench.store.released == []


async def test_redis_away_passes_and_is_counted_when_open() -> None:
    lost = StoreUnavailableError("redis", "refused", transient=True)
    policy = replace(POLICY, fails_open=True)
    bench = Bench(store=RecordingStore(verdicts=[lost]), policy=policy)
    reply = await bench.ask(message())
    assert reply.WhichOneof("response") == "request_body"
    assert not reply.HasField("dynamic_metadata")
    assert bench.telemetry.lines == ["failed_open redis"]


async def test_sql_away_with_a_cold_cache_is_503_even_when_open() -> None:
    lost = StoreUnavailableError("sql", "refused", transient=True)
    bench = Bench(
        store=RecordingStore(verdicts=[LimitsMissing()]),
        limits=ListedLimits([lost]),
        policy=replace(POLICY, fails_open=True),
    )
    reply = await bench.ask(message())
    assert reply.immediate_response.status.code == 503


async def test_a_reserve_of_unknown_effect_is_released() -> None:
    lost = StoreUnavailableError("redis", "timed out", transient=True, maybe_applied=True)
    bench = Bench(store=RecordingStore(verdicts=[lost]))
    await bench.ask(message())
    assert len(bench.store.released) == 1
    release = bench.store.released[0]
    assert release.reservation_id == bench.store.reserved[0].reservation_id
    assert release.state is State.RELEASED
    assert release.source is Source.ADMISSION
    assert release.outcome is Outcome.NOT_FORWARDED


async def test_a_cold_cache_is_loaded_and_asked_again() -> None:
    limit = ServiceLimit(service_id="svc", rpm=1, tpm=1)
    bench = Bench(
        store=RecordingStore(verdicts=[LimitsMissing()]),
        limits=ListedLimits([LimitLookup(limit, True)]),
    )
    reply = await bench.ask(message())
    assert reply.WhichOneof("response") == "request_body"
    assert [r.limit for r in bench.store.reserved] == [None, None]


async def test_limits_that_could_not_be_cached_are_given_to_the_script() -> None:
    limit = ServiceLimit(service_id="svc", rpm=1, tpm=1)
    bench = Bench(
        store=RecordingStore(verdicts=[LimitsMissing()]),
        limits=ListedLimits([LimitLookup(limit, False)]),
    )
    await bench.ask(message())
    assert [r.limit for r in bench.store.reserved] == [None, limit]


async def _cancelled(bench: Bench, until: Callable[[], bool]) -> MemoryContext:
    context = MemoryContext([message()])
    task = asyncio.create_task(bench.admission().process(context))
    async with asyncio.timeout(2):
        while not until():
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return context


async def test_a_client_that_leaves_while_we_decide_costs_nothing() -> None:
    bench = Bench(store=RecordingStore(gate=asyncio.Event()))
    context = await _cancelled(bench, lambda: bool(bench.store.reserved))
    await bench.settler.flush(timeout_seconds=1)
    assert context.written == []
    assert bench.store.released[0].reservation_id == bench.store.reserved[0].reservation_id


async def test_a_decision_that_hangs_is_503_even_when_open_and_released() -> None:
    bench = Bench(
        store=RecordingStore(gate=asyncio.Event()),
        policy=replace(POLICY, timeout_seconds=0.02, fails_open=True),
    )
    reply = await bench.ask(message())
    assert reply.immediate_response.status.code == 503
    assert bench.store.released[0].reservation_id == bench.store.reserved[0].reservation_id


async def test_an_answer_that_cannot_be_written_is_released() -> None:
    bench = Bench()
    context = MemoryContext([message()], write_error=asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await bench.admission().process(context)
    await bench.settler.flush(timeout_seconds=1)
    assert len(bench.store.released) == 1


async def test_a_message_that_is_no_protobuf_is_400() -> None:
    reply = await Bench().ask(read_request(b"\xff\xff"))
    assert reply.immediate_response.status.code == 400


async def test_the_reservations_id_is_that_of_the_request_when_envoy_tells_its_time() -> None:
    bench = Bench()
    for client in ("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:2"):
        request = message()
        fields = request.attributes["envoy.filters.http.ext_proc"].fields
        fields["request.time"].string_value = "2026-11-30T08:33:11.025061+00:00"
        fields["source.address"].string_value = client
        await bench.ask(request)
    await bench.ask(message())
    ids = [request.reservation_id for request in bench.store.reserved]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


async def test_a_headers_message_gets_a_headers_answer() -> None:
    headers = pb.ProcessingRequest(request_headers=pb.HttpHeaders(end_of_stream=True))
    bench = Bench()
    reply = await bench.ask(headers)
    assert reply.WhichOneof("response") == "request_headers"
    assert bench.store.reserved == []


@pytest.mark.parametrize("why", ["large", "compressed"])
async def test_what_may_be_large_is_counted_off_the_event_loop(why: str) -> None:
    import threading

    threads: set[str] = set()
    bench = Bench(policy=replace(POLICY, count_inline_max_bytes=10 if why == "large" else 10_000))
    request = message()
    if why == "compressed":
        request.request_body.body = gzip.compress(request.request_body.body)
        fields = request.attributes["envoy.filters.http.ext_proc"].fields
        fields["request.headers['content-encoding']"].string_value = "gzip"
    submit = bench.executor.submit

    def watched(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        def run() -> Any:
            threads.add(threading.current_thread().name)
            return function(*args, **kwargs)

        return submit(run)

    bench.executor.submit = watched  # type: ignore[method-assign]
    reply = await bench.ask(request)
    assert reply.WhichOneof("response") == "request_body"
    assert threads
    assert threading.main_thread().name not in threads


async def test_a_lone_surrogate_in_a_message_does_not_break_the_answer() -> None:
    body = b'{"model":"gpt-4o","messages":[{"role":"user","content":"broken \\ud83d emoji"}]}'
    reply = await Bench().ask(message(body))
    assert reply.WhichOneof("response") == "request_body"
    reply.SerializeToString()
