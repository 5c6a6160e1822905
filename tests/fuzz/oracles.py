"""What must hold of every request, answer and text, however hostile. A Finding says what did not.

Each look also bounds the time of the processor: cases are small, so a long one is not linear.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from functools import cache

from extproc.core.errors import RequestError
from extproc.core.handles import Handle
from extproc.core.limits import MAX_COUNT
from extproc.core.outcomes import AnswerFacts, settle_answer, settle_interrupted
from extproc.core.reservations import Settlement
from extproc.core.usage import Usage
from extproc.providers.answers import AnswerReader, answer_reader
from extproc.providers.content_coding import decode_body
from extproc.providers.errors_shape import error_body
from extproc.providers.registry import read_request
from extproc.providers.requests import ReadLimits, RequestFacts, Unmetered
from extproc.providers.tally import TextTally
from extproc.providers.tokens import ENCODING_NAMES, TiktokenCounter, count_tokens
from extproc.providers.vocabularies import EncodingName
from tests.fuzz.cases import AnswerCase, RequestCase
from tests.fuzz.request_seeds import RequestSeed

_MOST_SECONDS = 2.0
_MOST_PIECES = 600
_MOST_OUTPUT = 2**31 - 1
_HANDLE = Handle(
    reservation_id="r" * 8,
    root="s",
    wire_format="openai_chat",
    model="m",
    input_tokens=7,
    reserved_tokens=20,
    encoding="o200k_base",
    hides_usage=False,
)


class Finding(AssertionError):  # noqa: N818 - a fuzzer's word for it
    """A promise of a reader that a case broke."""


def need(holds: object, what: str) -> None:
    if not holds:
        raise Finding(what)


@contextmanager
def bounded_time() -> Iterator[None]:
    started = time.process_time()
    yield
    taken = time.process_time() - started
    need(taken < _MOST_SECONDS, f"took {taken:.1f} s of the processor")


def check_request(case: RequestCase) -> RequestFacts | Unmetered | RequestError:
    """Facts that make sense, or a RequestError; and the same again. What came of it."""
    with bounded_time():
        found = _read(case.seed, case.strict_cap_tokens)
    need(_same(found, _read(case.seed, case.strict_cap_tokens)), "read twice, it differs")
    if isinstance(found, RequestError):
        _check_error(case.seed.path, found)
    elif isinstance(found, RequestFacts):
        _check_facts(found)
        _check_cap(case, found)
        if found.new_body is not None:
            _check_new_body(case, found)
    return found


def _read(seed: RequestSeed, strict_cap: int | None) -> RequestFacts | Unmetered | RequestError:
    try:
        return read_request(
            seed.path,
            seed.body,
            content_type=seed.content_type,
            content_encoding=seed.content_encoding,
            limits=ReadLimits(strict_cap_tokens=strict_cap),
            host=seed.host,
        )
    except RequestError as error:
        return error


def _same(one: object, other: object) -> bool:
    if isinstance(one, RequestError):
        return isinstance(other, RequestError) and vars(one) == vars(other)
    return one == other


def _check_error(path: str, error: RequestError) -> None:
    need(error.status in (400, 413, 415), f"status {error.status}")
    body = error_body(
        path, status=error.status, code=error.code, message=error.message, param=error.param
    )
    json.loads(body)
    need(len(body) < 4096, "an error of more than 4 KB")
    f"{error.code} {error.message} {error.param}".encode()


def _check_facts(facts: RequestFacts) -> None:
    numbers = {"input": facts.input_tokens, "media": facts.media_tokens, **facts.parts}
    for name, number in numbers.items():
        need(type(number) is int and 0 <= number < 2**51, f"{name} is {number!r}")
    need(facts.media_tokens <= facts.input_tokens, "more media than input")
    need(type(facts.choices) is int and facts.choices >= 1, f"choices are {facts.choices!r}")
    cap = facts.output_cap_tokens
    bound = _MOST_OUTPUT * facts.choices
    need(cap is None or (type(cap) is int and 0 <= cap <= bound), f"the cap is {cap!r}")
    need(facts.encoding in ENCODING_NAMES, f"encoding {facts.encoding!r}")
    need(type(facts.stream) is bool, f"stream is {facts.stream!r}")
    need(100 <= facts.factor_percent <= 200, f"factor {facts.factor_percent!r}")
    need(0 < len(facts.model) <= 256, f"model {facts.model!r}")
    facts.model.encode()


def _check_cap(case: RequestCase, facts: RequestFacts) -> None:
    if case.strict_cap_tokens is not None and facts.cap_path:
        need(facts.output_cap_tokens is not None, "no cap in strict mode")


def _check_new_body(case: RequestCase, facts: RequestFacts) -> None:
    """Read as the client's, it is the same request, and nothing is left to be changed."""
    assert facts.new_body is not None
    again = _read(case.seed._replace(body=facts.new_body), case.strict_cap_tokens)
    expected = replace(facts, new_body=None, hides_usage=False)
    need(again == expected, f"the new body is another request: {again}, not {expected}")
    plain = decode_body(facts.new_body, case.seed.content_encoding, max_bytes=2**26)
    options = json.loads(plain).get("stream_options")
    if facts.hides_usage:
        need(options["include_usage"] is True, "usage was not asked for")


