"""USAGE: faults that others reported about reading what a provider says; see docs/known-faults.md.

Each instance is among the recorded answers of test_providers_answers.py; these are of their kind.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.usage import Usage
from extproc.providers.answers import answer_reader
from tests.unit.spoken_answers import SPOKEN, Report, fed

FORMATS = pytest.mark.parametrize("name", SPOKEN)
QUICK = settings(max_examples=40, deadline=None, derandomize=True)
numbers = st.integers(1, 100_000)


def usage_of(wire_format: str, *values: object, streamed: bool = True) -> Usage:
    """What an answer reports: events of a stream, or one document."""
    reader = answer_reader(
        wire_format,
        content_type="text/event-stream" if streamed else "application/json",
        content_encoding=None,
        hides_usage=False,
        encoding="o200k_base",
    )
    lines = [json.dumps(value) for value in values]
    body = "".join(f"data: {line}\n\n" for line in lines) if streamed else "".join(lines)
    return fed(reader, [body.encode()]).usage


@FORMATS
@QUICK
@given(prompt=numbers, outputs=st.lists(numbers, min_size=1, max_size=30).map(sorted))
def test_running_totals_are_overwritten_and_never_added(
    name: str, prompt: int, outputs: list[int]
) -> None:
    """B050, B051, B057, B063, B067: the last report counts, however many came."""
    spoken = SPOKEN[name]
    reports: list[Report] = [(prompt, output) for output in outputs]
    reader = fed(spoken.reader(), [spoken.body(["hello ", "world"], reports)])
    assert (reader.usage.input_tokens, reader.usage.output_tokens) == (prompt, outputs[-1])
    assert reader.counted_output_tokens() == outputs[-1]


@FORMATS
@QUICK
@given(prompt=numbers, output=numbers, zeros=st.integers(1, 3))
def test_zeros_behind_or_before_numbers_are_placeholders(
    name: str, prompt: int, output: int, zeros: int
) -> None:
    """B062: neither the first nor the last report wins, but the last that says something."""
    spoken = SPOKEN[name]
    real, none = [(prompt, output)], [(0, 0)] * zeros
    for reports in (none + real, real + none, none + real + none):
        usage = fed(spoken.reader(), [spoken.body(["hello"], reports)]).usage
        assert (usage.input_tokens, usage.output_tokens) == (prompt, output)


@FORMATS
def test_zeros_alone_beside_text_are_not_a_report(name: str) -> None:
    """B048, B062: for every format."""
    spoken = SPOKEN[name]
    reader = fed(spoken.reader(), [spoken.body(["hello ", "world"], [(0, 0)])])
    assert not reader.usage.is_known
    assert reader.counted_output_tokens() >= 2


REPORT = {"prompt_tokens": 23, "completion_tokens": 235, "total_tokens": 258}


@pytest.mark.parametrize("where", ["choice", "x_groq", "top", "choice x_groq top top"])
@pytest.mark.parametrize("streamed", [True, False])
def test_one_report_in_several_places_counts_once(where: str, streamed: bool) -> None:
    """B051, B052: inside a choice, beside one, and again at the end."""
    text = {"content": "hi"}
    events: list[dict[str, Any]] = []
    for place in where.split():
        event: dict[str, Any] = {"choices": [{"index": 0, "delta": text, "message": text}]}
        if place == "choice":
            event["choices"][0]["usage"] = REPORT
        elif place == "x_groq":
            event["x_groq"] = {"usage": REPORT}
        else:
            event["usage"] = REPORT
        events.append(event)
    if not streamed:
        merged: dict[str, Any] = {}
        for event in events:
            merged |= event
        events = [merged]
    usage = usage_of("openai_chat", *events, streamed=streamed)
    assert (usage.input_tokens, usage.output_tokens) == (23, 235)


@given(prompt=numbers, output=numbers, reasoning=numbers, streamed=st.booleans())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_total_tells_whether_thoughts_are_inside_or_beside(
    prompt: int, output: int, reasoning: int, streamed: bool
) -> None:
    """B058, B059: and nothing is ever below zero."""
    details = {"completion_tokens_details": {"reasoning_tokens": reasoning}}
    for inside in (True, False):
        said = max(output, reasoning) if inside else output
        total = prompt + said + (0 if inside else reasoning)
        report = {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": total}
        usage = usage_of(
            "openai_chat", {"choices": [], "usage": {**report, **details}}, streamed=streamed
        )
        assert (usage.input_tokens, usage.output_tokens) == (prompt, total - prompt)
        assert usage.reasoning_tokens == reasoning


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({"prompt_tokens": 57, "completion_tokens": 0, "total_tokens": 61}, (57, 4)),
        ({"prompt_tokens": 0, "completion_tokens": 4, "total_tokens": 61}, (57, 4)),
        ({"prompt_tokens": 57, "completion_tokens": None, "total_tokens": 61}, (57, 4)),
        ({"prompt_tokens": 57, "total_tokens": 61}, (57, 4)),
        ({"completion_tokens": 4, "total_tokens": 61}, (57, 4)),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 61}, (None, None)),
        ({"prompt_tokens": 57, "completion_tokens": 4, "total_tokens": 0}, (57, 4)),
        ({"input_tokens": 57, "output_tokens": 4}, (57, 4)),
        ({"prompt_tokens": 0, "input_tokens": 57, "output_tokens": 4}, (57, 4)),
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
def test_a_part_that_is_missing_or_zero_is_what_the_total_leaves(
    report: dict[str, object], expected: tuple[int | None, int | None], streamed: bool
) -> None:
    """B062: placeholders of any mixture, beside text."""
    content = {"content": "hello"}
    answer = {"choices": [{"index": 0, "delta": content, "message": content}], "usage": report}
    usage = usage_of("openai_chat", answer, streamed=streamed)
    assert (usage.input_tokens, usage.output_tokens) == expected


PLAIN, READ, WRITTEN, OUT = 100, 8000, 300, 50
ALL = PLAIN + READ + WRITTEN
# How each provider says that PLAIN tokens were new, READ came from its cache and WRITTEN went in.
DIALECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": (
        "openai_chat",
        {
            "usage": {
                "prompt_tokens": ALL,
                "completion_tokens": OUT,
                "prompt_tokens_details": {"cached_tokens": READ, "cache_write_tokens": WRITTEN},
            }
        },
    ),
    "deepseek": (
        "openai_chat",
        {
            "usage": {
                "prompt_tokens": ALL,
                "completion_tokens": OUT,
                "prompt_cache_hit_tokens": READ,
                "prompt_cache_miss_tokens": ALL - READ,
            }
        },
    ),
    "moonshot": (
        "openai_chat",
        {"usage": {"prompt_tokens": ALL, "completion_tokens": OUT, "cached_tokens": READ}},
    ),
    "a gateway before anthropic": (
        "openai_chat",
        {
            "usage": {
                "prompt_tokens": ALL,
                "completion_tokens": OUT,
                "prompt_tokens_details": {"cached_tokens": READ},
                "cache_creation_input_tokens": WRITTEN,
                "cache_read_input_tokens": READ,
            }
        },
    ),
    "responses": (
        "openai_responses",
        {
            "usage": {
                "input_tokens": ALL,
                "output_tokens": OUT,
                "input_tokens_details": {"cached_tokens": READ},
            }
        },
    ),
    "anthropic": (
        "anthropic_messages",
        {
            "usage": {
                "input_tokens": PLAIN,
                "cache_read_input_tokens": READ,
                "cache_creation_input_tokens": WRITTEN,
                "cache_creation": {"ephemeral_5m_input_tokens": WRITTEN},
                "output_tokens": OUT,
            }
        },
    ),
    "converse": (
        "bedrock_converse",
        {
            "usage": {
                "inputTokens": PLAIN,
                "cacheReadInputTokens": READ,
                "cacheWriteInputTokens": WRITTEN,
                "cacheDetails": [{"ttl": "5m", "inputTokens": WRITTEN}],
                "outputTokens": OUT,
                "totalTokens": ALL + OUT,
            }
        },
    ),
    "gemini": (
        "gemini",
        {
            "usageMetadata": {
                "promptTokenCount": ALL,
                "cachedContentTokenCount": READ,
                "candidatesTokenCount": OUT,
                "totalTokenCount": ALL + OUT,
            }
        },
    ),
    "gemini with tools and thoughts": (
        "gemini",
        {
            "usageMetadata": {
                "promptTokenCount": ALL - 40,
                "toolUsePromptTokenCount": 40,
                "cachedContentTokenCount": READ,
                "candidatesTokenCount": OUT - 20,
                "thoughtsTokenCount": 20,
                "totalTokenCount": ALL + OUT,
            }
        },
    ),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_the_cache_gave_is_in_the_input_once(dialect: str) -> None:
    """B052, B054, B056, B057, B064, B070: neither left out nor in it twice."""
    wire_format, answer = DIALECTS[dialect]
    usage = usage_of(wire_format, answer, streamed=False)
    assert (usage.input_tokens, usage.output_tokens) == (ALL, OUT)
    assert usage.cached_input_tokens == READ
    assert usage.cache_write_tokens in (None, WRITTEN)


@pytest.mark.parametrize(
    "split",
    [
        ({}, {"input_tokens": 321, "output_tokens": 45}),
        ({"input_tokens": 0, "output_tokens": 0}, {"input_tokens": 321, "output_tokens": 45}),
        ({"input_tokens": 321}, {"output_tokens": 45}),
        ({"input_tokens": 321, "output_tokens": 9}, {"input_tokens": 321, "output_tokens": 45}),
        ({"input_tokens": 321}, {"input_tokens": None, "output_tokens": 45}),
        ({"input_tokens": 320}, {"input_tokens": 321, "output_tokens": 45}),
        (
            {"input_tokens": 1, "cache_read_input_tokens": 320},
            {"input_tokens": 1, "cache_read_input_tokens": 320, "output_tokens": 45},
        ),
        (
            {"input_tokens": 1},
            {"cache_creation_input_tokens": 320, "output_tokens": 45},
        ),
    ],
)
def test_halves_of_a_report_are_merged_field_by_field(
    split: tuple[dict[str, object], dict[str, object]],
) -> None:
    """B067: begin and end of Anthropic's stream, with the numbers on either side or both."""
    start, end = split
    usage = usage_of(
        "anthropic_messages",
        {"type": "message_start", "message": {"usage": start}},
        {"type": "content_block_delta", "index": 0, "delta": {"text": "hello"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": end},
    )
    assert (usage.input_tokens, usage.output_tokens) == (321, 45)


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": []},
        {"choices": None},
        {},
        {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
        {"choices": [], "usage": None},
        {"choices": [None], "usage": []},
        {"choices": [{"index": 0, "delta": None, "finish_reason": None}]},
        {"choices": {}, "object": ""},
        {"choices": [{"content_filter_results": {}, "content_filter_offsets": {}}]},
    ],
)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_event_that_says_nothing_changes_nothing(odd: dict[str, object], at: int) -> None:
    """B068, B069: wherever it stands."""
    text: dict[str, object] = {"choices": [{"index": 0, "delta": {"content": "hi"}}]}
    events = [text, {"choices": [], "usage": REPORT}]
    events.insert(at, odd)
    usage = usage_of("openai_chat", *events)
    assert (usage.input_tokens, usage.output_tokens) == (23, 235)
