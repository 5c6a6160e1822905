"""Beside the longest chunks and documents other streams go on; what is read stays the same."""

import asyncio
import gc
import gzip
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from extproc.core.reservations import Knowledge, Outcome, Settlement
from extproc.envoy_io import metered_answer
from extproc.providers.tokens import warm_up
from tests.support.streams import MemoryContext
from tests.unit.test_metering import (
    DONE,
    HANDLE,
    USAGE,
    Bench,
    body,
    event,
    forwarded,
    headers,
)

# CPU of this process between two turns of a task that wants one each ms. Measured: 3 to 24 ms;
# all at once the same bodies took up to 2.7 s.
MOST_SECONDS = 0.05
# A document is parsed in one go, by another thread that keeps the interpreter.
MOST_PARSE_SECONDS = 0.2
MB = 1_000_000
HIDING = replace(HANDLE, hides_usage=True)
END = USAGE + DONE


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """No collection of what other tests have left."""
    warm_up()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


async def waits(work: Callable[[], Any]) -> list[float]:
    """How many CPU seconds a task that pauses for 1 ms has waited, each time, beside ``work``."""
    found: list[float] = []

    async def tick() -> None:
        while True:
            before = time.process_time()
            await asyncio.sleep(0.001)
            found.append(time.process_time() - before)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.005)
    await work()
    await asyncio.sleep(0.005)
    ticking.cancel()
    return found


async def run(bench: Bench, *messages: pb.ProcessingRequest) -> list[Any]:
    context: Any = MemoryContext(messages)
    await bench.metering.process(context)
    await bench.settler.flush(timeout_seconds=30)
    return list(context.written)


def coded_headers(wire_format: str = "openai_chat", *, coding: str = "") -> pb.ProcessingRequest:
    kind = "text/event-stream" if wire_format == "openai_chat" else "application/json"
    message = headers(content_type=kind, handle=replace(HANDLE, wire_format=wire_format))
    if coding:
        message.response_headers.headers.headers.add(
            key="content-encoding", raw_value=coding.encode()
        )
    return message


