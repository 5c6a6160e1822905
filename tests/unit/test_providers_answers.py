"""Answers: every recorded case, however it is cut; what was produced; what is hidden."""

import gzip
import json
import random
import time

import pytest

from extproc.core.usage import Usage
from extproc.providers.answers import AnswerReader, answer_reader
from extproc.providers.tokens import count_tokens
from tests.unit.provider_cases import AnswerCase, answer_cases, pack, random_cuts, ways_to_cut

CASES = answer_cases()
BY_NAME = {case.name: case for case in CASES}
# 20 MB of zeros before a usage of 5 and 5: reading it or giving up are both right.
BOMB = "openai_json_gzip_bomb_20MB"


def reader_for(
    wire_format: str = "openai_chat",
    *,
    content_type: str | None = "text/event-stream",
    content_encoding: str | None = None,
    hides_usage: bool = False,
) -> AnswerReader:
    return answer_reader(
        wire_format,
        content_type=content_type,
        content_encoding=content_encoding,
        hides_usage=hides_usage,
        encoding="o200k_base",
    )


def run(reader: AnswerReader, chunks: list[bytes]) -> bytes:
    """Feed all chunks; the answer is what the client gets."""
    out = []
    for index, chunk in enumerate(chunks):
        replaced = reader.feed(chunk, end=index == len(chunks) - 1)
        out.append(chunk if replaced is None else replaced)
    return b"".join(out)


def read_case(case: AnswerCase, chunks: list[bytes]) -> AnswerReader:
    reader = reader_for(
        case.wire_format, content_type=case.content_type, content_encoding=case.content_encoding
    )
    assert run(reader, chunks) == b"".join(chunks)
    return reader


def chunk(text: str | None = None, **fields: object) -> bytes:
    choices = [] if text is None else [{"index": 0, "delta": {"content": text}}]
    return b"data: " + json.dumps({"choices": choices, **fields}).encode() + b"\n\n"


def usage_chunk(prompt: int, completion: int, text: str | None = None) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return chunk(text, usage=usage)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_recorded_answer_gives_its_usage_however_it_is_cut(case: AnswerCase) -> None:
    expect = case.expect
    seen = set()
    for chunks in ways_to_cut(case):
        reader = read_case(case, chunks)
        usage = reader.usage
        counted = reader.counted_output_tokens()
        seen.add((usage, counted, reader.saw_output, reader.error, reader.complete))
    assert len(seen) == 1, "the result depends on how the bytes were cut"
    usage = reader.usage
    if case.name == BOMB:
        assert usage in (Usage(), Usage(input_tokens=5, output_tokens=5))
        return
    assert usage.is_known is expect["usage_known"]
    if expect["usage_known"] or expect.get("extra", {}).get("partial"):
        accepted = expect.get("extra", {})
        assert usage.input_tokens == expect["input_tokens"]
        assert usage.output_tokens == expect["output_tokens"]
        if expect["cached_input_tokens"] is not None:
            assert usage.cached_input_tokens == expect["cached_input_tokens"]
        reasoning = expect["reasoning_tokens"]
        if reasoning is not None:
            assert usage.reasoning_tokens == reasoning
        elif "reasoning_tokens_may_be" in accepted:
            assert usage.reasoning_tokens in (None, accepted["reasoning_tokens_may_be"])


@pytest.mark.parametrize(
    "name",
    [
        "openai_sse_error_first_event_200",
        "upstream_200_json_error_object",
        "upstream_200_non_json_error_text",
        "openai_sse_http_429_upstream_json_error",
    ],
)
def test_an_error_in_a_good_answer_is_an_error_and_no_output(name: str) -> None:
    reader = read_case(BY_NAME[name], BY_NAME[name].chunks)
    assert reader.error
    assert not reader.saw_output
    assert reader.counted_output_tokens() == 0


def test_an_error_object_of_anthropic_is_recognised_in_stream_and_json() -> None:
    error = b'{"type":"error","error":{"type":"overloaded_error","message":"x"}}'
    for body in (b"event: error\ndata: " + error + b"\n\n", error):
        reader = reader_for("anthropic_messages")
        run(reader, [body])
        assert reader.error
        assert not reader.saw_output


