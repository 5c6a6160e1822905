"""Bedrock's answers: usage with its cache, text by family, exceptions, what bytes do not tell."""

import json
from typing import Any

import pytest

from extproc.core.usage import Usage
from extproc.providers.answers import AnswerReader, answer_reader
from extproc.providers.aws_eventstream import CONTENT_TYPE
from extproc.providers.tokens import count_tokens
from tests.unit.event_streams import chunk, event, message

TEXT = "The quick brown fox jumps over the lazy dog"
OWN = count_tokens(TEXT)
METRICS = "amazon-bedrock-invocationMetrics"


def reader_of(body: bytes | dict[str, Any], name: str, *, labelled: bool = True) -> AnswerReader:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    content_type = "application/json" if isinstance(body, dict) else CONTENT_TYPE
    readers = []
    for step in (len(raw) or 1, 7):
        reader = answer_reader(
            name,
            content_type=content_type if labelled else None,
            content_encoding=None,
            hides_usage=False,
            encoding="o200k_base",
            factor_percent=100,
        )
        pieces = [raw[at : at + step] for at in range(0, len(raw), step)] or [b""]
        for index, piece in enumerate(pieces):
            assert reader.feed(piece, end=index == len(pieces) - 1) is None
        readers.append(reader)
    assert facts_of(readers[0]) == facts_of(readers[1])
    return readers[0]


def usage_with_headers(name: str, body: bytes, **counts: str) -> Usage:
    """What an answer reports. ``counts`` are AWS's: input, output."""
    headers = {f"x-amzn-bedrock-{side}-token-count": count for side, count in counts.items()}
    reader = answer_reader(
        name,
        content_type="application/json",
        content_encoding=None,
        hides_usage=False,
        encoding="o200k_base",
        header=lambda name: headers.get(name, ""),
    )
    reader.feed(body, end=True)
    return reader.usage


def test_awss_headers_fill_what_the_body_of_invoke_model_does_not_tell() -> None:
    said = b'{"outputs": [{"text": "Hello"}]}'
    told = Usage(input_tokens=9, output_tokens=4)
    assert usage_with_headers("bedrock_invoke", said, input="9", output="4") == told
    own = b'{"generation": "Hello", "prompt_token_count": 7, "generation_token_count": 2}'
    assert usage_with_headers("bedrock_invoke", own, input="9", output="4") == Usage(
        input_tokens=7, output_tokens=2
    )
    vectors = b'{"embeddings": [[0.5]], "response_type": "embeddings_floats"}'
    assert usage_with_headers("bedrock_embeddings", vectors, input="9", output="0") == Usage(
        input_tokens=9, output_tokens=0
    )
    for wrong in ("", "-9", "9.5", "0", "9" * 17, "nine"):
        usage = usage_with_headers("bedrock_invoke", said, input=wrong, output=wrong)
        assert usage == Usage()
        assert not usage_with_headers("bedrock_embeddings", vectors, input=wrong).is_known
    assert usage_with_headers("bedrock_converse", b"{}", input="9", output="4") == Usage()


def facts_of(reader: AnswerReader) -> tuple[object, ...]:
    counted = reader.counted_output_tokens()
    return (reader.usage, counted, reader.saw_output, reader.error, reader.unread, reader.complete)


