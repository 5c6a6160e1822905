"""Chunks that are passed on before they are read tell the same as chunks that are read at once."""

import json
import random
from collections.abc import Iterator

import pytest

from extproc.providers.answers import AnswerReader, answer_reader
from extproc.providers.held_chunks import HeldChunks

_TEXTS = ("Hello", " wörld", "\n", ' "usage" ', ' {"usage":null} ', "", " 你好", "\\u0000")


def _event(value: object, *, space: str, line_end: str) -> bytes:
    text = json.dumps(value, separators=(",", ":" + space), ensure_ascii=False)
    return f"data: {text}{line_end}{line_end}".encode()


def _stream(random_: random.Random) -> bytes:
    """Of OpenAI's kind, with what others make of it."""
    space, line_end = random_.choice(("", " ")), random_.choice(("\n", "\r\n"))
    parts = []
    for _ in range(random_.randrange(1, 60)):
        value: dict[str, object] = {
            "id": "c-1",
            "choices": [{"index": 0, "delta": {"content": random_.choice(_TEXTS)}}],
        }
        if random_.random() < 0.7:
            value["usage"] = None
        if random_.random() < 0.05:
            value["usage"] = {"prompt_tokens": 3, "completion_tokens": 2}
        parts.append(_event(value, space=space, line_end=line_end))
        if random_.random() < 0.1:
            parts.append(b": still here" + line_end.encode() * 2)
    if random_.random() < 0.8:
        last = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9}}
        parts.append(_event(last, space=space, line_end=line_end))
    if random_.random() < 0.1:
        parts.append(_event({"error": {"message": "no"}}, space=space, line_end=line_end))
    if random_.random() < 0.8:
        parts.append(b"data: [DONE]" + line_end.encode() * 2)
    return b"".join(parts)


def _cut(data: bytes, random_: random.Random) -> Iterator[bytes]:
    """Behind events, or anywhere."""
    anywhere = random_.random() < 0.3
    while data:
        at = random_.randrange(1, 400)
        if not anywhere:
            found = data.find(b"\n\n", random_.randrange(0, 400))
            at = len(data) if found < 0 else found + 2
        yield data[:at]
        data = data[at:]


def _reader(*, hides: bool) -> AnswerReader:
    return answer_reader(
        "openai.chat",
        content_type="text/event-stream",
        content_encoding=None,
        hides_usage=hides,
        encoding="o200k_base",
    )


def _facts(reader: AnswerReader) -> tuple[object, ...]:
    return (
        reader.usage,
        reader.error,
        reader.error_value,
        reader.complete,
        reader.saw_output,
        reader.unread,
        reader.counted_output_tokens(),
    )


def _read_at_once(reader: AnswerReader, chunk: bytes, *, end: bool) -> bytes | None:
    """By the way that holds nothing."""
    steps = reader.steps(chunk, end=end)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            replacement: bytes | None = done.value
            return replacement


@pytest.mark.parametrize("hides", [False, True], ids=["plain", "hides"])
@pytest.mark.parametrize("seed", range(60))
def test_what_is_told_and_passed_on_is_the_same(seed: int, *, hides: bool) -> None:
    random_ = random.Random(seed)
    chunks = list(_cut(_stream(random_), random_))
    is_whole = random_.random() < 0.7
    held, at_once = _reader(hides=hides), _reader(hides=hides)
    passed: list[bytes] = []
    expected: list[bytes] = []
    for number, chunk in enumerate(chunks):
        end = is_whole and number == len(chunks) - 1
        out = held.feed(chunk, end=end)
        passed.append(chunk if out is None else out)
        out = _read_at_once(at_once, chunk, end=end)
        expected.append(chunk if out is None else out)
        if random_.random() < 0.05:
            assert _facts(held) == _facts(at_once)
    assert passed == expected
    assert _facts(held) == _facts(at_once)


def _charge(reader: AnswerReader) -> tuple[object, ...]:
    """What a settlement is made of (MeteredAnswer)."""
    is_told = reader.usage.is_known and reader.complete and not reader.error
    counted = 0 if is_told else reader.counted_output_tokens()
    saw_output = reader.saw_output
    return reader.usage, reader.error, reader.error_value, reader.unread, saw_output, counted


@pytest.mark.parametrize("seed", range(120))
def test_the_charge_is_the_same_when_text_that_nobody_needs_is_not_read(seed: int) -> None:
    random_ = random.Random(1000 + seed)
    chunks = list(_cut(_stream(random_), random_))
    held, at_once = _reader(hides=False), _reader(hides=False)
    is_whole = random_.random() < 0.8
    for number, chunk in enumerate(chunks):
        end = is_whole and number == len(chunks) - 1
        assert held.feed(chunk, end=end) is None
        _read_at_once(at_once, chunk, end=end)
    held.skip_told_text()
    assert _charge(held) == _charge(at_once)


def _told_stream(texts: int) -> list[bytes]:
    delta = {"choices": [{"index": 0, "delta": {"content": "x" * 100}}], "usage": None}
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9}}
    events = [delta] * texts + [usage]
    return [
        *(_event(event, space="", line_end="\n") for event in events),
        b"data: [DONE]\n\n",
    ]


@pytest.mark.parametrize("texts", [1, 20, 200, 2000])
def test_the_text_of_an_answer_whose_end_tells_all_is_not_counted(texts: int) -> None:
    reader = _reader(hides=False)
    chunks = _told_stream(texts)
    most = 0
    for number, chunk in enumerate(chunks):
        reader.feed(chunk, end=number == len(chunks) - 1)
        most = max(most, reader.left_to_read)
    reader.skip_told_text()
    assert reader.left_to_read < 16 * 1024 or texts > 200
    assert reader.saw_output
    assert reader.complete
    assert (reader.usage.input_tokens, reader.usage.output_tokens) == (7, 9)
    # The provider's own number, and nothing of ours.
    assert reader.counted_output_tokens() == 9
    # What is read meanwhile is counted by the tally as it comes; the rest is held, and bounded.
    assert most < 128 * 1024


def test_without_its_end_the_text_is_read_and_counted() -> None:
    reader = _reader(hides=False)
    chunks = _told_stream(20)
    for chunk in chunks[:-2]:
        reader.feed(chunk, end=False)
    reader.skip_told_text()
    assert not reader.usage.is_known
    assert reader.counted_output_tokens() > 20


def test_no_more_is_held_than_is_read_in_a_millisecond() -> None:
    held = HeldChunks(None)
    event = _event({"choices": [{"index": 0, "delta": {"content": "x"}}]}, space="", line_end="\n")
    most = 0
    for _ in range(1000):
        if held.add(event):
            assert held.take().count(b"data:") <= 64
        most = max(most, held.size)
    assert most < 9 * 1024


def test_tiny_events_are_counted_by_their_lines() -> None:
    held = HeldChunks(None)
    added = 0
    while not held.add(b"data:{}\n"):
        added += 1
    assert added < 100
