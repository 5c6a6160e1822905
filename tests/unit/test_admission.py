"""Admission over an in-memory stream: every path that took something and does not deliver it gives
it back."""

import asyncio
import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from extproc.core.errors import StoreUnavailableError
from extproc.core.limits import ServiceLimit
from extproc.core.ports import LimitLookup
from extproc.core.reservations import (
    Knowledge,
    LimitsMissing,
    Outcome,
    ServiceRefused,
    ServiceState,
    Source,
    State,
)
from extproc.envoy_io.admission import UnexpectedMessageError
from extproc.providers.formats import BUILT_IN
from extproc.providers.formats.openai_chat import OPENAI_CHAT
from extproc.providers.registry import Routes, use_routes
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.wire_formats import Target
from tests.support.admission import CHAT, POLICY, Bench, fields_of, handle_in, message
from tests.support.fakes import ListedLimits, RecordingStore


async def test_a_format_may_go_by_the_requests_host() -> None:
    def matches(target: Target) -> bool:
        return target.host == "acme.example"

    def read(body: JsonObject, limits: ReadLimits, target: Target) -> RequestFacts:
        return replace(OPENAI_CHAT.read(body, limits, target), wire_format="acme")

    own = replace(OPENAI_CHAT, name="acme", matches=matches, read=read)
    request = message()
    fields = request.attributes["envoy.filters.http.ext_proc"].fields
    fields["request.host"].string_value = "Acme.example:8080"
    use_routes(Routes([own, *BUILT_IN]))
    try:
        bench = Bench()
        await bench.ask(request)
        await bench.ask(message())
    finally:
        use_routes(Routes(BUILT_IN))
    assert [taken.wire_format for taken in bench.store.reserved] == ["acme", "openai_chat"]


async def test_an_admitted_request_continues_with_its_handle() -> None:
    bench = Bench()
    reply = await bench.ask(message())
    assert reply.WhichOneof("response") == "request_body"
    fields = fields_of(reply)
    handle = handle_in(reply)
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
    assert handle_in(reply).hides_usage


async def test_the_clients_own_request_for_usage_is_left_alone() -> None:
    asked = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    reply = await Bench().ask(message(asked))
    assert not reply.request_body.response.HasField("body_mutation")
    assert not handle_in(reply).hides_usage


async def test_redis_away_passes_and_is_counted_when_open() -> None:
    lost = StoreUnavailableError("redis", "refused", transient=True)
    policy = replace(POLICY, fails_open=True)
    bench = Bench(store=RecordingStore(verdicts=[lost]), policy=policy)
    reply = await bench.ask(message())
    assert reply.WhichOneof("response") == "request_body"
    assert fields_of(reply) == {"unm": "failed_open"}
    assert bench.telemetry.lines == ["failed_open redis"]


async def test_a_reserve_of_unknown_effect_is_asked_again_as_the_same() -> None:
    lost = StoreUnavailableError("redis", "timed out", transient=True, maybe_applied=True)
    bench = Bench(store=RecordingStore(verdicts=[lost]))
    reply = await bench.ask(message())
    assert reply.WhichOneof("response") == "request_body"
    first, second = bench.store.reserved
    assert first == second
    assert first.owner
    assert len(first.request_hash) == 16
    assert bench.store.released == []


async def test_a_reserve_of_unknown_effect_is_released_in_the_end() -> None:
    lost = StoreUnavailableError("redis", "timed out", transient=True, maybe_applied=True)
    refused = StoreUnavailableError("redis", "refused", transient=True)
    bench = Bench(store=RecordingStore(verdicts=[lost, refused]))
    await bench.ask(message())
    assert len(bench.store.released) == 1
    release = bench.store.released[0]
    assert release.reservation_id == bench.store.reserved[0].reservation_id
    assert release.state is State.RELEASED
    assert release.source is Source.ADMISSION
    assert release.outcome is Outcome.NOT_FORWARDED


async def test_a_mark_that_could_not_be_set_for_a_late_call_is_set_in_the_background() -> None:
    lost = StoreUnavailableError("redis", "timed out", transient=True, maybe_applied=True)
    away = StoreUnavailableError("redis", "refused", transient=True)
    store = RecordingStore(
        verdicts=[lost, ServiceRefused(ServiceState.UNKNOWN)], settle_errors=[away]
    )
    bench = Bench(store=store)
    reply = await bench.ask(message())
    assert reply.immediate_response.status.code == 503
    (mark,) = store.released
    assert mark.reservation_id == store.reserved[0].reservation_id
    assert mark.undo


async def test_a_fault_after_the_admission_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("extproc.envoy_io.admission.log_admitted", fails)
    bench = Bench()
    with pytest.raises(ZeroDivisionError):
        await bench.ask(message())
    await bench.settler.flush(timeout_seconds=2)
    assert len(bench.store.released) == 1


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


async def _cancelled(bench: Bench, until: Callable[[], bool]) -> None:
    task = asyncio.create_task(bench.admission().decide(message()))
    async with asyncio.timeout(2):
        while not until():
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_client_that_leaves_while_we_decide_costs_nothing() -> None:
    bench = Bench(store=RecordingStore(gate=asyncio.Event()))
    await _cancelled(bench, lambda: bool(bench.store.reserved))
    await bench.settler.flush(timeout_seconds=1)
    assert bench.store.released[0].reservation_id == bench.store.reserved[0].reservation_id


async def test_a_fault_of_ours_gives_back_what_may_have_been_taken() -> None:
    bench = Bench(store=RecordingStore(verdicts=[ValueError("a bug")]))
    with pytest.raises(ValueError, match="a bug"):
        await bench.ask(message())
    await bench.settler.flush(timeout_seconds=1)
    (end,) = bench.store.released
    # It may have reached Envoy all the same: metering, if it speaks, knows better.
    assert end.knowledge is Knowledge.GUESSED


async def test_a_reply_that_cannot_be_built_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("extproc.envoy_io.admission.admitted_reply", fail)
    bench = Bench()
    with pytest.raises(ValueError, match="a bug"):
        await bench.ask(message())
    await bench.settler.flush(timeout_seconds=1)
    assert len(bench.store.released) == 1


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


async def test_a_message_that_our_include_does_not_ask_for_is_an_error() -> None:
    """An answer would end the stream, and Envoy would send the body on unseen."""
    headers = pb.ProcessingRequest(request_headers=pb.HttpHeaders(end_of_stream=True))
    bench = Bench()
    with pytest.raises(UnexpectedMessageError, match="request_headers"):
        await bench.ask(headers)
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
