"""Bedrock's requests: models in the path, blocks, bodies by family, caps; what is not metered."""

import json
from typing import Any

import pytest

from extproc.core.errors import RequestError
from extproc.providers.anthropic_requests import TOOLS_PROMPT
from extproc.providers.bedrock_counting import (
    AUDIO_BY_ADDRESS,
    VIDEO_BY_ADDRESS,
    VIDEO_TOKENS_PER_SECOND,
)
from extproc.providers.counting import DOCUMENT
from extproc.providers.errors_shape import error_body, error_headers
from extproc.providers.registry import provider_of, read_request, route_at, wire_format_of
from extproc.providers.requests import ReadLimits, RequestFacts, Unmetered
from extproc.providers.tokens import count_tokens

CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
PROFILE = "arn:aws:bedrock:us-east-1:000000000000:application-inference-profile/abc123xyz"
TEXT = "one result after another " * 20
BLOB = "A" * 1_000_000


def read(
    body: dict[str, Any],
    *,
    model: str = CLAUDE,
    action: str = "converse",
    strict: int | None = None,
    prefix: str = "",
) -> RequestFacts:
    facts = read_request(
        f"{prefix}/model/{model}/{action}",
        json.dumps(body).encode(),
        content_type="application/json",
        content_encoding=None,
        limits=ReadLimits(strict_cap_tokens=strict),
    )
    assert isinstance(facts, RequestFacts)
    return facts


def refused(body: dict[str, Any], **where: Any) -> str | None:
    with pytest.raises(RequestError) as caught:
        read(body, **where)
    assert caught.value.status == 400
    return caught.value.param


def converse(*blocks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}], **fields}


def cost(*blocks: dict[str, Any], **fields: Any) -> int:
    """Tokens that the blocks and fields add, before they are scaled."""
    bare = read(converse(), model="openai.gpt-oss-120b-1:0").input_tokens
    return read(converse(*blocks, **fields), model="openai.gpt-oss-120b-1:0").input_tokens - bare


@pytest.mark.parametrize(
    ("path", "wire_format"),
    [
        (f"/model/{CLAUDE}/converse", "bedrock_converse"),
        (f"/bedrock/model/us.{CLAUDE}/Converse-Stream?x=1", "bedrock_converse_stream"),
        (f"/model/{CLAUDE}/invoke", "bedrock_invoke"),
        (f"/model/{PROFILE}/invoke-with-response-stream", "bedrock_invoke_stream"),
        ("/model/amazon.titan-embed-text-v2:0/invoke", "bedrock_embeddings"),
        ("/model/cohere.rerank-v3-5:0/invoke", "bedrock_embeddings"),
        ("/model/converse", None),
        ("/models/x/converse", None),
        ("/x/invoke", None),
        (f"/model/{CLAUDE}/count-tokens", None),
    ],
)
def test_paths(path: str, wire_format: str | None) -> None:
    assert wire_format_of(path) == wire_format
    if wire_format is not None:
        assert provider_of(wire_format) == "bedrock"


@pytest.mark.parametrize(
    "spelled",
    [
        PROFILE,
        PROFILE.replace("/", "%2F"),
        PROFILE.replace("/", "%2f").replace(":", "%3A"),
        PROFILE.replace("/", "%252F").replace(":", "%253A"),
    ],
)
def test_one_arn_is_one_model_however_it_is_spelled(spelled: str) -> None:
    assert read(converse(), model=spelled).model == PROFILE
    assert read(converse(), model=spelled, prefix="/gateway").model == PROFILE


def test_a_model_with_the_name_of_a_segment_is_a_model() -> None:
    assert read(converse(), model="model").model == "model"


