"""One object a line: cuts, missing newlines, giants, objects over several lines, memory, time."""

import json
import random
import time

import pytest

from extproc.providers.ndjson import NDJSON, NdjsonParser
from tests.unit.provider_cases import random_cuts


def values(chunks: list[bytes], *, limit: int = 1000) -> list[object]:
    parser = NdjsonParser(max_line_bytes=limit)
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    events += parser.feed(b"", end=True)
    return [event.value for event in events if event.value is not None]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"a":1}\n{"a":2}\n', [{"a": 1}, {"a": 2}]),
        (b'{"a":1}\r\n\r\n\n {"a":2} \n', [{"a": 1}, {"a": 2}]),
        (b'{"a":1}\n{"a":2}', [{"a": 1}, {"a": 2}]),
        (b'{"a":1}', [{"a": 1}]),
        (b'{\n  "a": {\n    "b": 1\n  }\n}\n', [{"a": {"b": 1}}]),
        (b'{"a":1}\nnot json\n[1]\n"x"\n{"a":2}\n', [{"a": 1}, {"a": 2}]),
        (b'{"a":1}\n{"a":', [{"a": 1}]),
        (b'{"a":"\xff\xc3"}\n', [{"a": "\ufffd\ufffd"}]),
        ('{"a":"\u2028\u0085"}\n'.encode(), [{"a": "\u2028\u0085"}]),
        (b'{"a":' + b"[" * 400 + b"]" * 400 + b"}\n", None),
        (b"\n\n", []),
        (b"", []),
    ],
)
def test_lines_are_objects_however_they_are_cut(body: bytes, expected: list[object] | None) -> None:
    whole = values([body])
    assert expected is None or whole == expected
    assert values([body[i : i + 1] for i in range(len(body))]) == whole
    rng = random.Random(3)
    for _ in range(50):
        assert values(random_cuts(body, rng)) == whole


def test_raw_bytes_are_all_bytes_in_order() -> None:
    body = b'\n{"a":1}\n' + b"x" * 50 + b'\n{"b":"' + b"y" * 90 + b'"}\n{"c":3}\n{"d"'
    rng = random.Random(4)
    for chunks in ([body], *(random_cuts(body, rng) for _ in range(100))):
        parser = NdjsonParser(keep_raw=True, max_line_bytes=60)
        out = b""
        for chunk in chunks:
            out += b"".join(event.raw for event in parser.feed(chunk))
            assert out + parser.unfinished() == body[: len(out) + len(parser.unfinished())]
        out += b"".join(event.raw for event in parser.feed(b"", end=True))
        assert out == body
        assert parser.truncated


def test_the_limit_is_the_same_for_every_cut() -> None:
    for size, is_cut in ((100, False), (101, True)):
        for end in (b"\n", b""):
            line = b'{"a":"' + b"x" * (size - 8) + b'"}' + end
            for chunks in ([line], [line[:-1], line[-1:]], [line, b""]):
                parser = NdjsonParser(max_line_bytes=100)
                found = [event for chunk in chunks for event in parser.feed(chunk)]
                found += parser.feed(b"", end=True)
                assert parser.truncated is is_cut
                assert any(event.value for event in found) is not is_cut


def test_a_giant_line_passes_unread_and_the_next_is_read() -> None:
    parser = NdjsonParser(max_line_bytes=100_000)
    started = time.process_time()
    parser.feed(b'{"a":"')
    for _ in range(1600):  # 100 MiB
        assert not [event for event in parser.feed(b"y" * 65_536) if event.value]
        assert len(parser.unfinished()) <= 100_000 + 65_536
    assert time.process_time() - started < 3
    assert parser.truncated
    (event,) = [event for event in parser.feed(b'"}\n{"b":1}\n') if event.value]
    assert event.value == {"b": 1}


def test_lines_that_are_no_objects_are_kept_up_to_the_limit_only() -> None:
    parser = NdjsonParser(max_line_bytes=1000)
    for _ in range(1000):
        parser.feed(b'{"a":\n' * 10)
        assert len(parser.cut_document()) <= 1100
    assert parser.truncated
    assert parser.cut_document() == b""


def test_a_document_that_was_cut_is_there_until_an_object_was_complete() -> None:
    parser = NdjsonParser()
    parser.feed(b'{"a":1,')
    assert parser.cut_document() == b'{"a":1,'
    parser.feed(b'\n"b"')
    parser.feed(b"", end=True)
    assert parser.cut_document() == b'{"a":1,\n"b"'
    parser = NdjsonParser()
    parser.feed(b'{"a":1}\n{"b"')
    assert parser.cut_document() == b""


def test_many_lines_in_one_chunk_take_linear_time() -> None:
    line = json.dumps({"message": {"content": "x"}, "done": False}).encode() + b"\n"

    def seconds(count: int) -> float:
        """The best of three, because garbage of other tests may be collected meanwhile."""
        body, times = line * count, []
        for _ in range(3):
            started = time.process_time()
            assert len(NdjsonParser().feed(body)) == count
            times.append(time.process_time() - started)
        return min(times)

    assert seconds(40_000) < 4 * seconds(20_000) + 0.05


def test_only_an_object_begins_it() -> None:
    assert NDJSON.begins(b"{", "text/plain")
    for start in (b"[", b"data: {", b"<html>"):
        assert NDJSON.begins(start, "application/x-ndjson") is False