def test_no_case_without_an_error_is_taken_for_one() -> None:
    failing = {case.name for case in CASES if read_case(case, case.chunks).error}
    assert failing == {
        "openai_sse_error_first_event_200",
        "upstream_200_json_error_object",
        "upstream_200_non_json_error_text",
        "openai_sse_http_429_upstream_json_error",
        "gemini_sse_error_after_first_chunk",
        "responses_sse_failed_with_usage",
    }


def test_complete_tells_an_ended_stream_from_a_cut_one() -> None:
    ended = BY_NAME["openai_sse_usage_empty_choices_7byte_chunks"].body
    before_end = reader_for()
    run(before_end, [ended[:300]])
    assert not before_end.complete
    assert read_case(BY_NAME["openai_sse_usage_empty_choices_7byte_chunks"], [ended]).complete
    assert not read_case(BY_NAME["vllm_sse_continuous_usage_aborted"], [b"data: {"]).complete
    started = BY_NAME["anthropic_sse_basic_cumulative"].body
    cut = reader_for("anthropic_messages")
    run(cut, [started[: started.index(b"event: message_delta")]])
    assert not cut.complete
    assert not read_case(BY_NAME["openai_json_gzip_truncated"], [b""]).complete


def test_text_is_counted_per_choice_when_no_usage_comes() -> None:
    sentence = "The quick brown fox jumps over the lazy dog again and again"
    words = sentence.split()
    body = b"".join(
        chunk(None, choices=[{"index": index, "delta": {"content": piece}}])
        for word in words
        for piece in (word[:1], word[1:] + " ")
        for index in (0, 1)
    )
    reader = reader_for()
    run(reader, [body])
    assert reader.usage == Usage()
    assert reader.saw_output
    # Interleaved choices must not break each other's words.
    assert reader.counted_output_tokens() == 2 * count_tokens(sentence + " ")


