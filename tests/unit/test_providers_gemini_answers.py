"""Google's answers: every rule of usageMetadata, streams, arrays, blocked prompts, media."""

import json

import pytest

from extproc.core.usage import Usage
from extproc.providers.answers import AnswerReader, answer_reader
from extproc.providers.tokens import count_tokens


def reader_for(wire_format: str = "gemini") -> AnswerReader:
    return answer_reader(
        wire_format,
        content_type="application/json",
        content_encoding=None,
        hides_usage=False,
        encoding="o200k_base",
    )


def read(*bodies: object, wire_format: str = "gemini") -> AnswerReader:
    """One object is a plain answer, several are events of SSE."""
    reader = reader_for(wire_format)
    if len(bodies) == 1:
        reader.feed(json.dumps(bodies[0]).encode(), end=True)
        return reader
    for body in bodies:
        reader.feed(b"data: " + json.dumps(body).encode() + b"\r\n\r\n", end=False)
    return reader


def array(*bodies: object, is_closed: bool = True) -> AnswerReader:
    reader = reader_for()
    text = ("[" + "\n,\r\n".join(json.dumps(body) for body in bodies)).encode()
    reader.feed(text + b"\n]\n" if is_closed else text, end=True)
    return reader


def part(index: int = 0, finish: str | None = None, **fields: object) -> dict[str, object]:
    candidate: dict[str, object] = {"content": {"parts": [fields] if fields else []}}
    if index:
        candidate["index"] = index  # Google leaves a zero out
    if finish:
        candidate["finishReason"] = finish
    return candidate


def chunk(text: str | None = "x", finish: str | None = None, **numbers: int) -> dict[str, object]:
    fields = {} if text is None else {"text": text}
    value: dict[str, object] = {"candidates": [part(0, finish, **fields)]}
    if numbers:
        value["usageMetadata"] = {name + "TokenCount": number for name, number in numbers.items()}
    return value


def totals(usage: Usage) -> tuple[int | None, int | None, int | None]:
    return usage.input_tokens, usage.output_tokens, usage.reasoning_tokens


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        # All four parts beside one another.
        (
            {"prompt": 100, "toolUsePrompt": 40, "candidates": 10, "thoughts": 50, "total": 200},
            (140, 60, 50),
        ),
        # The total says what is inside of what.
        ({"prompt": 100, "candidates": 60, "thoughts": 50, "total": 160}, (100, 60, 50)),
        (
            {"prompt": 140, "toolUsePrompt": 40, "candidates": 10, "thoughts": 50, "total": 200},
            (140, 60, 50),
        ),
        (
            {"prompt": 140, "toolUsePrompt": 40, "candidates": 60, "thoughts": 50, "total": 200},
            (140, 60, 50),
        ),
        # Thoughts larger than the candidates cannot be inside them, whatever the total says.
        ({"prompt": 100, "candidates": 10, "thoughts": 50, "total": 110}, (100, 60, 50)),
        # What is missing is what the total leaves.
        ({"prompt": 100, "total": 130}, (100, 30, None)),
        ({"candidates": 30, "total": 130}, (100, 30, None)),
        ({"prompt": 100, "candidates": 30, "total": 180}, (100, 80, None)),
        ({"prompt": 100, "candidates": 30}, (100, 30, None)),
        # A total that is smaller than its parts is not believed.
        ({"prompt": 100, "candidates": 30, "total": 5}, (100, 30, None)),
        ({"candidates": 30, "total": 5}, (None, 30, None)),
        ({"total": 5}, (None, None, None)),
        # Something was produced: no output, or no more than the thoughts, is a placeholder.
        ({"prompt": 100, "total": 100}, (100, None, None)),
        ({"prompt": 100, "candidates": 0}, (100, None, None)),
        ({"prompt": 100, "thoughts": 50, "total": 150}, (100, None, 50)),
        ({"prompt": -1, "candidates": 30}, (None, None, None)),
    ],
)
def test_rules_of_the_totals(
    numbers: dict[str, int], expected: tuple[int | None, int | None, int | None]
) -> None:
    assert totals(read(chunk("x", "STOP", **numbers)).usage) == expected