def check_answer(case: AnswerCase) -> Usage:
    """The same result for every cut, numbers in their bounds, no negative charge."""
    with bounded_time():
        out, facts = _read_answer(case, case.chunks)
    body = case.body
    need(case.hides_usage or out == body, "bytes of an answer were changed")
    step = 1 + len(body) // _MOST_PIECES
    bytewise = [body[at : at + step] for at in range(0, len(body), step)]
    for chunks in ([body], [*bytewise, b""]):
        other_out, others = _read_answer(case, chunks)
        need(other_out == out, "another cut gives other bytes")
        if not (_is_coded(case) and facts.unread):  # spoilt: how much of it is read may differ
            need(others == facts, f"another cut gives {others}, not {facts}")
    _check_usage(facts.usage)
    need(0 <= facts.counted_output_tokens <= MAX_COUNT, f"counted {facts.counted_output_tokens}")
    for ended in (True, False):
        _check_settlement(settle_answer(_HANDLE, replace(facts, ended=ended)))
    _check_settlement(settle_interrupted(_HANDLE, facts))
    return facts.usage


def _is_coded(case: AnswerCase) -> bool:
    has_magic = case.body.startswith((b"\x1f\x8b", b"\x28\xb5", b"\x50\x2a"))
    return case.content_encoding is not None or has_magic


def _read_answer(case: AnswerCase, chunks: list[bytes]) -> tuple[bytes, AnswerFacts]:
    reader = answer_reader(
        case.wire_format,
        content_type=case.content_type,
        content_encoding=case.content_encoding,
        hides_usage=case.hides_usage,
        encoding="o200k_base",
    )
    out = []
    for at, chunk in enumerate(chunks):
        replaced = reader.feed(chunk, end=at == len(chunks) - 1)
        out.append(chunk if replaced is None else replaced)
    facts = _facts(reader)
    need(facts == _facts(reader), "asked twice, it differs")
    for name in (reader.response_id, reader.response_model):
        need(name is None or (type(name) is str and 0 < len(name) <= 128), f"name {name!r}")
    return b"".join(out), facts


def _facts(reader: AnswerReader) -> AnswerFacts:
    facts = AnswerFacts(
        usage=reader.usage,
        counted_output_tokens=reader.counted_output_tokens(),
        saw_output=reader.saw_output,
        ended=True,
        finished=reader.complete,
        error=reader.error,
        unread=reader.unread,
    )
    for field in fields(facts):
        if field.type is bool:
            value = getattr(facts, field.name)
            need(type(value) is bool, f"{field.name} is {value!r}")
    return facts


def _check_usage(usage: Usage) -> None:
    for name, number in asdict(usage).items():
        is_count = type(number) is int and 0 <= number <= MAX_COUNT
        need(number is None or is_count, f"{name} is {number!r}")
    if usage.input_tokens is not None:
        need((usage.cached_input_tokens or 0) <= usage.input_tokens, f"more from a cache: {usage}")
    if usage.output_tokens is not None:
        need((usage.reasoning_tokens or 0) <= usage.output_tokens, f"more thoughts: {usage}")


def _check_settlement(settlement: Settlement) -> None:
    for number in (settlement.input_tokens, settlement.output_tokens):
        need(type(number) is int and 0 <= number <= MAX_COUNT, f"a charge of {number!r}")


def warm_up() -> None:
    """Load all tables before the first case, so that none takes the time of it."""
    for name in ENCODING_NAMES:
        count_tokens("x", name)
        _reference(name)


@cache
def _reference(name: EncodingName) -> Callable[[str], int]:
    return TiktokenCounter(name)


def check_text(pieces: list[str]) -> int:
    """Both counters agree, and a tally of the pieces counts the text that they make."""
    text = "".join(pieces)
    counted = 0
    for name in ENCODING_NAMES:
        with bounded_time():
            counted = count_tokens(text, name)
        need(0 <= counted <= len(text.encode("utf-8", "replace")) * 3, f"{counted} tokens")
        reference = _reference(name)(text)
        need(counted == reference, f"{name}: {counted}, by the reference {reference}")
        tally = TextTally(name)
        for at, piece in enumerate(pieces):
            tally.add(at % 3 == 5, piece)
            if at % 4 == 3:
                tally.count()
        need(tally.count() == counted, f"{name}: a tally of {tally.count()}, not {counted}")
    return counted