def test_reasoning_and_tool_arguments_are_output() -> None:
    deltas: list[dict[str, object]] = [
        {"reasoning_content": "let me think"},
        {"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
    ]
    reader = reader_for()
    run(reader, [chunk(None, choices=[{"index": 0, "delta": delta}]) for delta in deltas])
    expected = sum(count_tokens(text) for text in ("let me think", "look", '{"a":1}'))
    assert reader.counted_output_tokens() == expected


def test_anthropic_deltas_of_all_kinds_are_counted_with_the_factor() -> None:
    deltas = [
        {"type": "text_delta", "text": "hello there my friend"},
        {"type": "thinking_delta", "thinking": "considering all options"},
        {"type": "input_json_delta", "partial_json": '{"city":"Oslo"}'},
    ]
    reader = reader_for("anthropic_messages")
    body = b"".join(
        b"data: "
        + json.dumps({"type": "content_block_delta", "index": i, "delta": delta}).encode()
        + b"\n\n"
        for i, delta in enumerate(deltas)
    )
    run(reader, [body])
    texts = ("hello there my friend", "considering all options", '{"city":"Oslo"}')
    plain = sum(count_tokens(text) for text in texts)
    assert reader.counted_output_tokens() == -(-plain * 115 // 100)


def test_output_number_of_message_start_is_not_a_report() -> None:
    body = BY_NAME["anthropic_sse_basic_cumulative"].body
    reader = reader_for("anthropic_messages")
    run(reader, [body[: body.index(b"event: message_delta")]])
    assert reader.usage.input_tokens == 25
    assert reader.usage.output_tokens is None
    assert reader.counted_output_tokens() == -(-2 * 115 // 100)


def test_running_usage_is_the_count_and_text_after_it_is_added() -> None:
    reader = reader_for()
    run(reader, [usage_chunk(100, 40, "some text that was forty tokens")])
    assert reader.counted_output_tokens() == 40
    reader.feed(chunk("and three more"), end=False)
    assert reader.counted_output_tokens() == 43
    reader.feed(usage_chunk(100, 44), end=False)
    assert reader.counted_output_tokens() == 44


def test_text_of_a_json_answer_without_usage_is_counted() -> None:
    body = json.dumps({"choices": [{"index": 0, "message": {"content": "one two three"}}]})
    reader = reader_for(content_type="application/json")
    run(reader, [body.encode()])
    assert reader.usage == Usage()
    assert reader.counted_output_tokens() == 3
    assert reader.complete


def test_explicit_zero_without_any_output_is_zero() -> None:
    reader = reader_for()
    run(reader, [usage_chunk(0, 0)])
    assert reader.usage.is_known
    assert reader.usage.is_zero


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        *((number, Usage()) for number in ("-1", "1e999", "9007199254740993", "9" * 5000, "NaN")),
        *((number, Usage(input_tokens=7)) for number in ('"12"', "true", "{}", "null")),
    ],
)
def test_a_number_that_cannot_be_makes_the_report_unknown_and_costs_nothing_else(
    number: str, expected: Usage
) -> None:
    usage = f'{{"prompt_tokens":7,"completion_tokens":{number}}}'
    body = f'data: {{"choices":[{{"delta":{{"content":"x"}}}}],"usage":{usage}}}\n\n'
    reader = reader_for()
    run(reader, [body.encode()])
    assert reader.usage == expected
    assert reader.counted_output_tokens() == 1


def test_a_large_embeddings_answer_is_not_kept_but_its_usage_is_read() -> None:
    start = b'{"object":"list","data":[' + b"[0.123456789]," * 700_000
    end = b'[1]],"model":"m","usage":{"prompt_tokens":8,"total_tokens":8}}'
    reader = reader_for("openai_embeddings", content_type="application/json")
    for at in range(0, len(start), 65536):
        reader.feed(start[at : at + 65536], end=False)
    reader.feed(end, end=True)
    assert reader.usage == Usage(input_tokens=8, output_tokens=0)
    assert len(reader._json.raw()) < 256 * 1024


def test_usage_words_inside_a_large_answers_text_are_not_usage() -> None:
    fake = json.dumps('{"usage": {"prompt_tokens": 999, "completion_tokens": 999}}')
    body = b'{"choices":[{"message":{"content":"' + b"x" * 9_000_000 + b'"}}],"a":'
    reader = reader_for(content_type="application/json")
    run(reader, [body + fake.encode() + b"}"])
    assert reader.usage == Usage()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "x-gzip", "br", "zstd"])
def test_compressed_streams_are_read_and_never_changed(encoding: str) -> None:
    plain = chunk("hi") + usage_chunk(5, 6) + b"data: [DONE]\n\n"
    packed = pack(plain, encoding)
    for chunks in ([packed], [packed[i : i + 1] for i in range(len(packed))]):
        reader = reader_for(content_encoding=encoding, hides_usage=True)
        assert run(reader, chunks) == packed
        assert reader.usage == Usage(input_tokens=5, output_tokens=6)


def test_an_unknown_encoding_passes_and_counts_as_output_nobody_can_read() -> None:
    reader = reader_for(content_encoding="dcb", hides_usage=True)
    body = b"\x1b\x2f\x00\xf8\xa5\x41\x1d"
    assert run(reader, [body[i : i + 1] for i in range(len(body))]) == body
    assert not reader.readable
    assert reader.saw_output
    assert reader.usage == Usage()


def test_an_answer_bomb_stops_at_the_limit() -> None:
    packed = gzip.compress(b"data: " + b"x" * 200_000_000, compresslevel=1)
    reader = reader_for(content_encoding="gzip")
    started = time.process_time()
    run(reader, [packed])
    assert time.process_time() - started < 5
    assert reader.usage == Usage()
    assert len(reader._sse._buffer) <= 5 * 1024 * 1024


def strip_usage_events(body: bytes) -> bytes:
    """What hiding must give, told the simple way, for bodies with LF and one data line each."""
    events = body.split(b"\n\n")
    return b"\n\n".join(e for e in events if b'"choices": [], "usage": {' not in e)