@pytest.mark.parametrize(
    ("path", "unmetered"),
    [
        (
            f"/model/{CLAUDE}/count-tokens",
            Unmetered("bedrock_count_tokens", "bedrock_count_tokens", is_free=True),
        ),
        (
            "/model/amazon.nova-sonic-v1:0/invoke-with-bidirectional-stream",
            Unmetered("bedrock_bidirectional", "bedrock_bidirectional"),
        ),
        ("/async-invoke", Unmetered("bedrock_async_invoke", "bedrock_async_invoke")),
        ("/guardrail/abc/version/1/apply", Unmetered("bedrock_guardrail", "bedrock_guardrail")),
        ("/model/count-tokens", Unmetered("unknown_path")),
        ("/x/async-invoke", Unmetered("unknown_path")),
    ],
)
def test_known_and_not_metered(path: str, unmetered: Unmetered) -> None:
    found = read_request(path, b"", content_type=None, content_encoding=None, limits=ReadLimits())
    assert found == unmetered


def test_text_system_tools_and_thoughts_count() -> None:
    text = count_tokens(TEXT)
    assert cost({"text": TEXT}) == text
    assert cost(system=[{"text": TEXT}, {"cachePoint": {"type": "default"}}]) == text
    assert cost({"guardContent": {"text": {"text": TEXT, "qualifiers": ["query"]}}}) == text
    thought = {"reasoningText": {"text": TEXT, "signature": BLOB}}
    assert cost({"reasoningContent": thought}) == text
    result = {"toolUseId": "t1", "status": "success", "content": [{"text": TEXT}]}
    assert cost({"toolResult": result}) == text
    data = {"status": TEXT}
    result = {"toolUseId": "t1", "content": [{"json": data}]}
    compact = json.dumps(data, separators=(",", ":"))
    assert cost({"toolResult": result}) == count_tokens(compact)
    use = {"toolUseId": "t1", "name": "look", "input": {"at": "x"}}
    assert cost({"toolUse": use}) == count_tokens("look") + count_tokens('{"at":"x"}')
    tools = [{"toolSpec": {"name": "look", "inputSchema": {"json": {"type": "object"}}}}]
    compact = json.dumps(tools, separators=(",", ":"))
    assert cost(toolConfig={"tools": tools}) == count_tokens(compact) + TOOLS_PROMPT
    assert cost(promptVariables={"status": {"text": TEXT}}) == text


def test_media_count_flat_and_their_base64_never_as_text() -> None:
    source = {"bytes": BLOB}
    by_address = {"s3Location": {"uri": "s3://bucket/" + "key" * 100}}
    assert cost({"image": {"format": "png", "source": source}}) == 1568
    assert cost({"image": {"format": "png", "source": by_address}}) == 1568
    name = count_tokens("report")
    document: dict[str, Any] = {"format": "pdf", "name": "report", "source": source}
    assert cost({"document": document}) == DOCUMENT + name
    assert cost({"document": document | {"source": {"text": TEXT}}}) == count_tokens(TEXT) + name
    content = {"content": [{"text": TEXT}]}
    assert cost({"document": document | {"source": content}}) == count_tokens(TEXT) + name
    # A megabyte in base64 is six seconds of 1 Mbit a second.
    assert cost({"video": {"format": "mp4", "source": source}}) == 6 * VIDEO_TOKENS_PER_SECOND
    assert cost({"video": {"format": "mp4", "source": by_address}}) == VIDEO_BY_ADDRESS
    assert cost({"audio": {"format": "wav", "source": source}}) == 469
    assert cost({"audio": {"format": "mp3", "source": by_address}}) == AUDIO_BY_ADDRESS
    assert cost({"reasoningContent": {"redactedContent": "A" * 600}}) == 100