def test_cached_tokens_are_inside_the_prompt() -> None:
    usage = read(chunk(prompt=100, cachedContent=90, candidates=5, total=105)).usage
    assert (usage.input_tokens, usage.cached_input_tokens) == (100, 90)
    # A gateway that has them beside the prompt, and one that has nonsense.
    usage = read(chunk(prompt=10, cachedContent=90, candidates=5, total=105)).usage
    assert (usage.input_tokens, usage.output_tokens, usage.cached_input_tokens) == (100, 5, 90)
    usage = read(chunk(prompt=10, cachedContent=90, candidates=5, total=15)).usage
    assert (usage.input_tokens, usage.output_tokens, usage.cached_input_tokens) == (10, 5, 10)


def test_details_by_modality_are_summed_within_a_report_and_never_across() -> None:
    details = {
        "promptTokensDetails": [
            {"modality": "TEXT", "tokenCount": 10},
            {"modality": "AUDIO", "tokenCount": 20},
            {"modality": "IMAGE", "tokenCount": 30},
        ],
        "toolUsePromptTokensDetails": [{"modality": "IMAGE", "tokenCount": 5}],
        "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 7}, {"modality": 3}, None],
    }
    value = chunk(prompt=60, toolUsePrompt=5, candidates=9)
    report = value["usageMetadata"]
    assert isinstance(report, dict)
    report.update(details)
    usage = read(value, value).usage
    assert (usage.audio_input_tokens, usage.image_input_tokens) == (20, 35)
    assert (usage.audio_output_tokens, usage.image_output_tokens) == (None, 7)


def test_snake_case_of_gateways_is_read() -> None:
    value = {"usage_metadata": {"prompt_token_count": 7, "candidates_token_count": 3}}
    assert totals(read(value | chunk()).usage) == (7, 3, None)


def test_reports_of_a_stream_overwrite_and_a_later_zero_does_not() -> None:
    reader = read(
        chunk(prompt=120, candidates=3, total=123),
        chunk(prompt=120, candidates=9, total=129),
        chunk("", "STOP", prompt=120, candidates=0, total=0),
    )
    assert totals(reader.usage) == (120, 9, None)


def test_text_after_the_last_report_is_counted_on_top_of_it() -> None:
    sentence = "The quick brown fox jumps over the lazy dog"
    reader = read(chunk(sentence, prompt=10, candidates=9), chunk(sentence))
    assert reader.counted_output_tokens() == 9 + count_tokens(sentence)
    assert not reader.complete
    # Thoughts alone do not cover text that was seen.
    reader = read(chunk(sentence, prompt=10, thoughts=100, total=110), chunk(None))
    assert reader.counted_output_tokens() == 100 + count_tokens(sentence)


def test_no_output_is_known_to_be_none_only_at_the_end() -> None:
    begun = {"usageMetadata": {"promptTokenCount": 10, "totalTokenCount": 10}}
    assert read(begun, begun).usage.output_tokens is None
    assert totals(read(begun, chunk("", "SAFETY")).usage) == (10, 0, None)


def test_a_blocked_prompt_is_complete_without_candidates() -> None:
    blocked = {
        "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
        "usageMetadata": {"promptTokenCount": 12, "totalTokenCount": 12},
        "modelVersion": "gemini-2.5-flash",
        "responseId": "r1",
    }
    for reader in (read(blocked), read(blocked, {}), array(blocked, is_closed=False)):
        assert totals(reader.usage) == (12, 0, None)
        assert reader.complete
        assert not reader.saw_output
        assert not reader.error
        assert (reader.response_id, reader.response_model) == ("r1", "gemini-2.5-flash")


def test_complete_needs_every_candidates_finish() -> None:
    both = {"candidates": [part(0, None, text="a"), part(1, None, text="b")]}
    first, second = {"candidates": [part(0, "STOP")]}, {"candidates": [part(1, "MAX_TOKENS")]}
    assert not read(both, first).complete
    assert read(both, first, second).complete
    # Gemini 1 wrote STOP into every chunk; one without it goes on.
    assert not read(chunk("a", "STOP"), chunk("b")).complete


def test_the_end_of_the_array_is_complete_and_a_cut_one_is_not() -> None:
    assert array(chunk("a"), chunk("b")).complete
    cut = array(chunk("Hello world"), is_closed=False)
    assert not cut.complete
    assert cut.counted_output_tokens() == 2