def converse(*blocks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    content = {"message": {"role": "assistant", "content": list(blocks)}}
    return {"output": content, "stopReason": "end_turn", **fields}


def stream(*deltas: dict[str, Any], stops: bool = True) -> bytes:
    body = event("messageStart", {"role": "assistant"})
    for index, delta in enumerate(deltas):
        body += event("contentBlockDelta", {"contentBlockIndex": index, "delta": delta})
    return body + (event("messageStop", {"stopReason": "end_turn"}) if stops else b"")


def usage(**numbers: Any) -> dict[str, Any]:
    return {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15, **numbers}


def test_the_input_is_the_sum_with_the_cache_and_writes_are_told_by_lifetime() -> None:
    report = usage(
        cacheReadInputTokens=100,
        cacheWriteInputTokens=20,
        cacheDetails=[{"ttl": "1h", "inputTokens": 15}, {"ttl": "5m", "inputTokens": 5}],
    )
    expected = Usage(
        input_tokens=130,
        output_tokens=5,
        cached_input_tokens=100,
        cache_write_tokens=20,
        cache_write_1h_tokens=15,
        cache_write_5m_tokens=5,
    )
    reader = reader_of(converse({"text": TEXT}, usage=report), "bedrock_converse")
    assert reader.usage == expected
    assert reader.complete
    reader = reader_of(
        stream({"text": TEXT}) + event("metadata", {"usage": report}), "bedrock_converse_stream"
    )
    assert reader.usage == expected
    assert reader.complete


def test_a_cache_that_is_repeated_is_taken_once() -> None:
    metadata = event("metadata", {"usage": usage(cacheWriteInputTokens=3978)})
    reader = reader_of(stream({"text": TEXT}) + metadata * 2, "bedrock_converse_stream")
    assert reader.usage.input_tokens == 3988
    assert reader.usage.cache_write_tokens == 3978


def test_zero_for_what_was_produced_is_a_placeholder() -> None:
    report = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
    reader = reader_of(converse({"text": TEXT}, usage=report), "bedrock_converse")
    assert (reader.usage.input_tokens, reader.usage.output_tokens) == (None, None)
    assert reader.counted_output_tokens() == OWN


def test_a_stream_that_is_cut_counts_all_its_text() -> None:
    start = {"start": {"toolUse": {"toolUseId": "t", "name": "look"}}, "contentBlockIndex": 9}
    body = stream(
        {"text": TEXT},
        {"reasoningContent": {"text": TEXT}},
        {"toolUse": {"input": TEXT}},
        {"reasoningContent": {"signature": "A" * 100}},
        stops=False,
    )
    reader = reader_of(body + event("contentBlockStart", start), "bedrock_converse_stream")
    assert reader.usage == Usage()
    assert reader.counted_output_tokens() == 3 * OWN + count_tokens("look")
    assert reader.saw_output
    assert not reader.complete
    assert not reader.error
    assert not reader.unread


def test_a_whole_answer_counts_its_blocks() -> None:
    blocks: list[dict[str, Any]] = [
        {"reasoningContent": {"reasoningText": {"text": TEXT, "signature": "A" * 99}}},
        {"toolUse": {"toolUseId": "t", "name": "look", "input": {"at": TEXT}}},
        {"citationsContent": {"content": [{"text": TEXT}], "citations": [{"title": TEXT}]}},
    ]
    reader = reader_of(converse(*blocks), "bedrock_converse")
    use = count_tokens("look") + count_tokens(f'{{"at":"{TEXT}"}}')
    assert reader.counted_output_tokens() == 2 * OWN + use


def test_pictures_and_sealed_thoughts_without_usage_are_unread() -> None:
    picture = {"image": {"format": "png", "source": {"bytes": "AAAA"}}}
    for block in (picture, {"reasoningContent": {"redactedContent": "AAAA"}}):
        for body, name in (
            (converse(block), "bedrock_converse"),
            (stream(block), "bedrock_converse_stream"),
        ):
            reader = reader_of(body, name)
            assert reader.saw_output
            assert reader.unread
    assert not reader_of(converse(picture, usage=usage()), "bedrock_converse").unread


def test_the_routed_model_is_the_one_that_answered() -> None:
    trace = {"promptRouter": {"invokedModelId": "arn:model"}}
    reader = reader_of(converse({"text": TEXT}, trace=trace), "bedrock_converse")
    assert reader.response_model == "arn:model"


@pytest.mark.parametrize("name", ["bedrock_converse_stream", "bedrock_invoke_stream"])
def test_exceptions_in_a_stream_are_errors(name: str) -> None:
    thrown = event("modelStreamErrorException", {"message": "broken"}, kind="exception")
    failed = message(b"", {":message-type": "error", ":error-code": "500"})
    for body in (thrown, failed):
        reader = reader_of(body, name)
        assert reader.error
        assert not reader.saw_output
    text = stream({"text": TEXT}, stops=False) if "converse" in name else chunk({"text": TEXT})
    reader = reader_of(text + thrown, name)
    assert reader.error
    assert reader.counted_output_tokens() == OWN


def test_a_service_that_does_not_know_the_operation_is_an_error() -> None:
    body = {"Output": {"__type": "com.amazon.coral.service#UnknownOperationException"}}
    for name in ("bedrock_converse", "bedrock_invoke"):
        reader = reader_of(body, name)
        assert reader.error
        assert not reader.saw_output


@pytest.mark.parametrize("name", ["bedrock_converse_stream", "bedrock_invoke_stream"])
def test_a_broken_message_keeps_the_reserve_but_usage_behind_it_counts(name: str) -> None:
    if "converse" in name:
        text, end = stream({"text": TEXT}), event("metadata", {"usage": usage()})
    else:
        text = chunk({"generation": TEXT})
        end = chunk({"generation": "", METRICS: {"inputTokenCount": 10, "outputTokenCount": 5}})
    broken = text[:-1] + bytes([text[-1] ^ 1])
    assert reader_of(broken, name).unread
    reader = reader_of(broken + end, name)
    assert (reader.usage.input_tokens, reader.usage.output_tokens) == (10, 5)


def test_streams_are_known_without_their_content_type() -> None:
    body = stream({"text": TEXT}) + event("metadata", {"usage": usage()})
    reader = reader_of(body, "bedrock_converse_stream", labelled=False)
    assert reader.usage.is_known


TITAN = {"inputTextTokenCount": 11, "results": [{"tokenCount": 6, "outputText": TEXT}]}
LLAMA = {"generation": TEXT, "prompt_token_count": 11, "generation_token_count": 6}
NOVA = converse({"text": TEXT}, usage={"inputTokens": 11, "outputTokens": 6})
CLAUDE = {
    "type": "message",
    "id": "msg_bdrk_1",
    "model": "claude",
    "content": [{"type": "text", "text": TEXT}],
    "usage": {"input_tokens": 5, "output_tokens": 6, "cache_read_input_tokens": 6},
}
JAMBA = {
    "choices": [{"index": 0, "message": {"content": TEXT}}],
    "usage": {"prompt_tokens": 11, "completion_tokens": 6, "total_tokens": 17},
}
COHERE = {"text": TEXT, "meta": {"billed_units": {"input_tokens": 11, "output_tokens": 6}}}


@pytest.mark.parametrize("body", [TITAN, LLAMA, NOVA, CLAUDE, JAMBA, COHERE])
def test_usage_in_the_body_of_each_family(body: dict[str, Any]) -> None:
    reader = reader_of(body, "bedrock_invoke")
    assert (reader.usage.input_tokens, reader.usage.output_tokens) == (11, 6)
    assert reader.saw_output
    assert reader.complete
    assert not reader.unread


@pytest.mark.parametrize(
    "body",
    [
        {"outputs": [{"text": TEXT, "stop_reason": "stop"}]},
        {"generations": [{"id": "1", "text": TEXT}], "prompt": TEXT},
        {"text": TEXT, "chat_history": [{"role": "USER", "message": TEXT}]},
        {"completions": [{"data": {"text": TEXT, "tokens": []}}], "prompt": {"text": TEXT}},
        {"completion": TEXT, "stop_reason": "stop_sequence"},
        {"choices": [{"text": TEXT, "stop_reason": "stop"}]},
        {"choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT}}]},
    ],
)
def test_families_without_usage_are_counted(body: dict[str, Any]) -> None:
    reader = reader_of(body, "bedrock_invoke")
    assert not reader.usage.is_known
    assert reader.counted_output_tokens() == OWN
    assert reader.saw_output


def test_tool_calls_of_cohere_count() -> None:
    call = {"name": "look", "parameters": {"at": "x"}}
    reader = reader_of({"text": "", "tool_calls": [call]}, "bedrock_invoke")
    compact = json.dumps(call, separators=(",", ":"))
    assert reader.counted_output_tokens() == count_tokens(compact)


FAMILY_STREAMS: dict[str, list[dict[str, Any]]] = {
    "claude": [
        {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 0}}},
        {"type": "content_block_delta", "index": 0, "delta": {"text": TEXT}},
        {"type": "message_stop"},
    ],
    "titan": [{"outputText": TEXT, "index": 0}, {"outputText": "", "completionReason": "FINISH"}],
    "llama": [{"generation": TEXT, "stop_reason": None}, {"generation": ""}],
    "mistral": [{"outputs": [{"text": TEXT, "stop_reason": None}]}, {"outputs": []}],
    "cohere": [
        {"event_type": "text-generation", "text": TEXT, "is_finished": False},
        {"event_type": "stream-end", "is_finished": True, "response": {"text": TEXT}},
    ],
    "nova": [
        {"messageStart": {"role": "assistant"}},
        {"contentBlockDelta": {"delta": {"text": TEXT}, "contentBlockIndex": 0}},
        {"messageStop": {"stopReason": "end_turn"}},
    ],
    "jamba": [{"choices": [{"index": 0, "delta": {"content": TEXT}}]}, {"choices": []}],
}