def test_counts_are_scaled_as_anthropics_also_where_an_arn_hides_the_model() -> None:
    def factor(model: str) -> int:
        facts = read(converse({"text": TEXT}), model=model)
        plain = cost({"text": TEXT}) + read(converse(), model="openai.gpt").input_tokens
        assert facts.input_tokens == -(-plain * facts.factor_percent // 100)
        return facts.factor_percent

    assert factor(CLAUDE) == factor(PROFILE) == factor("amazon.nova-pro-v1:0") == 115
    assert factor("global.anthropic.claude-opus-4-7-20260101-v1:0") == 150
    assert factor("openai.gpt-oss-120b-1:0") == 100


def test_converse_reads_its_cap_and_those_that_go_to_the_model_as_they_are() -> None:
    assert read(converse()).output_cap_tokens is None
    assert read(converse(inferenceConfig={"maxTokens": 7})).output_cap_tokens == 7
    more = {"max_tokens": 9000, "thinking": {"budget_tokens": 4}}
    body = converse(inferenceConfig={"maxTokens": 7}, additionalModelRequestFields=more)
    assert read(body).output_cap_tokens == 9000
    assert read({}).output_cap_tokens is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "messages[0].content"),
        (converse(system="be nice"), "system"),
        (converse(toolConfig=[]), "toolConfig"),
        (converse(toolConfig={"tools": {}}), "toolConfig.tools"),
        (converse(inferenceConfig=5), "inferenceConfig"),
        (converse(inferenceConfig={"maxTokens": "5"}), "inferenceConfig.maxTokens"),
        (converse(inferenceConfig={"maxTokens": 0}), "inferenceConfig.maxTokens"),
        (converse(promptVariables=[]), "promptVariables"),
        (
            converse(additionalModelRequestFields={"max_tokens": True}),
            "additionalModelRequestFields.max_tokens",
        ),
    ],
)
def test_what_is_wrong_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    assert refused(body) == param


def test_a_model_that_is_too_long_is_refused() -> None:
    assert refused(converse(), model="x" * 300) == "model"