def test_errors_in_every_framing() -> None:
    error = {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}
    for reader in (read(error), array(error), read(error, {})):
        assert reader.error
        assert not reader.saw_output
    for reader in (array(chunk("a"), error), read(chunk("a"), error)):
        assert reader.error
        assert reader.saw_output


def test_calls_code_and_thoughts_count_as_output() -> None:
    call = {"name": "get_weather", "args": {"city": "Paris"}}
    spoken = {
        "candidates": [
            part(0, None, functionCall=call),
            part(1, None, executableCode={"code": "print(1)"}),
            part(2, None, text="Let me think", thought=True),
        ]
    }
    wanted = ["get_weather", '{"city":"Paris"}', "print(1)", "Let me think"]
    reader = read(spoken, {})
    assert reader.saw_output
    assert reader.counted_output_tokens() == sum(count_tokens(text) for text in wanted)


def test_a_picture_without_usage_keeps_the_reserve() -> None:
    picture = {"candidates": [part(0, None, inlineData={"mimeType": "image/png", "data": "AAAA"})]}
    reader = read(picture, {})
    assert reader.unread
    assert reader.saw_output
    assert reader.counted_output_tokens() == 0
    done = read(picture, chunk("", "STOP", prompt=5, candidates=1290, total=1295))
    assert not done.unread
    assert totals(done.usage) == (5, 1290, None)


def test_searches_are_counted_once() -> None:
    grounded = chunk("a")
    candidates = grounded["candidates"]
    assert isinstance(candidates, list)
    candidates[0]["groundingMetadata"] = {"webSearchQueries": ["a", "b"]}
    assert read(grounded, grounded).usage.server_tool_calls == 2
    assert read(chunk("a"), {}).usage.server_tool_calls is None


def test_usage_of_a_document_that_is_too_large_to_keep() -> None:
    reader = reader_for()
    reader.feed(b'{"candidates": [{"content": {"parts": [{"inlineData": {"data": "', end=False)
    for _ in range(10):
        reader.feed(b"A" * 1_000_000, end=False)
    tail = {"promptTokenCount": 5, "candidatesTokenCount": 1290, "totalTokenCount": 1295}
    rest = ', "usageMetadata": ' + json.dumps(tail) + ', "modelVersion": "m"}'
    reader.feed(b'"}}]}}]' + rest.encode(), end=True)
    assert totals(reader.usage) == (5, 1290, None)
    assert not reader.unread


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"embedding": {"values": [0.1]}, "usageMetadata": {"promptTokenCount": 4}}, 4),
        ({"embeddings": [{"values": [0.1]}], "usageMetadata": {"totalTokenCount": 4}}, 4),
        ({"embedding": {"values": [0.1]}}, None),
        (
            {
                "predictions": [
                    {"embeddings": {"statistics": {"token_count": 3}, "values": [0.1]}},
                    {"embeddings": {"statistics": {"token_count": 4}, "values": [0.1]}},
                ]
            },
            7,
        ),
        ({"predictions": [{"embeddings": {"statistics": {"token_count": 3}}}, {}]}, None),
    ],
)
def test_embeddings_have_input_only(body: dict[str, object], tokens: int | None) -> None:
    reader = read(body, wire_format="gemini_embeddings")
    assert totals(reader.usage) == (tokens, None if tokens is None else 0, None)
    assert reader.saw_output


@pytest.mark.parametrize("wire_format", ["gemini_openai_chat", "vertex_openai_chat"])
def test_openais_api_at_google_leaves_thoughts_to_the_total(wire_format: str) -> None:
    def usage(**numbers: object) -> Usage:
        return read({"choices": [], "usage": numbers}, wire_format=wire_format).usage

    hidden = usage(prompt_tokens=758, completion_tokens=102, total_tokens=1725)
    assert totals(hidden) == (758, 967, 865)
    told = usage(
        prompt_tokens=758,
        completion_tokens=967,
        total_tokens=1725,
        completion_tokens_details={"reasoning_tokens": 865},
    )
    assert totals(told) == (758, 967, 865)
    assert totals(usage(prompt_tokens=7, completion_tokens=3, total_tokens=10)) == (7, 3, None)
