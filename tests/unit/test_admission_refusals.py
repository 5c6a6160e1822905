"""Refusals of admission: in the shape of the client's own API, and with nothing taken."""

import asyncio
import json
from dataclasses import replace

import pytest

from extproc.core.buckets import Unit
from extproc.core.errors import StoreUnavailableError
from extproc.core.limits import ServiceLimit
from extproc.core.policies import Block, PolicySet, Scope
from extproc.core.ports import LimitLookup
from extproc.core.reservations import (
    LimitsMissing,
    Refusal,
    Rejected,
    ServiceRefused,
    ServiceState,
    WindowView,
)
from extproc.core.subjects import Subject, read_subject
from extproc.envoy_io.attributes import read_request
from extproc.envoy_io.identity import FromHeader, FromMetadata
from tests.support.admission import (
    ANTHROPIC,
    CHAT,
    POLICY,
    Bench,
    fields_of,
    headers_of,
    message,
)
from tests.support.fakes import ListedLimits, RecordingStore


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


async def test_a_refusal_of_bedrock_names_its_exception_in_a_header() -> None:
    path = "/model/amazon.nova-lite-v1:0/converse"
    view = WindowView(limit=1, remaining=0, reset_ms=9_000)
    verdict = Rejected(
        root="svc",
        refused_by="rpm",
        requested_tokens=80,
        requests=view,
        tokens=view,
        retry_after_ms=9_000,
    )
    down = StoreUnavailableError("redis", "refused", transient=True)
    for bench, body, name in (
        (Bench(store=RecordingStore(verdicts=[verdict])), {}, "ThrottlingException"),
        (Bench(), {"messages": 3}, "ValidationException"),
        (Bench(store=RecordingStore(verdicts=[down])), {}, "ServiceUnavailableException"),
    ):
        reply = await bench.ask(message({"messages": []} | body, path=path))
        assert headers_of(reply)["x-amzn-errortype"] == name
        assert json.loads(reply.immediate_response.body)["__type"] == name


@pytest.mark.parametrize("is_simple", [True, False])
async def test_the_log_of_a_refusal_names_the_limit_that_refused_and_who_it_was(
    is_simple: bool, caplog: pytest.LogCaptureFixture
) -> None:
    view = WindowView(limit=10, remaining=3, reset_ms=1000)
    quota = Refusal(
        label="q/tokens_per_day", unit=Unit.TOTAL, limit=600, remaining=5, retry_after_ms=9_000_000
    )
    verdict = Rejected(
        root="svc",
        refused_by="tpm" if is_simple else quota.label,
        requested_tokens=11,
        requests=view,
        tokens=view,
        retry_after_ms=1000,
        refusals=() if is_simple else (quota,),
    )
    scopes = {Scope.USER: (FromHeader("x-user"),), Scope.API_KEY: (FromHeader("x-key"),)}
    policy = replace(POLICY, scopes=scopes)
    request = message()
    fields = request.attributes["envoy.filters.http.ext_proc"].fields
    fields["request.headers['x-user']"].string_value = "alice"
    fields["request.headers['x-key']"].string_value = "sk-secret"
    bench = Bench(store=RecordingStore(verdicts=[verdict]), policy=policy)
    await bench.ask(request)
    (record,) = [one for one in caplog.records if one.message == "refused"]
    found = vars(record)
    who = {"service": "svc", "provider": "openai", "user": "alice"}
    assert found["refusals"] == [verdict.refused_by]
    assert found["subject"] == who
    assert read_subject(bench.store.reserved[0].subject) == Subject(
        values={Scope(scope): value for scope, value in who.items()},
        hidden=(Scope.API_KEY,),
        is_priced=False,
    )
    amounts = {name: found[name] for name in found if name.startswith(("rpm_", "tpm_", "limit_"))}
    if is_simple:
        assert found["code"] == "rate_limit_exceeded"
        expected = {"rpm_limit": 10, "rpm_remaining": 3, "tpm_limit": 10, "tpm_remaining": 3}
        assert amounts == expected
    else:
        assert (found["limit"], found["code"]) == (quota.label, "insufficient_quota")
        assert amounts == {"limit_of": 600, "limit_remaining": 5}


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
    assert fields_of(reply) == ({"unm": "unknown_path"} if allowed else {})
    assert bench.store.reserved == []


