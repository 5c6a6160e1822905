"""Usage asked for on the client's behalf: the smallest change of the body's bytes."""

import gzip
import json
import zlib

import pytest

from tests.unit.test_providers_requests import CHAT, EMBEDDINGS, MESSAGES, chat, read

BIG = b'{ "seed":123456789012345678901234567890, "temperature":1.0e0,\r\n'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            BIG + b'"stream":true,"model":"m","messages":[]}',
            b'{"stream_options":{"include_usage":true},'
            + BIG[1:]
            + b'"stream":true,"model":"m","messages":[]}',
        ),
        (
            BIG + b'"stream_options": null ,"stream":true,"model":"m","messages":[]}',
            BIG + b'"stream_options": {"include_usage":true} ,"stream":true,'
            b'"model":"m","messages":[]}',
        ),
        (
            BIG + b'"stream":true,"stream_options":{},"model":"m","messages":[]}',
            BIG + b'"stream":true,"stream_options":{"include_usage":true},'
            b'"model":"m","messages":[]}',
        ),
        (
            BIG + b'"stream":true,"str\\u0065am_options": { "x":1.50, "include_usage" : false},'
            b'"model":"m","messages":[]}',
            BIG + b'"stream":true,"str\\u0065am_options": { "x":1.50, "include_usage" : true},'
            b'"model":"m","messages":[]}',
        ),
        (
            b'{"messages":[{"role":"user","content":"\\"stream_options\\":{ \xc3\xb6 \\ud83d",'
            b'"stream_options":{"include_usage":false}}],"stream":true,"model":"m",'
            b'"stream_options":{"a":[{}]}}',
            b'{"messages":[{"role":"user","content":"\\"stream_options\\":{ \xc3\xb6 \\ud83d",'
            b'"stream_options":{"include_usage":false}}],"stream":true,"model":"m",'
            b'"stream_options":{"include_usage":true,"a":[{}]}}',
        ),
    ],
    ids=["absent", "null", "empty", "false", "nested_look_alikes"],
)
def test_usage_is_asked_for_by_that_change_only(before: bytes, after: bytes) -> None:
    facts = read(CHAT, before)
    assert facts.hides_usage
    assert facts.new_body == after
    assert json.loads(after)["stream_options"]["include_usage"] is True
    again = read(CHAT, after)
    assert (again.new_body, again.hides_usage) == (None, False)


def test_a_byte_order_mark_stays_where_it_was() -> None:
    body = b"\xef\xbb\xbf " + json.dumps(chat(stream=True)).encode()
    new = read(CHAT, body).new_body
    assert new is not None
    assert new.startswith(b'\xef\xbb\xbf {"stream_options":{"include_usage":true},"model"')


def test_a_gzip_body_is_packed_again_and_a_deflate_body_left_alone() -> None:
    body = json.dumps(chat(stream=True)).encode()
    facts = read(CHAT, gzip.compress(body), content_encoding="gzip")
    assert facts.hides_usage
    assert facts.new_body is not None
    assert gzip.decompress(facts.new_body) == read(CHAT, body).new_body
    facts = read(CHAT, zlib.compress(body), content_encoding="deflate")
    assert (facts.new_body, facts.hides_usage) == (None, False)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"stream": False}),
        (CHAT, {"stream": True, "stream_options": {"include_usage": True}}),
        (MESSAGES, {"stream": True}),
        (EMBEDDINGS, {"input": "x", "stream": True}),
    ],
)
def test_nothing_is_changed_where_usage_comes_anyway(path: str, fields: dict[str, object]) -> None:
    facts = read(path, chat(**fields))
    assert (facts.new_body, facts.hides_usage) == (None, False)
