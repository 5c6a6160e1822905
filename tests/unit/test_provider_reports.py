"""Metering recognises the provider's errors, and the client's answer is not changed by it."""

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from extproc.core.provider_errors import Dimension, ErrorCode, ProviderError, Room
from extproc.core.reservations import Outcome
from extproc.envoy_io.attributes import fill_struct
from tests.unit.event_streams import event as aws_event
from tests.unit.test_ending import Recorder, entry
from tests.unit.test_metering import (
    DONE,
    HANDLE,
    WORDS,
    Bench,
    body,
    forwarded,
    headers,
    is_marked,
    trailers,
)

LIMITED = json.dumps(
    {"error": {"message": "Slow down.", "type": "tokens", "code": "rate_limit_exceeded"}}
).encode()
BROKEN_EVENT = b'data: {"error":{"message":"x","type":"server_error","code":null}}\n\n'


def with_headers(message: pb.ProcessingRequest, **more: str) -> pb.ProcessingRequest:
    for name, value in more.items():
        listed = message.response_headers.headers.headers
        listed.add(key=name.replace("_", "-"), raw_value=value.encode())
    return message


def told(bench: Bench) -> tuple[int, ErrorCode, Dimension, bool, float | None]:
    (error,) = bench.telemetry.provider_errors
    assert error.provider == "openai"
    return (
        error.status,
        error.code,
        error.dimension,
        error.retryable,
        error.retry_after_seconds,
    )


LIMITED_TOLD = (429, ErrorCode.RATE_LIMITED, Dimension.TOKENS, True, 2.0)


@pytest.mark.parametrize("cut", [1, 20, 10_000])
async def test_a_429_is_read_to_its_end_and_passes_as_it_is(cut: int) -> None:
    bench = Bench()
    pieces = [body(LIMITED[at : at + cut]) for at in range(0, len(LIMITED), cut)]
    pieces[-1].response_body.end_of_stream = True
    first = with_headers(headers("429", content_type="application/json"), retry_after="2")
    replies = await bench.run(first, *pieces)
    assert forwarded(pieces, replies) == LIMITED
    assert told(bench) == LIMITED_TOLD
    (end,) = bench.store.released
    assert end.outcome is Outcome.UPSTREAM_REFUSED
    assert [is_marked(reply) for reply in replies] == [True] + [False] * len(pieces)


async def test_a_429_that_ends_with_trailers_is_reported_once() -> None:
    bench = Bench()
    first = with_headers(headers("429"), retry_after="2")
    await bench.run(first, body(LIMITED), trailers())
    assert told(bench) == LIMITED_TOLD


async def test_a_429_that_is_compressed_is_read() -> None:
    bench = Bench()
    first = with_headers(headers("429"), retry_after="2", content_encoding="gzip")
    await bench.run(first, body(gzip.compress(LIMITED), end=True))
    assert told(bench) == LIMITED_TOLD


@pytest.mark.parametrize("how", ["half_close", "cancel", "no body"])
async def test_an_error_of_which_nothing_more_comes_is_told_by_its_status(how: str) -> None:
    bench = Bench()
    if how == "no body":
        await bench.run(headers("503", end=True))
    elif how == "cancel":
        await bench.run_cancelled(headers("503"))
    else:
        await bench.run(headers("503"))
    assert told(bench) == (503, ErrorCode.OVERLOADED, Dimension.NONE, True, None)
    assert len(bench.ends) == 1


async def test_an_endless_error_page_is_not_kept() -> None:
    bench = Bench()
    await bench.run(headers("500"), *[body(b"x" * 60_000) for _ in range(20)], body(b"", end=True))
    assert told(bench)[:2] == (500, ErrorCode.SERVER_ERROR)


async def test_a_redirect_is_no_error() -> None:
    bench = Bench()
    await bench.run(headers("302", end=True))
    assert bench.telemetry.provider_errors == []
    assert len(bench.store.released) == 1


async def test_an_error_in_mid_stream_is_told_once() -> None:
    bench = Bench()
    pieces = [body(WORDS[0]), body(BROKEN_EVENT), body(BROKEN_EVENT + DONE, end=True)]
    replies = await bench.run(headers(), *pieces)
    assert told(bench) == (200, ErrorCode.SERVER_ERROR, Dimension.NONE, True, None)
    assert forwarded(pieces, replies) == WORDS[0] + BROKEN_EVENT * 2 + DONE


async def test_an_error_document_with_a_good_status_is_told() -> None:
    bench = Bench()
    await bench.run(headers(content_type="application/json"), body(LIMITED, end=True))
    assert told(bench)[:3] == (200, ErrorCode.RATE_LIMITED, Dimension.TOKENS)


async def test_an_exception_in_awss_binary_stream_is_told_by_its_name() -> None:
    bench = Bench()
    thrown = aws_event("throttlingException", {"message": "slow down"}, kind="exception")
    handle = replace(HANDLE, wire_format="bedrock_converse_stream")
    kind = "application/vnd.amazon.eventstream"
    await bench.run(headers(content_type=kind, handle=handle), body(thrown, end=True))
    (error,) = bench.telemetry.provider_errors
    assert (error.provider, error.code) == ("bedrock", ErrorCode.RATE_LIMITED)
    assert error.provider_code == "throttlingException"


async def test_a_good_answer_tells_what_is_left_and_no_error() -> None:
    bench = Bench()
    handle = replace(HANDLE, wire_format="anthropic_messages", model="claude-x")
    first = with_headers(headers(handle=handle), anthropic_ratelimit_input_tokens_remaining="41")
    await bench.run(first, body(WORDS[0]), body(DONE, end=True))
    assert bench.telemetry.provider_errors == []
    room = Room(Dimension.INPUT_TOKENS, 41, None)
    assert bench.telemetry.rooms == [("anthropic", "claude-x", room)]


async def test_our_own_headers_are_not_taken_for_the_providers() -> None:
    """The route may put ours in place of the provider's before metering sees them."""
    bench = Bench()
    first = with_headers(
        headers(),
        x_ratelimit_limit_tokens="100",
        x_ratelimit_remaining_tokens="0",
        x_ratelimit_limit_requests="500",
        x_ratelimit_remaining_requests="499",
    )
    struct = first.metadata_context.filter_metadata["llm"]
    fill_struct(struct, {"limit_tokens": "100", "remaining_tokens": "0", "limit_requests": "7"})
    await bench.run(first, body(DONE, end=True))
    assert bench.telemetry.rooms == [("openai", "gpt-4o", Room(Dimension.REQUESTS, 499, 500))]


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (
            entry("upstream_connection_failure", code=503, answered=False, called=False),
            "unreachable",
        ),
        (entry("no_healthy_upstream", code=503, called=False, answered=False), "unreachable"),
        (entry("upstream_request_timeout", code=504, answered=False), "timeout"),
        (entry("upstream_request_timeout"), "timeout"),
        (entry("upstream_protocol_error"), "broken"),
        (entry("upstream_protocol_error", code=502), "broken"),
        (entry("no_route_found", code=404, called=False, answered=False), None),
        (entry("downstream_remote_reset"), None),
        (entry(), None),
    ],
)
async def test_silence_is_told_by_envoys_flags(made: Any, code: str | None) -> None:
    recorder = Recorder()
    await recorder.log(made)
    found: list[ProviderError] = recorder.telemetry.provider_errors
    assert [error.code.value for error in found] == ([] if code is None else [code])
