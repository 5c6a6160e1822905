"""Tokens that Anthropic reports per iteration only: compaction and advisors."""

import json
from typing import Any

import pytest

from extproc.core.usage import Usage
from extproc.providers.answers import AnswerReader, answer_reader

OWN = {"type": "message", "input_tokens": 23_000, "output_tokens": 1000}
COMPACTION = {
    "type": "compaction",
    "input_tokens": 100_000,
    "cache_read_input_tokens": 70_000,
    "cache_creation_input_tokens": 10_000,
    "output_tokens": 3500,
}
ADVISOR = {"type": "advisor_message", "model": "m", "input_tokens": 500, "output_tokens": 80}


def read(body: bytes) -> AnswerReader:
    reader = answer_reader(
        "anthropic_messages",
        content_type=None,
        content_encoding=None,
        hides_usage=False,
        encoding="o200k_base",
    )
    reader.feed(body, end=True)
    return reader


def plain(usage: dict[str, Any]) -> Usage:
    message = {"type": "message", "content": [{"type": "text", "text": "Hi"}], "usage": usage}
    return read(json.dumps(message).encode()).usage


def usage(*iterations: Any, **totals: int) -> dict[str, Any]:
    return {"input_tokens": 23_000, "output_tokens": 1000, "iterations": [*iterations], **totals}


def test_a_compaction_is_charged_beside_the_answer() -> None:
    found = plain(usage(COMPACTION, OWN))
    assert (found.input_tokens, found.output_tokens) == (203_000, 4500)
    assert (found.cached_input_tokens, found.cache_write_tokens) == (70_000, 10_000)


def test_several_are_added_and_iterations_of_the_answer_are_not() -> None:
    found = plain(usage(OWN, ADVISOR, COMPACTION, ADVISOR, OWN | {"type": "fallback_message"}))
    assert (found.input_tokens, found.output_tokens) == (23_000 + 180_000 + 1000, 1000 + 3500 + 160)


def test_a_total_that_a_gateway_has_added_up_is_left_alone() -> None:
    found = plain(usage(COMPACTION, OWN, input_tokens=203_000, output_tokens=4500))
    assert (found.input_tokens, found.output_tokens) == (203_000, 4500)


@pytest.mark.parametrize("wrong", [None, {}, "x", [None], [{"type": "compaction"}], [{}]])
def test_iterations_that_say_nothing_change_nothing(wrong: object) -> None:
    found = plain({"input_tokens": 9, "output_tokens": 2, "iterations": wrong})
    assert (found.input_tokens, found.output_tokens) == (9, 2)


def test_a_stream_repeats_them_and_they_are_added_once() -> None:
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"usage": usage(COMPACTION, output_tokens=1)}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "message_delta", "delta": {}, "usage": usage(COMPACTION)},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 1000, "iterations": [COMPACTION, OWN]},
        },
    ]
    reader = read(b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events))
    assert (reader.usage.input_tokens, reader.usage.output_tokens) == (203_000, 4500)


def test_the_text_of_a_compaction_is_counted_when_no_usage_comes() -> None:
    delta = {"type": "compaction_delta", "content": "a summary of all that was said before"}
    event = {"type": "content_block_delta", "index": 0, "delta": delta}
    reader = read(b"data: " + json.dumps(event).encode() + b"\n\n")
    assert reader.counted_output_tokens() >= 8
