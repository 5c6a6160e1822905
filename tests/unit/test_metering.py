"""Metering over an in-memory stream: exactly one settlement for every way an answer can end."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from extproc.core.handles import Handle
from extproc.core.reservations import Knowledge, Outcome, Settlement
from extproc.core.settler import Settler
from extproc.envoy_io.attributes import fill_struct
from extproc.envoy_io.metering import Metering
from tests.support.fakes import RecordingStore, RecordingTelemetry
from tests.support.streams import MemoryContext

HANDLE = Handle(
    reservation_id="r1",
    root="svc",
    wire_format="openai_chat",
    model="gpt-4o",
    input_tokens=9,
    reserved_tokens=509,
    encoding="o200k_base",
    hides_usage=False,
)
ANSWER = {
    "id": "x",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello there"}}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
}


def event(delta: str | None = None, usage: dict[str, int] | None = None) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": {"content": delta}}]
    return b"data: " + json.dumps({"choices": choices, "usage": usage}).encode() + b"\n\n"


USAGE = event(usage={"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12})
DONE = b"data: [DONE]\n\n"
WORDS = [event(" one"), event(" two"), event(" three")]


def headers(
    status: str = "200",
    *,
    content_type: str = "text/event-stream",
    handle: Handle | None = HANDLE,
    end: bool = False,
    details: str = "via_upstream",
) -> pb.ProcessingRequest:
    message = pb.ProcessingRequest()
    listed = message.response_headers.headers.headers
    listed.add(key=":status", raw_value=status.encode())
    listed.add(key="content-type", raw_value=content_type.encode())
    message.response_headers.end_of_stream = end
    if handle is not None:
        fill_struct(message.metadata_context.filter_metadata["llm"], handle.to_fields())
    fields = message.attributes["envoy.filters.http.ext_proc"].fields
    fields["response.code_details"].string_value = details
    return message


def body(data: bytes, *, end: bool = False) -> pb.ProcessingRequest:
    return pb.ProcessingRequest(response_body=pb.HttpBody(body=data, end_of_stream=end))


def trailers() -> pb.ProcessingRequest:
    return pb.ProcessingRequest(response_trailers=pb.HttpTrailers())


@dataclass
class Bench:
    store: RecordingStore = field(default_factory=RecordingStore)
    stopping: bool = False

    def __post_init__(self) -> None:
        self.telemetry = RecordingTelemetry()
        self.settler = Settler(self.store, self.telemetry)
        self.metering = Metering(self.settler, self.telemetry, is_stopping=lambda: self.stopping)

    @property
    def ends(self) -> list[Settlement]:
        return self.store.settled + self.store.released

    async def run(self, *messages: pb.ProcessingRequest) -> list[Any]:
        context: Any = MemoryContext(messages)
        await self.metering.process(context)
        await self.settler.flush(timeout_seconds=1)
        return list(context.written)

    async def run_cancelled(self, *messages: pb.ProcessingRequest) -> list[Any]:
        """The stream stays open after the messages, then Envoy drops it."""
        context: Any = MemoryContext(messages, half_close=False)
        task = asyncio.create_task(self.metering.process(context))
        async with asyncio.timeout(2):
            await context.idle.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await self.settler.flush(timeout_seconds=1)
        return list(context.written)


def is_marked(reply: Any) -> bool:
    fields = reply.dynamic_metadata.fields
    return "llm" in fields and fields["llm"].struct_value.fields["met"].number_value == 1


def forwarded(messages: Sequence[pb.ProcessingRequest], replies: Sequence[Any]) -> bytes:
    """What the client gets: each chunk, or what our reply makes of it."""
    out = b""
    bodies = [m for m in messages if m.WhichOneof("request") == "response_body"]
    answers = [r for r in replies if r.WhichOneof("response") == "response_body"]
    for message, reply in zip(bodies, answers, strict=True):
        mutation = reply.response_body.response.body_mutation
        kind = mutation.WhichOneof("mutation")
        out += {"body": mutation.body, "clear_body": b"", None: message.response_body.body}[kind]
    return out


@pytest.mark.parametrize("cut", [1, 7, 10_000])
async def test_a_plain_answer_is_settled_by_its_usage(cut: int) -> None:
    data = json.dumps(ANSWER).encode()
    pieces = [body(data[i : i + cut]) for i in range(0, len(data), cut)]
    bench = Bench()
    replies = await bench.run(
        headers(content_type="application/json"), *pieces, body(b"", end=True)
    )
    (end,) = bench.ends
    assert (end.input_tokens, end.output_tokens) == (9, 2)
    assert end.knowledge is Knowledge.KNOWN
    assert end.outcome is Outcome.COMPLETE
    assert end.writes_history
    assert [is_marked(reply) for reply in replies][-1]
    assert not any(is_marked(reply) for reply in replies[:-1])


async def test_a_stream_with_usage_is_settled_once() -> None:
    bench = Bench()
    await bench.run(headers(), *map(body, WORDS), body(USAGE), body(DONE, end=True))
    (end,) = bench.ends
    assert (end.input_tokens, end.output_tokens) == (9, 3)
    assert end.outcome is Outcome.COMPLETE


async def test_trailers_end_an_answer_too() -> None:
    bench = Bench()
    replies = await bench.run(headers(), body(WORDS[0]), body(USAGE), body(DONE), trailers())
    (end,) = bench.ends
    assert end.outcome is Outcome.COMPLETE
    assert replies[-1].WhichOneof("response") == "response_trailers"
    assert is_marked(replies[-1])


async def test_an_answer_without_a_body_is_settled_once() -> None:
    bench = Bench()
    replies = await bench.run(headers("204", end=True))
    assert len(bench.ends) == 1
    assert is_marked(replies[0])


async def test_a_complete_stream_without_usage_is_counted() -> None:
    bench = Bench()
    await bench.run(headers(), *map(body, WORDS), body(DONE, end=True))
    (end,) = bench.ends
    assert (end.input_tokens, end.output_tokens) == (9, 3)
    assert end.outcome is Outcome.COMPLETE_ESTIMATED
    assert end.knowledge is Knowledge.COUNTED
    assert not end.writes_history


@pytest.mark.parametrize("how", ["half_close", "cancel"])
async def test_a_stream_that_is_cut_is_charged_for_what_passed(how: str) -> None:
    bench = Bench()
    run = bench.run if how == "half_close" else bench.run_cancelled
    await run(headers(), body(WORDS[0]), body(WORDS[1]))
    (end,) = bench.ends
    assert (end.input_tokens, end.output_tokens) == (9, 2)
    assert end.outcome is Outcome.CUT
    assert end.knowledge is Knowledge.COUNTED


async def test_our_own_shutdown_in_mid_stream_keeps_the_reserve() -> None:
    bench = Bench(stopping=True)
    await bench.run_cancelled(headers(), body(WORDS[0]))
    (end,) = bench.ends
    assert end.input_tokens + end.output_tokens == 509
    assert end.knowledge is Knowledge.GUESSED


@pytest.mark.parametrize("status", ["400", "429", "500", "503"])
async def test_an_error_of_the_upstream_is_released_at_its_headers(status: str) -> None:
    bench = Bench()
    replies = await bench.run(headers(status), body(b"what is wrong"))
    (end,) = bench.store.released
    assert end.outcome is Outcome.UPSTREAM_REFUSED
    assert [is_marked(reply) for reply in replies] == [True, False]


async def test_an_error_of_envoy_itself_is_left_to_the_ending() -> None:
    bench = Bench()
    replies = await bench.run(headers("503", details="upstream_reset_before_response_started"))
    assert bench.ends == []
    assert replies == []


async def test_an_answer_without_our_handle_is_not_ours() -> None:
    bench = Bench()
    assert await bench.run(headers(handle=None), body(b"x", end=True)) == []
    assert bench.ends == []


async def test_an_error_inside_a_200_gives_everything_back() -> None:
    bench = Bench()
    error = b'data: {"error":{"message":"Rate limit","type":"rate_limit_error"}}\n\n'
    await bench.run(headers(), body(error, end=True))
    (end,) = bench.store.released
    assert end.outcome is Outcome.UPSTREAM_REFUSED


@pytest.mark.parametrize("cut", [1, 5, 64, 10_000])
async def test_the_usage_that_the_client_did_not_ask_for_is_hidden(cut: int) -> None:
    whole = b"".join([*WORDS, USAGE, DONE])
    handle = replace(HANDLE, hides_usage=True)
    pieces = [body(whole[i : i + cut]) for i in range(0, len(whole), cut)]
    pieces.append(body(b"", end=True))
    bench = Bench()
    replies = await bench.run(headers(handle=handle), *pieces)
    assert forwarded(pieces, replies) == b"".join([*WORDS, DONE])
    (end,) = bench.ends
    assert (end.input_tokens, end.output_tokens) == (9, 3)
    assert end.knowledge is Knowledge.KNOWN


async def test_a_stopping_server_lets_no_byte_depend_on_it() -> None:
    whole = b"".join([*WORDS, USAGE, DONE])
    pieces = [body(whole[:100]), body(whole[100:130]), body(whole[130:])]
    bench = Bench(stopping=True)
    replies = await bench.run(headers(handle=replace(HANDLE, hides_usage=True)), *pieces)
    passed = b""
    for count in range(1, 4):
        passed = forwarded(pieces[:count], replies[: count + 1])
        assert passed == b"".join(piece.response_body.body for piece in pieces[:count])
    assert passed == whole


async def test_an_event_too_large_to_read_keeps_the_reserve() -> None:
    event_of_5_mb = b'data: {"choices":[{"delta":{"content":"' + b"word " * 1_000_000 + b'"}}]}\n\n'
    bench = Bench()
    await bench.run(headers(), body(event_of_5_mb), body(DONE, end=True))
    (end,) = bench.ends
    assert end.input_tokens + end.output_tokens == HANDLE.reserved_tokens
    assert end.knowledge is Knowledge.GUESSED


async def test_a_shortened_answer_loses_its_content_length() -> None:
    replies = await Bench().run(headers(handle=replace(HANDLE, hides_usage=True)))
    mutation = replies[0].response_headers.response.header_mutation
    assert list(mutation.remove_headers) == ["content-length"]


async def test_bytes_pass_unchanged_when_nothing_is_hidden() -> None:
    pieces = [body(b"\xff\xfe not json"), body(b"\x00", end=True)]
    replies = await Bench().run(headers(content_type="application/json"), *pieces)
    assert forwarded(pieces, replies) == b"\xff\xfe not json\x00"


async def test_a_running_total_is_no_usage_of_a_stream_whose_end_never_came() -> None:
    bench = Bench()
    early = event(" one", usage={"prompt_tokens": 9, "completion_tokens": 1})
    await bench.run(headers(), body(early), *map(body, WORDS * 20), body(b"", end=True))
    (end,) = bench.ends
    assert end.output_tokens == 61
    assert (end.knowledge, end.writes_history) == (Knowledge.COUNTED, False)


async def test_with_its_end_the_providers_word_stands() -> None:
    bench = Bench()
    early = event(" one", usage={"prompt_tokens": 9, "completion_tokens": 1})
    await bench.run(headers(), body(early), *map(body, WORDS * 20), body(DONE, end=True))
    (end,) = bench.ends
    assert (end.output_tokens, end.knowledge) == (1, Knowledge.KNOWN)