async def test_what_is_free_of_charge_passes_whatever_the_setting_says() -> None:
    bench = Bench(policy=replace(POLICY, allows_unmetered=False))
    limit = ServiceLimit(service_id="svc", rpm=1, tpm=1)
    bench.limits.lookups += [LimitLookup(limit, True), LimitLookup(None, False)]
    reply = await bench.ask(message(ANTHROPIC, path="/v1/messages/count_tokens"))
    assert reply.WhichOneof("response") == "request_body"
    assert bench.telemetry.lines[0] == "unmetered anthropic_count_tokens allowed"
    assert bench.store.reserved == []
    stranger = await bench.ask(message(ANTHROPIC, path="/v1/messages/count_tokens"))
    assert stranger.immediate_response.status.code == 403
    batch = await bench.ask(message(ANTHROPIC, path="/v1/messages/batches"))
    assert json.loads(batch.immediate_response.body)["type"] == "error"
    assert "unmetered anthropic_batches refused" in bench.telemetry.lines


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


@pytest.mark.parametrize(("user", "is_blocked"), [("mallory", True), ("alice", False)])
async def test_a_block_holds_for_unmetered_requests_too(user: str, is_blocked: bool) -> None:
    scopes = {Scope.USER: (FromHeader("x-user"),)}
    bench = Bench(policy=replace(POLICY, allows_unmetered=True, scopes=scopes))
    blocks = (Block(scope=Scope.USER, value="mallory"),)
    policies = PolicySet(root="svc", service=None, blocks=blocks)
    bench.limits.lookups.append(LimitLookup(None, True, policies))
    request = message(path="/v1/other")
    fields = request.attributes["envoy.filters.http.ext_proc"].fields
    fields["request.headers['x-user']"].string_value = user
    reply = await bench.ask(request)
    assert (reply.immediate_response.status.code == 403) is is_blocked
    if is_blocked:
        assert json.loads(reply.immediate_response.body)["error"]["code"] == "blocked"


@pytest.mark.parametrize("allowed", [False, True])
async def test_an_encoding_that_we_cannot_read_follows_the_setting(allowed: bool) -> None:
    bench = Bench(policy=replace(POLICY, allows_unmetered=allowed))
    limit = ServiceLimit(service_id="svc", rpm=1, tpm=1)
    bench.limits.lookups.append(LimitLookup(limit, True))
    request = message(b"\x0b\x02\x80compressed")
    fields = request.attributes["envoy.filters.http.ext_proc"].fields
    fields["request.headers['content-encoding']"].string_value = "compress"
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


async def test_sql_away_with_a_cold_cache_is_503_even_when_open() -> None:
    lost = StoreUnavailableError("sql", "refused", transient=True)
    bench = Bench(
        store=RecordingStore(verdicts=[LimitsMissing()]),
        limits=ListedLimits([lost]),
        policy=replace(POLICY, fails_open=True),
    )
    reply = await bench.ask(message())
    assert reply.immediate_response.status.code == 503


async def test_a_decision_that_hangs_is_503_even_when_open_and_released() -> None:
    bench = Bench(
        store=RecordingStore(gate=asyncio.Event()),
        policy=replace(POLICY, timeout_seconds=0.02, fails_open=True),
    )
    reply = await bench.ask(message())
    assert reply.immediate_response.status.code == 503
    assert bench.store.released[0].reservation_id == bench.store.reserved[0].reservation_id


async def test_a_message_that_is_no_protobuf_is_400() -> None:
    reply = await Bench().ask(read_request(b"\xff\xff"))
    assert reply.immediate_response.status.code == 400