@pytest.mark.parametrize("family", FAMILY_STREAMS)
def test_a_familys_stream_is_counted_and_the_metrics_are_its_usage(family: str) -> None:
    events = FAMILY_STREAMS[family]
    cut = reader_of(b"".join(chunk(value) for value in events), "bedrock_invoke_stream")
    assert not cut.usage.is_known
    assert cut.counted_output_tokens() == OWN
    metrics = {"inputTokenCount": 11, "outputTokenCount": 6, "invocationLatency": 5}
    body = b"".join(chunk(value) for value in [*events[:-1], events[-1] | {METRICS: metrics}])
    reader = reader_of(body, "bedrock_invoke_stream")
    assert (reader.usage.input_tokens, reader.usage.output_tokens) == (11, 6)
    assert reader.counted_output_tokens() == 6
    assert reader.complete
    assert not reader.unread
    assert not reader.error


@pytest.mark.parametrize("in_metrics", [{}, {"cacheReadInputTokenCount": 30}])
def test_metrics_never_lose_the_cache_that_the_model_told(in_metrics: dict[str, int]) -> None:
    told = {"input_tokens": 10, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 2}
    metrics = {"inputTokenCount": 10, "outputTokenCount": 6, **in_metrics}
    body = chunk({"type": "message_start", "message": {"usage": told}})
    body += chunk({"type": "message_stop", METRICS: metrics})
    reader = reader_of(body, "bedrock_invoke_stream")
    assert reader.usage == Usage(
        input_tokens=42, output_tokens=6, cached_input_tokens=30, cache_write_tokens=2
    )