def test_anthropics_body_is_read_as_messages() -> None:
    body = {
        "anthropic_version": "bedrock-2023-05-31",
        "max_tokens": 33,
        "system": TEXT,
        "messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}],
    }
    for model in (CLAUDE, PROFILE):
        facts = read(body, model=model, action="invoke-with-response-stream")
        assert (facts.model, facts.stream) == (model, True)
        assert facts.wire_format == "bedrock_invoke_stream"
        assert facts.output_cap_tokens == 33
        assert facts.input_tokens == -(-(2 * count_tokens(TEXT) + 4) * 115 // 100)
    assert refused(body | {"max_tokens": "1"}, action="invoke") == "max_tokens"
    legacy = {"prompt": TEXT, "max_tokens_to_sample": 5}
    assert read(legacy, action="invoke", model="anthropic.claude-v2").output_cap_tokens == 5


FAMILIES = [
    (
        "amazon.titan-text-express-v1",
        {"inputText": TEXT},
        ("textGenerationConfig", "maxTokenCount"),
    ),
    (
        "us.amazon.nova-pro-v1:0",
        {
            "schemaVersion": "messages-v1",
            "messages": [{"role": "user", "content": [{"text": TEXT}]}],
        },
        ("inferenceConfig", "maxTokens"),
    ),
    ("meta.llama3-70b-instruct-v1:0", {"prompt": TEXT, "images": [BLOB]}, ("max_gen_len",)),
    ("mistral.mistral-7b-instruct-v0:2", {"prompt": TEXT, "stop": [TEXT]}, ("max_tokens",)),
    ("cohere.command-r-v1:0", {"message": TEXT, "chat_history": []}, ("max_tokens",)),
    ("ai21.jamba-1-5-large-v1:0", {"messages": [{"content": TEXT}]}, ("max_tokens",)),
    ("ai21.j2-ultra-v1", {"prompt": TEXT, "countPenalty": {"scale": 0}}, ("maxTokens",)),
    ("deepseek.r1-v1:0", {"prompt": TEXT}, ("max_tokens",)),
    ("openai.gpt-oss-20b-1:0", {"messages": [{"content": TEXT}]}, ("max_completion_tokens",)),
]


def nested(path: tuple[str, ...], number: object) -> dict[str, Any]:
    value: Any = number
    for name in reversed(path):
        value = {name: value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize(("model", "body", "path"), FAMILIES, ids=[row[0] for row in FAMILIES])
def test_each_familys_text_is_counted_its_cap_read_and_written(
    model: str, body: dict[str, Any], path: tuple[str, ...]
) -> None:
    facts = read(body, model=model, action="invoke")
    scale = facts.factor_percent
    assert count_tokens(TEXT) * scale // 100 <= facts.input_tokens
    pictures = 1568 if "images" in body else 0
    assert facts.input_tokens <= (count_tokens(TEXT) + pictures + 8) * scale // 100 + 1
    assert facts.output_cap_tokens is None
    assert read(body | nested(path, 44), model=model, action="invoke").output_cap_tokens == 44
    assert refused(body | nested(path, -1), model=model, action="invoke") == ".".join(path)
    strict = read(body, model=model, action="invoke", strict=20)
    assert strict.output_cap_tokens == 20
    assert json.loads(strict.new_body or b"") == body | nested(path, 20)


def test_several_answers_are_reserved_for() -> None:
    body = {"prompt": "x", "max_tokens": 10, "num_generations": 3}
    facts = read(body, model="cohere.command-text-v14", action="invoke")
    assert (facts.choices, facts.output_cap_tokens) == (3, 30)


def test_an_unknown_family_counts_all_its_text_and_knows_all_names_of_caps() -> None:
    body = {"inputPrompt": TEXT, "deep": [{"er": TEXT}], "temperature": 1, "max_gen_len": 5}
    facts = read(body | {"maxTokens": 9}, model=PROFILE, action="invoke", strict=20)
    assert facts.input_tokens == -(-2 * count_tokens(TEXT) * 115 // 100)
    assert (facts.output_cap_tokens, facts.new_body) == (9, None)
    # Where strict mode should write a cap is not known.
    facts = read({"inputPrompt": TEXT}, model=PROFILE, action="invoke", strict=20)
    assert (facts.output_cap_tokens, facts.new_body) == (None, None)


def test_documents_count_with_the_names_of_their_members() -> None:
    documents = [{"status": TEXT, "id": TEXT}]
    facts = read({"documents": documents}, model=PROFILE, action="invoke")
    assert facts.input_tokens >= 2 * count_tokens(TEXT)


@pytest.mark.parametrize(
    ("model", "body"),
    [
        ("amazon.titan-embed-text-v2:0", {"inputText": TEXT}),
        ("cohere.embed-v4:0", {"texts": [TEXT], "input_type": "search_query"}),
        ("stability.sd3-5-large-v1:0", {"prompt": TEXT}),
        ("amazon.nova-canvas-v1:0", {"textToImageParams": {"text": TEXT}}),
    ],
)
def test_vectors_and_pictures_have_no_output_tokens(model: str, body: dict[str, Any]) -> None:
    facts = read(body, model=model, action="invoke", strict=20)
    assert (facts.output_cap_tokens, facts.new_body) == (0, None)
    assert facts.input_tokens == -(-count_tokens(TEXT) * 115 // 100)


def test_strict_mode_writes_converses_cap_where_it_belongs() -> None:
    facts = read(converse(inferenceConfig={"temperature": 0.5}), strict=20)
    body = json.loads(facts.new_body or b"")
    assert body["inferenceConfig"] == {"maxTokens": 20, "temperature": 0.5}
    assert not facts.hides_usage
    assert json.loads(read(converse(), strict=20).new_body or b"")["inferenceConfig"] == {
        "maxTokens": 20
    }
    assert read(converse(inferenceConfig={"maxTokens": 5}), strict=20).new_body is None


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (400, "ValidationException"),
        (401, "AccessDeniedException"),
        (403, "AccessDeniedException"),
        (404, "ResourceNotFoundException"),
        (413, "ValidationException"),
        (429, "ThrottlingException"),
        (500, "InternalServerException"),
        (503, "ServiceUnavailableException"),
    ],
)
def test_errors_are_aws_exceptions(status: int, word: str) -> None:
    for path in (f"/model/{CLAUDE}/converse", f"/model/{CLAUDE}/count-tokens", "bedrock_invoke"):
        raw = error_body(path, status=status, code="x", message="slow down", param="n")
        assert json.loads(raw) == {"__type": word, "message": "slow down"}
        assert error_headers(path, status=status) == {"x-amzn-errortype": word}
    assert error_headers("/v1/chat/completions", status=status) == {}


def test_every_route_of_bedrock_answers_in_its_shape() -> None:
    for path in (
        "/async-invoke",
        "/guardrail/abc/version/1/apply",
        f"/model/{CLAUDE}/invoke-with-bidirectional-stream",
    ):
        route = route_at(path)
        assert route is not None
        assert route.provider == "bedrock"
