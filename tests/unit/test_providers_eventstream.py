"""AWS's binary event stream: every cut, every flipped byte, every length that lies."""

import json
import time
import zlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.providers.aws_eventstream import (
    CONTENT_TYPE,
    EventStreamFramer,
    begins_event_stream,
)
from extproc.providers.sse import SseEvent
from tests.unit.event_streams import event, message

RELAXED = settings(max_examples=200, deadline=None, derandomize=True)
VALUES = st.dictionaries(
    st.text(max_size=5), st.integers() | st.text(max_size=20) | st.none(), max_size=4
)
EVENTS = st.lists(st.tuples(st.sampled_from(["metadata", "chunk", "x" * 200]), VALUES), max_size=6)
MARKS = st.lists(st.integers(min_value=0), max_size=20)
A, B = event("first", {"a": 1}), event("second", {"b": "h\u00e9"})


def cut(body: bytes, marks: list[int]) -> list[bytes]:
    edges = sorted({0, len(body), *(mark % (len(body) + 1) for mark in marks)})
    return [body[a:b] for a, b in pairwise(edges)] or [b""]


def read(
    chunks: list[bytes], *, keep_raw: bool = False, ends: bool = True, at_most: int = 1 << 22
) -> tuple[list[SseEvent], EventStreamFramer]:
    framer = EventStreamFramer(keep_raw=keep_raw, max_event_bytes=at_most)
    events: list[SseEvent] = []
    for index, piece in enumerate(chunks):
        events += framer.feed(piece, end=ends and index == len(chunks) - 1)
    return events, framer


def named(events: list[SseEvent]) -> list[tuple[str, Any]]:
    return [(found.name, found.value) for found in events if found.value is not None]


@RELAXED
@given(EVENTS, MARKS, st.booleans())
def test_what_was_written_is_read_however_it_is_cut(
    events: list[tuple[str, Any]], marks: list[int], keep_raw: bool
) -> None:
    body = b"".join(event(name, value) for name, value in events)
    for chunks in (cut(body, marks), [body[i : i + 1] for i in range(len(body))] or [b""]):
        found, framer = read(chunks, keep_raw=keep_raw)
        assert named(found) == events
        assert not framer.truncated
        assert b"".join(one.raw for one in found) == (body if keep_raw else b"")


@RELAXED
@given(EVENTS.filter(bool), MARKS, st.integers(min_value=0), st.integers(1, 255))
def test_a_flipped_byte_is_noticed_and_nothing_false_is_read(
    events: list[tuple[str, Any]], marks: list[int], at: int, flip: int
) -> None:
    body = bytearray(b"".join(event(name, value) for name, value in events))
    body[at % len(body)] ^= flip
    found, framer = read(cut(bytes(body), marks), keep_raw=True)
    assert framer.truncated
    assert b"".join(one.raw for one in found) == body
    remaining = iter(events)
    assert all(one in remaining for one in named(found)), "not what was sent, in its order"


@RELAXED
@given(st.binary(max_size=300), MARKS)
def test_any_bytes_never_raise_and_all_pass(noise: bytes, marks: list[int]) -> None:
    for body in (noise, A + noise, A[:8] + zlib.crc32(A[:8]).to_bytes(4) + noise + B):
        whole, framer = read([body], keep_raw=True)
        pieces, framer_of_pieces = read(cut(body, marks), keep_raw=True)
        assert named(whole) == named(pieces)
        assert framer.truncated == framer_of_pieces.truncated
        assert b"".join(one.raw for one in pieces) == body


def test_a_message_with_a_wrong_crc_is_left_out_and_the_next_is_read() -> None:
    broken = A[:-1] + bytes([A[-1] ^ 1])
    found, framer = read([B, broken, B])
    assert [name for name, _ in named(found)] == ["second", "second"]
    assert framer.truncated


def test_behind_a_wrong_prelude_nothing_is_read_and_nothing_is_kept() -> None:
    broken = bytes([A[0], A[1], A[2], A[3] + 1]) + A[4:]
    found, framer = read([B, broken, B, b"x" * 100_000], ends=False)
    assert [name for name, _ in named(found)] == ["second"]
    assert framer.truncated
    assert framer.unfinished() == b""


@pytest.mark.parametrize(
    ("total", "headers"), [(0, 0), (15, 0), (16, 1), (100, 85), (40, 2**32 - 1)]
)
def test_lengths_that_cannot_be_are_a_wrong_prelude(total: int, headers: int) -> None:
    prelude = total.to_bytes(4) + headers.to_bytes(4)
    body = prelude + zlib.crc32(prelude).to_bytes(4) + b"x" * 200 + B
    found, framer = read([body])
    assert named(found) == []
    assert framer.truncated


