"""Server-sent events: framing whatever the cuts, caps, and raw bytes that add up."""

import math
import random

import pytest

from extproc.providers.sse import SseEvent, SseParser
from tests.unit.provider_cases import random_cuts


def parse(chunks: list[bytes], *, max_event_bytes: int = 1 << 20) -> tuple[list[SseEvent], bool]:
    parser = SseParser(keep_raw=True, max_event_bytes=max_event_bytes)
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    events += parser.feed(b"", end=True)
    assert b"".join(event.raw for event in events) == b"".join(chunks)
    return events, parser.truncated


def values(body: bytes) -> list[object]:
    found: list[list[object]] = []
    for chunks in ([body], [bytes([byte]) for byte in body]):
        events, _ = parse(chunks)
        found.append(["done" if e.done else e.value for e in events if e.done or e.value])
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_every_line_end_of_the_standard(newline: str) -> None:
    lines = [
        ": hi",
        "",
        "event: e",
        'data: {"a":1}',
        "",
        'data:{"a":',
        "data: 2}",
        "",
        "data: [DONE]",
    ]
    assert values(newline.join(lines).encode()) == [{"a": 1}, {"a": 2}, "done"]


def test_a_line_end_cut_between_cr_and_lf_is_one_line_end() -> None:
    events, _ = parse([b'data: {"a":\r', b"\ndata: 1}\r", b"\n\r", b'\ndata: {"b":2}\r', b"\n"])
    assert [e.value for e in events if e.value] == [{"a": 1}, {"b": 2}]


def test_events_separated_by_a_single_newline() -> None:
    assert values(b'data: {"a":1}\ndata: {"b":2}\ndata: [DONE]\n') == [{"a": 1}, {"b": 2}, "done"]


def test_a_complete_looking_first_line_of_a_longer_event_is_not_an_event() -> None:
    assert values(b'data: {"a":{}\ndata: }\n\n') == [{"a": {}}]


def test_a_whole_line_inside_a_longer_event_is_not_an_event() -> None:
    assert values(b'data: {"list":[\ndata: {"a":1}\ndata: ]}\n\n') == [{"list": [{"a": 1}]}]


def test_the_last_event_counts_without_its_empty_line_and_without_any_newline() -> None:
    assert values(b'data: {"a":\ndata: 1}') == [{"a": 1}]
    assert values(b'data: {"a":1}') == [{"a": 1}]


def test_fields_that_only_begin_with_data_are_other_fields() -> None:
    assert values(b'database: {"a":1}\n\ndata\ndata: {"b":2}\n\n') == [{"b": 2}]


def test_unreadable_data_is_skipped_and_the_next_event_read() -> None:
    body = b'data: {"x":"\xff\xfe"}\n\ndata: nope\n\ndata: {"a":\n\ndata: {"b":2}\n\n'
    assert values(body) == [{"x": "\ufffd\ufffd"}, {"b": 2}]


def test_numbers_too_long_for_python_do_not_cost_the_event() -> None:
    assert values(b'data: {"a":%s,"b":2}\n\n' % (b"9" * 5000)) == [{"a": math.inf, "b": 2}]


def test_deep_nesting_does_not_escape() -> None:
    assert values(b'data: {"a":' + b"[" * 50_000 + b"]" * 50_000 + b'}\n\ndata: {"b":1}\n\n') == [
        {"b": 1}
    ]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_the_cap_gives_the_same_for_every_cut(newline: bytes) -> None:
    lines = []
    for size in range(20, 45):
        lines += [b'data: {"n":%d,"p":"' % size + b"y" * size + b'"}', b""]
        lines += [b": " + b"c" * size, b"data: {", b"data: " + b" " * size + b"}", b"", b""]
    body = newline.join(lines)
    rng = random.Random(3)
    seen = set()
    for _ in range(300):
        events, truncated = parse(random_cuts(body, rng, at_most=200), max_event_bytes=60)
        assert truncated
        seen.add(tuple(str(event.value) for event in events if event.value is not None))
    assert len(seen) == 1
    (found,) = seen
    assert 0 < len(found) < 50


def test_what_is_held_never_exceeds_the_cap() -> None:
    parser = SseParser(max_event_bytes=1000)
    for piece in [b"data: {", *[b"y" * 100] * 1000, b"\r", b"\n", *[b"z\r\n"] * 1000]:
        parser.feed(piece)
        assert len(parser._buffer) <= 1000
    assert parser.truncated
    assert [e.value for e in parser.feed(b'\ndata: {"a":1}\n') if e.value] == [{"a": 1}]


def test_of_lines_that_are_no_event_together_the_last_object_counts() -> None:
    assert values(b'data: x\ndata: {"a":1}\ndata: {"b":2}\ndata: {y}\n\n') == [{"b": 2}]


def test_only_the_last_lines_are_tried() -> None:
    found = values(b'data: x\ndata: {"a":1}\n' + b"data: {y}\n" * 255 + b"\n")
    assert found == [{"a": 1}]
    assert values(b'data: x\ndata: {"a":1}\n' + b"data: {y}\n" * 256 + b"\n") == []


LINES = (
    *(b'data: {"a":1}', b'data:{"b":[{}]}', b'data: {"c":2} ', b'data: {"d":', b"data: 3}"),
    *(b"event: name", b"event:name", b"event:" + b"n" * 90, b"event", b"data", b"data: [DONE]"),
    *(b": hi", b"id: 7", b'data: {"x":"\xff"}', b'data: {"\xc3\xbc":4}\xef\xbb\xbf'),
    *(b"", b"", b""),
)


@pytest.mark.parametrize("keep_raw", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_what_is_read_at_once_is_what_is_read_byte_by_byte(seed: int, *, keep_raw: bool) -> None:
    """Usual events have a short way; names, ends and raw bytes are those of the long one."""
    choose = random.Random(seed)
    for _ in range(40):
        end = choose.choice([b"\n", b"\r\n", b"\r"])
        some = [choose.choice(LINES) + choose.choice([end, end, b"\n"]) for _ in range(9)]
        body = b"".join([b"event: first", end, b'data: {"e":5}', end, end, *some])
        found = []
        for chunks in ([body], [bytes([byte]) for byte in body]):
            parser = SseParser(keep_raw=keep_raw)
            events = [event for chunk in chunks for event in parser.feed(chunk)]
            found.append(events + parser.feed(b"", end=True))
        assert found[0] == found[1]
        assert found[0][0].name == "first"
