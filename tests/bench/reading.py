"""What reading costs, in this process and without Envoy: streamed answers, and chat requests."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    share = seconds / (2 * len(streams()) + 1)
    costs = {}
    for name, stream in streams().items():
        usage, _ = read_answer(stream)
        if usage.output_tokens != stream.output_tokens or not frame_answer(stream):
            raise RuntimeError(f"{name}: the reader says {usage}")
        frames = None
        if stream.content_encoding is None:
            frames = _best(lambda one=stream: frame_answer(one), seconds=share)  # type: ignore[misc]
        costs[name] = StreamCost(
            sum(map(len, stream.plain)),
            _best(lambda one=stream: read_answer(one), seconds=share),  # type: ignore[misc]
            frames,
        )
    numbers = count()
    return ReadingCost(
        streams=costs,
        request_bytes=len(chat(0, system=0)),
        cold_us=_request_us(numbers, is_cold=True, seconds=share),
        warm_us=_request_us(numbers, is_cold=False, seconds=share),
    )


def _best(work: Callable[[], object], *, seconds: float) -> float:
    """Seconds of the fastest run; others on the machine only ever make one slower."""
    best = float("inf")
    until = time.perf_counter() + seconds
    rounds = 0
    while rounds < _LEAST_ROUNDS or time.perf_counter() < until:
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
        rounds += 1
    return best


def _request_us(numbers: "count[int]", *, is_cold: bool, seconds: float) -> float:
    best = float("inf")
    until = time.perf_counter() + seconds
    rounds = 0
    while rounds < _LEAST_ROUNDS or time.perf_counter() < until:
        new = [next(numbers) for _ in range(_REQUESTS_A_ROUND)]
        bodies = [chat(number, system=number if is_cold else 0) for number in new]
        best = min(best, _each(bodies))
        rounds += 1
    return best * 1e6


def _each(bodies: list[bytes]) -> float:
    limits = ReadLimits()
    started = time.perf_counter()
    for body in bodies:
        facts = read_request(
            PATH, body, content_type="application/json", content_encoding=None, limits=limits
        )
        assert isinstance(facts, RequestFacts)
    return (time.perf_counter() - started) / len(bodies)