def test_a_message_that_is_too_large_is_passed_over_in_bounded_memory() -> None:
    large = event("large", {"a": "x" * 50_000})
    framer = EventStreamFramer(max_event_bytes=10_000)
    found: list[SseEvent] = []
    body = A + large + B
    for at in range(0, len(body), 1000):
        found += framer.feed(body[at : at + 1000])
        assert len(framer.unfinished()) <= 10_000
    assert [name for name, _ in named(found)] == ["first", "second"]
    assert framer.truncated


def test_many_small_pieces_of_a_large_message_cost_linear_time() -> None:
    body = event("large", {"a": "x" * 4_000_000})
    started = time.process_time()
    found, _ = read([body[at : at + 100] for at in range(0, len(body), 100)])
    assert time.process_time() - started < 2
    assert [name for name, _ in named(found)] == ["large"]


def test_many_messages_in_one_piece_cost_linear_time() -> None:
    started = time.process_time()
    found, _ = read([A * 20_000])
    assert time.process_time() - started < 2
    assert len(found) == 20_000


def test_a_cut_message_is_not_read_and_nothing_else_is_lost() -> None:
    for kept in (3, 11, 12, len(B) - 1):
        found, framer = read([A + B[:kept]], keep_raw=True)
        assert [name for name, _ in named(found)] == ["first"]
        assert not framer.truncated
        assert b"".join(one.raw for one in found) == A + B[:kept]


@pytest.mark.parametrize(
    "header",
    [
        b"\x01t\x00",
        b"\x01f\x01",
        b"\x01b\x02\x07",
        b"\x01s\x03\x00\x07",
        b"\x01i\x04\x00\x00\x00\x07",
        b"\x01l\x05" + b"\x00" * 8,
        b"\x01d\x06\x00\x03abc",
        b"\x01w\x08" + b"\x00" * 8,
        b"\x01u\x09" + b"\x00" * 16,
    ],
)
def test_headers_of_other_types_are_stepped_over(header: bytes) -> None:
    body = message(b"{}", {":event-type": "e", ":message-type": "event"}, header * 2)
    found, _ = read([body])
    assert named(found) == [("e", {})]


@pytest.mark.parametrize("header", [b"\x05ab", b"\x01a\x63zz", b"\x01a\x07\xff\xffzz", b"\x01a"])
def test_malformed_headers_end_the_headers_only(header: bytes) -> None:
    body = message(b'{"a":1}', {}, header)
    found, _ = read([body, B])
    assert named(found) == [("", {"a": 1}), ("second", {"b": "h\u00e9"})]


def test_exceptions_and_errors_are_errors_by_name() -> None:
    thrown = event("throttlingException", {"message": "slow down"}, kind="exception")
    error = message(
        b"", {":message-type": "error", ":error-code": "500", ":error-message": "broken"}
    )
    found, framer = read([thrown + error])
    assert named(found) == [
        ("error", {"__type": "throttlingException", "message": "slow down"}),
        ("error", {"__type": "500"}),
    ]
    assert not framer.truncated


def test_a_payload_that_is_no_json_object_is_unread() -> None:
    for payload in (b"\x00\x01", b"[1]", b'"x"'):
        found, framer = read([message(payload, {":message-type": "event"})])
        assert named(found) == []
        assert framer.truncated
    found, framer = read([message(b"", {":event-type": "e", ":message-type": "event"})])
    assert (named(found), framer.truncated) == ([("e", {})], False)


def test_a_stream_is_told_by_its_type_or_its_first_prelude() -> None:
    labelled = f"{CONTENT_TYPE}; charset=x"
    assert begins_event_stream(A, labelled) is True
    assert begins_event_stream(A[:1], labelled) is True
    assert begins_event_stream(A, "") is True
    assert begins_event_stream(A[:11], "") is None
    assert begins_event_stream(bytes(12), "") is False
    error = json.dumps({"message": "x"}).encode()
    for content_type in ("", labelled, "application/json"):
        assert begins_event_stream(error, content_type) is False
    # Broken from its first byte on: still a stream, of which nothing can be read.
    assert begins_event_stream(b"\x99" + A[1:], labelled) is True
    assert begins_event_stream(b"\x99" + A[1:], "") is False