def test_metrics_of_zero_for_what_was_produced_are_placeholders() -> None:
    metrics = {"inputTokenCount": 0, "outputTokenCount": 0}
    reader = reader_of(chunk({"generation": TEXT, METRICS: metrics}), "bedrock_invoke_stream")
    assert (reader.usage.input_tokens, reader.usage.output_tokens) == (None, None)
    assert reader.counted_output_tokens() == OWN


@pytest.mark.parametrize("data", ["%%%", "A", "bm8ganNvbg==", 5, None])
def test_an_event_that_cannot_be_unpacked_is_unread(data: object) -> None:
    reader = reader_of(event("chunk", {"bytes": data}), "bedrock_invoke_stream")
    assert reader.unread
    assert reader.saw_output


@pytest.mark.parametrize(
    ("body", "input_tokens"),
    [
        ({"embedding": [0.1], "inputTextTokenCount": 8}, 8),
        ({"embeddings": [[0.1]], "id": "x"}, None),
        ({"embeddingsByType": {"float": [0.1]}, "inputTextTokenCount": 8}, 8),
        ({"results": [{"index": 0, "relevance_score": 0.5}]}, None),
    ],
)
def test_vectors_and_scores_have_no_output(body: dict[str, Any], input_tokens: int | None) -> None:
    for name in ("bedrock_embeddings", "bedrock_invoke"):
        reader = reader_of(body, name)
        assert reader.usage.input_tokens == input_tokens
        assert reader.usage.output_tokens == (None if input_tokens is None else 0)
        assert reader.counted_output_tokens() == 0
        assert reader.saw_output
        assert not reader.unread


def test_pictures_keep_their_reserve() -> None:
    reader = reader_of({"images": ["AAAA"]}, "bedrock_invoke")
    assert reader.unread
    assert reader.saw_output
    assert reader.counted_output_tokens() == 0


def test_names_of_the_answer_are_kept() -> None:
    reader = reader_of(CLAUDE, "bedrock_invoke")
    assert (reader.response_id, reader.response_model) == ("msg_bdrk_1", "claude")


def test_an_error_in_json_is_an_error() -> None:
    for body in ({"error": {"message": "x"}}, {"type": "error", "error": {"message": "x"}}):
        assert reader_of(body, "bedrock_invoke").error
