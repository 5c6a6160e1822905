"""Strict mode writes a cap into a request that has none, and changes nothing else."""

import gzip
import json

import pytest

from extproc.core.errors import RequestError
from extproc.providers.json_edit import with_member
from extproc.providers.registry import read_request
from extproc.providers.requests import ReadLimits, RequestFacts

LIMITS = ReadLimits(strict_cap_tokens=20)
MESSAGES = '"messages": [{"role": "user", "content": "hi"}]'


def read(
    body: str, *, path: str = "/v1/chat/completions", encoding: str | None = None
) -> RequestFacts:
    data = body.encode()
    if encoding == "gzip":
        data = gzip.compress(data)
    facts = read_request(
        path, data, content_type="application/json", content_encoding=encoding, limits=LIMITS
    )
    assert isinstance(facts, RequestFacts)
    return facts


def test_a_chat_without_a_cap_gets_one_for_each_choice() -> None:
    facts = read('{"model": "gpt-4o", "n": 3, "seed": 1e2, ' + MESSAGES + "}")
    assert facts.output_cap_tokens == 60
    expected = '{"max_completion_tokens":20,"model": "gpt-4o", "n": 3, "seed": 1e2, '
    assert facts.new_body == (expected + MESSAGES + "}").encode()
    assert not facts.hides_usage


def test_a_null_cap_is_replaced_where_it_stands() -> None:
    facts = read('{"max_completion_tokens": null, "model": "gpt-4o", ' + MESSAGES + "}")
    assert facts.new_body is not None
    assert facts.new_body.startswith(b'{"max_completion_tokens": 20, "model"')


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_clients_own_cap_stands(name: str) -> None:
    facts = read(f'{{"model": "gpt-4o", "{name}": 7, {MESSAGES}}}')
    assert (facts.output_cap_tokens, facts.new_body) == (7, None)


def test_cap_and_usage_are_written_together_also_into_gzip() -> None:
    facts = read('{"model": "gpt-4o", "stream": true, ' + MESSAGES + "}", encoding="gzip")
    assert facts.new_body is not None
    body = json.loads(gzip.decompress(facts.new_body))
    assert body["max_completion_tokens"] == 20
    assert body["stream_options"] == {"include_usage": True}
    assert facts.hides_usage


def test_completions_are_capped_by_their_own_name() -> None:
    facts = read('{"model": "m", "prompt": "hi"}', path="/v1/completions")
    assert json.loads(facts.new_body or b"")["max_tokens"] == 20


def test_embeddings_have_no_output_to_cap() -> None:
    facts = read('{"model": "text-embedding-3-small", "input": "hi"}', path="/v1/embeddings")
    assert facts.new_body is None


def test_a_body_that_cannot_be_changed_must_bring_its_cap() -> None:
    import zlib

    body = zlib.compress(('{"model": "gpt-4o", ' + MESSAGES + "}").encode())
    with pytest.raises(RequestError) as caught:
        read_request(
            "/v1/chat/completions",
            body,
            content_type="application/json",
            content_encoding="deflate",
            limits=LIMITS,
        )
    assert (caught.value.status, caught.value.param) == (415, "max_completion_tokens")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1.50}', '{"config":{"cap":7},"a": 1.50}'),
        ("{}", '{"config":{"cap":7}}'),
        ('{"config": null, "a": 1}', '{"config": {"cap":7}, "a": 1}'),
        ('{"config": { }, "a": 1}', '{"config": {"cap":7 }, "a": 1}'),
        ('{"a": 1, "config": {"x": 1e2}}', '{"a": 1, "config": {"cap":7,"x": 1e2}}'),
        ('{"config": {"x": 1, "cap": null}}', '{"config": {"x": 1, "cap": 7}}'),
        ('{"c\\u006fnfig": {"cap" : 5}}', '{"c\\u006fnfig": {"cap" : 7}}'),
    ],
)
def test_a_cap_may_stand_deep_in_a_body(text: str, expected: str) -> None:
    assert with_member(text, json.loads(text), ("config", "cap"), "7") == expected
