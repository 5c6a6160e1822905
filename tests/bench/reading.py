"""What reading costs, in this process and without Envoy: streamed answers, and chat requests."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from extproc.core.usage import Usage
from extproc.providers.answers import answer_reader
from extproc.providers.aws_eventstream import EventStreamFramer
from extproc.providers.registry import read_request
from extproc.providers.requests import ReadLimits, RequestFacts
from extproc.providers.sse import SseParser
from extproc.providers.tokens import warm_up
from extproc.providers.wire_formats import Framer
from tests.bench import answers
from tests.bench.answers import CHUNKS, Stream
from tests.bench.traffic import MODEL, PATH

SYSTEM_BYTES, REQUEST_BYTES = 2200, 3072
_LEAST_ROUNDS = 3
_REQUESTS_A_ROUND = 50
_RULE = "Name order {n} by its number, and promise no date which the shipping did not confirm. "
_LINE = "My order {n} has not come yet, and the page says 'in transit' since the 9th of May. "


@dataclass(frozen=True, slots=True)
class StreamCost:
    """Of one stream of ``CHUNKS`` text chunks, the best of all rounds. ``reader`` is all that
    metering does with the bytes, ``framer`` only cutting and parsing them; None: not measured."""

    plain_bytes: int
    reader_seconds: float
    framer_seconds: float | None

    @property
    def reader_us_per_chunk(self) -> float:
        return self.reader_seconds / CHUNKS * 1e6

    @property
    def reader_mb_per_second(self) -> float:
        return self.plain_bytes / self.reader_seconds / 1e6

    @property
    def framer_mb_per_second(self) -> float | None:
        seconds = self.framer_seconds
        return None if seconds is None else self.plain_bytes / seconds / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingCost:
    """``cold``: a chat whose system prompt was never seen; ``warm``: with one seen before."""

    streams: Mapping[str, StreamCost]
    request_bytes: int
    cold_us: float
    warm_us: float


def streams() -> dict[str, Stream]:
    """By the name that the report gives them."""
    chat = answers.openai_chat()
    return {
        "openai": chat,
        "openai_hidden": answers.openai_chat(hides_usage=True),
        "openai_gzip": answers.gzipped(chat),
        "anthropic": answers.anthropic(),
        "gemini": answers.gemini(),
        "bedrock": answers.bedrock(),
    }


def read_answer(stream: Stream) -> tuple[Usage, int]:
    """All that metering does with an answer's bytes: the usage, and our own count beside it."""
    reader = answer_reader(
        stream.wire_format,
        content_type=stream.content_type,
        content_encoding=stream.content_encoding,
        hides_usage=stream.hides_usage,
        encoding="o200k_base",
    )
    for piece in stream.pieces:
        reader.feed(piece, end=False)
    reader.feed(b"", end=True)
    return reader.usage, reader.counted_output_tokens()


def frame_answer(stream: Stream) -> int:
    """Cut a plain stream into parsed events; gives their number."""
    framer: Framer
    if stream.content_type == "text/event-stream":
        framer = SseParser(keep_raw=stream.hides_usage)
    else:
        framer = EventStreamFramer(keep_raw=stream.hides_usage)
    events = sum(len(framer.feed(piece)) for piece in stream.plain)
    return events + len(framer.feed(b"", end=True))


def chat(number: int, *, system: int) -> bytes:
    """A chat of 3 KB whose text no other ``number`` has; ``system`` numbers its system prompt."""

    def text(line: str, n: int, size: int) -> str:
        line = line.format(n=n)
        return (line * (size // len(line) + 1))[:size]

    def body(question_bytes: int) -> bytes:
        messages = [
            {"role": "system", "content": text(_RULE, 10_000_000 + system, SYSTEM_BYTES)},
            {"role": "user", "content": text(_LINE, 20_000_000 + number, question_bytes)},
        ]
        return json.dumps({"model": MODEL, "messages": messages, "max_tokens": 256}).encode()

    return body(REQUEST_BYTES - len(body(0)))


def measure_reading(*, seconds: float) -> ReadingCost:
    """``seconds`` is for all together. Raises RuntimeError for a stream that was misread."""
    warm_up()
    works: dict[str, Callable[[], float]] = {}
    made = streams()
    for name, stream in made.items():
        usage, counted = read_answer(stream)
        if usage.output_tokens != stream.output_tokens or frame_answer(stream) < CHUNKS:
            raise RuntimeError(f"{name}: the reader says {usage}, and counted {counted}")
        works[f"{name}.reader"] = partial(_timed, partial(read_answer, stream))
        if stream.content_encoding is None:
            works[f"{name}.framer"] = partial(_timed, partial(frame_answer, stream))
    numbers = count()
    works["cold"] = partial(_timed_requests, numbers, is_cold=True)
    works["warm"] = partial(_timed_requests, numbers, is_cold=False)
    best = _best_of_each(works, seconds=seconds)
    return ReadingCost(
        streams={
            name: StreamCost(
                sum(map(len, stream.plain)), best[f"{name}.reader"], best.get(f"{name}.framer")
            )
            for name, stream in made.items()
        },
        request_bytes=len(chat(0, system=0)),
        cold_us=best["cold"] * 1e6,
        warm_us=best["warm"] * 1e6,
    )


def _best_of_each(works: Mapping[str, Callable[[], float]], *, seconds: float) -> dict[str, float]:
    """The fastest run of each: others on the machine only ever make one slower. In turns, so that
    a busy moment is no single one's."""
    best = dict.fromkeys(works, math.inf)
    until = time.perf_counter() + seconds
    rounds = 0
    while rounds < _LEAST_ROUNDS or time.perf_counter() < until:
        for name, work in works.items():
            best[name] = min(best[name], work())
        rounds += 1
    return best


def _timed(work: Callable[[], object]) -> float:
    """CPU seconds of one run in this thread."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


def _timed_requests(numbers: "count[int]", *, is_cold: bool) -> float:
    """CPU seconds a request, of some that differ."""
    new = [next(numbers) for _ in range(_REQUESTS_A_ROUND)]
    bodies = [chat(number, system=number if is_cold else 0) for number in new]
    return _timed(partial(_read_all, bodies)) / len(bodies)


def _read_all(bodies: Sequence[bytes]) -> None:
    limits = ReadLimits()
    for body in bodies:
        facts = read_request(
            PATH, body, content_type="application/json", content_encoding=None, limits=limits
        )
        assert isinstance(facts, RequestFacts)