def hiding_body(newline: bytes = b"\n") -> bytes:
    body = (
        b": ping\n\n\n"
        + chunk(None, prompt_filter_results=[1])
        + b"event: x\nid: 3\n"
        + chunk("Hell\u00f6 \\\\n")
        + chunk("more", usage=None)
        + usage_chunk(1, 2, "in one with text")
        + b"id: 9\n"
        + usage_chunk(12, 5)
        + b"data: [DONE]\n\n"
        + usage_chunk(12, 5)
        + b": bye\n\n"
    )
    return body.replace(b"\n", newline)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_hiding_equals_leaving_the_event_out_however_it_is_cut(newline: bytes) -> None:
    body = hiding_body(newline)
    expected = strip_usage_events(hiding_body()).replace(b"\n", newline)
    assert b"prompt_filter_results" in expected
    assert expected.count(b'"usage": {') == 1
    rng = random.Random(7)
    cuts = [[body], [bytes([b]) for b in body], *(random_cuts(body, rng) for _ in range(200))]
    for chunks in cuts:
        reader = reader_for(hides_usage=True)
        assert run(reader, chunks) == expected
        assert reader.usage == Usage(input_tokens=12, output_tokens=5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hiding_is_the_same_for_every_cut_and_only_ever_removes(case: AnswerCase) -> None:
    seen = set()
    for chunks in ways_to_cut(case):
        reader = reader_for(
            case.wire_format,
            content_type=case.content_type,
            content_encoding=case.content_encoding,
            hides_usage=True,
        )
        seen.add(run(reader, chunks))
        assert reader.usage.is_known == case.expect["usage_known"] or case.name == BOMB
    assert len(seen) == 1
    (out,) = seen
    if case.content_encoding or case.content_type == "application/json":
        return
    position = 0
    for line in out.splitlines(keepends=True):
        position = case.body.index(line, position) + len(line)


def test_hiding_in_a_single_newline_stream_removes_the_line() -> None:
    body = BY_NAME["openai_sse_single_newline_between_events"].body
    reader = reader_for(hides_usage=True)
    out = run(reader, [body])
    lines = body.splitlines(keepends=True)
    assert out == b"".join(line for line in lines if b'"choices":[]' not in line)


def test_text_events_are_not_held_back_while_hiding() -> None:
    reader = reader_for(hides_usage=True)
    assert reader.feed(b": keep-alive\n\n", end=False) is None
    assert reader.feed(chunk("one"), end=False) is None
    second = chunk("two")
    assert reader.feed(second[:20], end=False) == b""
    assert reader.feed(second[20:], end=False) == second


def test_an_event_larger_than_the_cap_goes_through_and_hiding_goes_on() -> None:
    giant = b'data: {"choices":[],"usage":{"prompt_tokens":1},"a":"' + b"y" * 5_000_000 + b'"}\n\n'
    body = chunk("a") + giant + chunk("b") + usage_chunk(3, 4) + chunk("c")
    expected = chunk("a") + giant + chunk("b") + chunk("c")
    for size in (len(body), 65_536, 1_000_003):
        reader = reader_for(hides_usage=True)
        assert run(reader, [body[i : i + size] for i in range(0, len(body), size)]) == expected
        assert reader.usage == Usage(input_tokens=3, output_tokens=4)


def test_a_line_that_never_ends_costs_linear_time_and_bounded_memory() -> None:
    reader = reader_for()
    piece = b"y" * 65_536
    reader.feed(b'data: {"a":"', end=False)
    started = time.process_time()
    for _ in range(1600):  # 100 MiB
        reader.feed(piece, end=False)
        assert len(reader._sse._buffer) <= 4 * 1024 * 1024 + len(piece)
    assert time.process_time() - started < 5
    reader.feed(b'"}\n\n' + usage_chunk(1, 2), end=True)
    assert reader.usage == Usage(input_tokens=1, output_tokens=2)


def test_much_streamed_text_is_counted_in_bounded_memory() -> None:
    reader = reader_for()
    sentence = "The gateway counted another hundred tokens before lunch. "
    for _ in range(20_000):
        reader.feed(chunk(sentence), end=False)
    held = sum(len(p) for parts in reader._tally._streams.values() for p in parts)
    assert held < 70_000
    exact = count_tokens(sentence * 20_000)
    assert reader.counted_output_tokens() == exact