def filled(piece: bytes, size: int, end: bytes = b"") -> bytes:
    return piece * (size // len(piece)) + end


TEXT = json.dumps({"choices": [{"index": 0, "delta": {"content": "汉" * 500_000}}]}).encode()
# What is sent: wire format, whether it is compressed, and the body.
LONG: dict[str, tuple[str, bool, Callable[[], bytes]]] = {
    "tiny events": ("openai_chat", True, lambda: filled(b"data:{}\n\n", MB, END)),
    "empty events": ("openai_chat", False, lambda: filled(b"data:\n\n", MB // 2, END)),
    "deltas": ("openai_chat", True, lambda: filled(event(" one"), 2 * MB, END)),
    "comments": ("openai_chat", False, lambda: filled(b":\n", MB, END)),
    "lines": ("ollama_chat", True, lambda: filled(b"{}\n", MB // 2)),
    "elements": ("gemini", True, lambda: b"[" + filled(b"{},", MB // 2, b"{}]")),
    "one event of text": ("openai_chat", False, lambda: b"data: " + TEXT + b"\n\n"),
    "members": ("openai_chat", False, lambda: gzip.compress(b"") * 4000),
}


@pytest.mark.parametrize("name", LONG)
async def test_other_streams_go_on_beside_a_long_chunk(name: str) -> None:
    wire_format, is_packed, made = LONG[name]
    plain = made()
    sent = gzip.compress(plain) if is_packed else plain
    coding = "gzip" if is_packed else ""
    bench, apart = Bench(), Bench()

    async def work() -> None:
        await run(bench, coded_headers(wire_format, coding=coding), body(sent, end=True))

    assert max(await waits(work)) < MOST_SECONDS
    await run(
        apart,
        coded_headers(wire_format),
        *(body(plain[at : at + 1500]) for at in range(0, len(plain), 1500)),
        body(b"", end=True),
    )
    if name != "members":  # cut, those would be no gzip to begin with
        assert bench.ends == apart.ends
    assert len(bench.ends) == 1


async def test_many_long_chunks_have_one_turn_together() -> None:
    sent = gzip.compress(filled(b"data:{}\n\n", MB // 10, END))
    benches = [Bench() for _ in range(40)]
    shared = benches[0].metering

    async def one(bench: Bench) -> None:
        context: Any = MemoryContext((coded_headers(coding="gzip"), body(sent, end=True)))
        await shared.process(context)

    async def work() -> None:
        await asyncio.gather(*map(one, benches))

    assert median(await waits(work)) < 0.015  # measured: 0.003; without an order of turns 0.05
    await benches[0].settler.flush(timeout_seconds=30)
    assert [end.outcome for end in benches[0].ends] == [Outcome.COMPLETE] * 40


VECTOR = json.dumps([0.0123456789 + n / 7 for n in range(1000)]).encode()
USAGE_AT_END = b'"usage":{"prompt_tokens":9,"completion_tokens":0,"total_tokens":9}}'
DOCUMENTS: dict[str, tuple[bytes, Outcome]] = {
    "vectors": (
        b'{"data":['
        + b",".join(b'{"embedding":' + VECTOR + b"}" for _ in range(350))
        + b"],"
        + USAGE_AT_END,
        Outcome.COMPLETE,
    ),
    "empty lists": (b'{"data":[' + filled(b"[],", 7 * MB, b"1],") + USAGE_AT_END, Outcome.COMPLETE),
    "keys": (
        b'{"data":{' + b",".join(b'"k%d":""' % n for n in range(500_000)) + b"}," + USAGE_AT_END,
        Outcome.COMPLETE,
    ),
    "no usage": (b'{"data":[' + filled(b"[],", 7 * MB, b"1]}"), Outcome.COMPLETE_ESTIMATED),
    "text": (
        b'{"choices":[{"message":{"content":"' + "汉".encode() * 2 * MB + b'"}}]}',
        Outcome.COMPLETE_ESTIMATED,
    ),
}


@pytest.mark.parametrize("name", DOCUMENTS)
async def test_other_streams_go_on_beside_a_large_document(name: str) -> None:
    sent, outcome = DOCUMENTS[name]
    bench = Bench()
    message = headers(content_type="application/json")

    async def work() -> None:
        await run(bench, message, body(sent[:MB]), body(sent[MB:]), body(b"", end=True))

    assert max(await waits(work)) < MOST_PARSE_SECONDS
    assert [end.outcome for end in bench.ends] == [outcome]
    if name == "no usage":
        assert bench.ends[0].output_tokens == HANDLE.reserved_tokens - HANDLE.input_tokens


async def dropped(bench: Bench, *messages: pb.ProcessingRequest) -> list[Settlement]:
    """Envoy drops the stream while the last message is read."""
    context: Any = MemoryContext(messages, half_close=False)
    task = asyncio.create_task(bench.metering.process(context))
    async with asyncio.timeout(2):
        while context.messages:
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not bench.ends
    await bench.settler.flush(timeout_seconds=30)
    return bench.ends


MANY = filled(event(" one"), 500_000)


async def test_a_chunk_is_read_to_its_end_when_the_stream_is_dropped_in_it() -> None:
    whole, last, cut, short = Bench(), Bench(), Bench(), Bench()
    await run(whole, headers(), body(MANY + END, end=True))
    assert await dropped(last, headers(), body(MANY + END, end=True)) == whole.ends
    assert whole.ends[0].knowledge is Knowledge.KNOWN
    await run(short, headers(), *(body(MANY[at : at + 1000]) for at in range(0, len(MANY), 1000)))
    assert await dropped(cut, headers(), body(MANY)) == short.ends
    assert short.ends[0].outcome is Outcome.CUT
    assert short.ends[0].knowledge is Knowledge.COUNTED


async def test_when_envoy_may_have_lost_its_patience_the_reserve_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metered_answer, "_LATE_SECONDS", 0.0)
    few = filled(event(" one"), 40_000)
    [end] = await dropped(Bench(), headers(), body(few))
    assert end.outcome is Outcome.CUT
    assert end.knowledge is Knowledge.GUESSED
    assert end.input_tokens + end.output_tokens >= HANDLE.reserved_tokens


async def test_what_is_hidden_in_a_long_chunk_is_left_out() -> None:
    messages = [
        headers(handle=HIDING),
        body(MANY + USAGE[:20]),
        body(USAGE[20:] + MANY + DONE, end=True),
    ]
    bench = Bench()
    assert forwarded(messages, await run(bench, *messages)) == MANY + MANY + DONE
    assert bench.ends[0].outcome is Outcome.COMPLETE


@pytest.mark.parametrize("handle", [HANDLE, HIDING])
async def test_an_answer_that_takes_too_long_to_read_passes_and_keeps_its_reserve(
    monkeypatch: pytest.MonkeyPatch, handle: Any
) -> None:
    monkeypatch.setattr(metered_answer, "MOST_SECONDS", 0.02)
    chunk = filled(b"data:{}\n\n", MB)
    messages = [
        headers(handle=handle),
        body(b"data: "),
        body(b"{}\n\n" + chunk),
        body(chunk),
        body(END, end=True),
    ]
    bench = Bench()
    started = time.process_time()
    replies = await run(bench, *messages)
    assert time.process_time() - started < 0.5
    assert forwarded(messages, replies) == b"data: {}\n\n" + chunk + chunk + END
    assert bench.telemetry.lines.count("unread_answer too_long_to_read") == 1
    [end] = bench.ends
    assert end.knowledge is Knowledge.GUESSED
    assert end.input_tokens + end.output_tokens >= HANDLE.reserved_tokens
