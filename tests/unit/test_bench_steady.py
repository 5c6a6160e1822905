"""The benchmark's open-loop generator, and what is read and measured beside it."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import pytest

from extproc.providers.registry import read_request
from extproc.providers.requests import ReadLimits, RequestFacts
from tests.bench import reading
from tests.bench.answers import CHUNKS, INPUT_TOKENS
from tests.bench.large_prompt import KINDS, LARGE_BYTES, large_body
from tests.bench.steady import Answered, due_times, steady
from tests.bench.stream_provider import PAUSE_SECONDS, StreamProvider, events
from tests.bench.traffic import PATH, chat_body, raw_request

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def sent_to(
    answering: Answering, *, rate: float, total: float, started: float
) -> list[Answered]:
    """What the generator saw of a server whose requests are one line each."""
    tasks: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        with suppress(ConnectionError):
            await answering(reader, writer)
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    seen = await steady(port, b"x\n", rate=rate, on=9.0, off=0.0, total=total, started=started)
    server.close()
    await asyncio.gather(*(task for task in tasks if task is not None))
    return seen.requests


def test_requests_are_due_in_windows_only() -> None:
    due = list(due_times(100.0, rate=10, on=0.5, off=1.0, total=3.0))
    expected = [0.0, 0.1, 0.2, 0.3, 0.4, 1.5, 1.6, 1.7, 1.8, 1.9]
    assert [round(at - 100.0, 3) for at in due] == expected


async def test_a_server_that_stalls_does_not_slow_the_generator_down() -> None:
    """Every request that is due during a stall waits for its end, and is counted so."""
    stall, rate = 0.4, 50.0
    opens_at = time.monotonic() + stall

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            await asyncio.sleep(max(0.0, opens_at - time.monotonic()))
            writer.write(ANSWER)

    results = await sent_to(answer, rate=rate, total=stall, started=opens_at - stall)
    assert len(results) == stall * rate
    assert {each.status for each in results} == {200}
    for number, each in enumerate(results):
        assert each.due == pytest.approx(number / rate, abs=1e-6)
        assert each.due + each.latency >= stall - 1e-6
        assert each.first == each.latency >= each.late >= 0


async def test_a_lost_connection_is_no_answer() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    results = await sent_to(hang_up, rate=50.0, total=0.1, started=time.monotonic())
    assert [each.status for each in results] == [0] * 5


@pytest.mark.parametrize("name", reading.streams())
def test_a_measured_stream_is_a_whole_answer(name: str) -> None:
    stream = reading.streams()[name]
    usage, _ = reading.read_answer(stream)
    assert (usage.input_tokens, usage.output_tokens) == (INPUT_TOKENS, CHUNKS)
    assert len(stream.plain) >= CHUNKS
    assert reading.frame_answer(stream) >= CHUNKS


def test_a_measured_chat_has_the_size_it_says_and_a_text_of_its_own() -> None:
    bodies = [reading.chat(number, system=system) for number in (1, 2) for system in (1, 2)]
    assert {len(body) for body in bodies} == {reading.REQUEST_BYTES}
    prompts = [json.loads(body)["messages"][0]["content"] for body in bodies]
    questions = [json.loads(body)["messages"][1]["content"] for body in bodies]
    assert prompts[0] == prompts[2] != prompts[1]
    assert questions[0] == questions[1] != questions[2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_prompt_is_a_readable_megabyte(kind: str) -> None:
    body = large_body(kind)
    assert len(body) == pytest.approx(LARGE_BYTES, rel=0.1)
    facts = read_request(PATH, body, content_type=None, content_encoding=None, limits=ReadLimits())
    assert isinstance(facts, RequestFacts)
    assert facts.input_tokens > 100_000


async def test_a_stream_tells_when_its_first_event_came_and_how_long_each_was_on_its_way() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(StreamProvider, events()), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    request = raw_request("svc", chat_body(stream=True))
    started = time.monotonic()
    seen = await steady(
        port, request, rate=50.0, on=9.0, off=0.0, total=0.05, started=started, connections=1
    )
    server.close()
    assert [each.status for each in seen.requests] == [200] * 3
    for each in seen.requests:
        # The first event comes at once, the last one when all pauses are over.
        assert each.first < CHUNKS * PAUSE_SECONDS <= each.latency
    assert len(seen.transits) == 3 * (CHUNKS + 1)
    assert min(seen.transits) > 0
