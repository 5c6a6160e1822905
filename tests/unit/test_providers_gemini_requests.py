"""Google's requests: paths, both spellings, caps, counts, media."""

import base64
import json
from typing import Any

import pytest

from extproc.core.errors import RequestError
from extproc.providers.errors_shape import error_body
from extproc.providers.formats.gemini import GEMINI
from extproc.providers.gemini_media import AUDIO_PER_SECOND, CACHED_CONTENT, PER_CONTENT
from extproc.providers.registry import provider_of, read_request, route_at
from extproc.providers.requests import ReadLimits, RequestFacts, Unmetered
from extproc.providers.tokens import count_tokens

GENERATE = "/v1beta/models/gemini-2.5-pro:generateContent"
STREAM = "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse"
EMBED = "/v1beta/models/gemini-embedding-001:embedContent"
BATCH_EMBED = "/v1beta/models/gemini-embedding-001:batchEmbedContents"
PROJECT = "/v1/projects/p/locations/us-central1"
CLAUDE = PROJECT + "/publishers/anthropic/models/claude-sonnet-4-5@20250929"
CONTENTS = [{"role": "user", "parts": [{"text": "Say hi"}]}]


def read(path: str, body: object, *, cap: int | None = None) -> RequestFacts:
    facts = read_request(
        path,
        body.encode() if isinstance(body, str) else json.dumps(body).encode(),
        content_type="application/json",
        content_encoding=None,
        limits=ReadLimits(strict_cap_tokens=cap),
    )
    assert isinstance(facts, RequestFacts)
    return facts


def refused(path: str, body: object) -> tuple[str, str | None]:
    with pytest.raises(RequestError) as caught:
        read(path, body)
    assert caught.value.status == 400
    return caught.value.code, caught.value.param


def generate(**fields: object) -> dict[str, object]:
    return {"contents": CONTENTS, **fields}


def cost(*parts: object, path: str = GENERATE, **fields: object) -> int:
    """What these parts add to a request without any."""
    empty = read(path, {"contents": [{"parts": []}], **fields}).input_tokens
    return read(path, {"contents": [{"parts": list(parts)}], **fields}).input_tokens - empty


@pytest.mark.parametrize(
    ("path", "name", "provider"),
    [
        (GENERATE, "gemini", "gemini"),
        ("/v1beta/models/x%3AgenerateContent", "gemini", "gemini"),
        ("/v1beta/tunedModels/x:generateContent", "gemini", "gemini"),
        ("/V1BETA/MODELS/X:STREAMGENERATECONTENT", "gemini", "gemini"),
        (EMBED, "gemini_embeddings", "gemini"),
        (BATCH_EMBED, "gemini_embeddings", "gemini"),
        ("/v1beta/openai/chat/completions", "gemini_openai_chat", "gemini"),
        ("/v1beta/openai/embeddings", "gemini_openai_embeddings", "gemini"),
        ("/v1beta/openai/images/generations", "gemini_openai_images", "gemini"),
        ("/v1beta/openai/completions", "openai_completions", "openai"),
        ("/v1/openai/chat/completions", "openai_chat", "openai"),
        (PROJECT + "/publishers/google/models/m:generateContent", "vertex_gemini", "vertex"),
        ("/v1/publishers/google/models/m:streamGenerateContent", "vertex_gemini", "vertex"),
        (PROJECT + "/endpoints/123:generateContent", "vertex_gemini", "vertex"),
        (PROJECT + "/publishers/google/models/m:embedContent", "vertex_embeddings", "vertex"),
        (
            PROJECT + "/publishers/google/models/text-embedding-005:predict",
            "vertex_embeddings_predict",
            "vertex",
        ),
        (CLAUDE + ":rawPredict", "vertex_anthropic_messages", "vertex"),
        (CLAUDE + ":streamRawPredict", "vertex_anthropic_messages", "vertex"),
        (PROJECT + "/endpoints/openapi/chat/completions", "vertex_openai_chat", "vertex"),
        (PROJECT + "/endpoints/openapi/embeddings", "vertex_openai_embeddings", "vertex"),
    ],
)
def test_paths(path: str, name: str, provider: str) -> None:
    route = route_at(path)
    assert route is not None
    assert (route.name, provider_of(name)) == (name, provider)


@pytest.mark.parametrize(
    ("path", "name", "is_free"),
    [
        ("/v1beta/models/m:countTokens", "gemini_count_tokens", True),
        (PROJECT + "/publishers/google/models/m:countTokens", "vertex_count_tokens", True),
        (PROJECT + "/publishers/google/models/m:computeTokens", "vertex_count_tokens", True),
        (
            PROJECT + "/publishers/anthropic/models/count-tokens:rawPredict",
            "vertex_anthropic_count_tokens",
            True,
        ),
        ("/v1beta/models/m:batchGenerateContent", "gemini_batches", False),
        (PROJECT + "/batchPredictionJobs", "vertex_batches", False),
        ("/v1beta/cachedContents", "gemini_caches", False),
        ("/v1beta/interactions", "gemini_interactions", False),
        (
            "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent",
            "gemini_live",
            False,
        ),
        (PROJECT + "/publishers/google/models/imagen-4:predict", "vertex_predict", False),
        (
            PROJECT + "/publishers/google/models/multimodalembedding:predict",
            "vertex_predict",
            False,
        ),
        ("/v1beta/models/veo-3:predictLongRunning", "gemini_predict", False),
        (PROJECT + "/publishers/mistralai/models/m:rawPredict", "vertex_raw_predict", False),
    ],
)
def test_paths_that_are_known_and_not_metered(path: str, name: str, *, is_free: bool) -> None:
    facts = read_request(path, b"", content_type=None, content_encoding=None, limits=ReadLimits())
    assert facts == Unmetered(name, wire_format=name, is_free=is_free)


def test_a_verb_without_a_model_is_not_known() -> None:
    assert route_at("/v1internal:generateContent") is None
    assert route_at("/v1beta/generateContent") is None
    assert refused("/v1beta/models/:generateContent", generate()) == ("invalid_value", "model")


def test_model_and_stream_come_from_the_path_alone() -> None:
    body = generate(model="models/other", stream=False)
    facts = read(STREAM, body)
    assert (facts.model, facts.stream, facts.wire_format) == ("gemini-2.5-pro", True, "gemini")
    assert not read(GENERATE, generate(stream=True)).stream
    slash = "/v1beta/models/vendor/Name-1:generateContent"
    assert read(slash, generate()).model == "vendor/Name-1"
    vertex = PROJECT + "/publishers/google/models/gemini-2.5-pro:streamGenerateContent"
    facts = read(vertex, generate())
    assert (facts.model, facts.stream, facts.wire_format) == (
        "gemini-2.5-pro",
        True,
        "vertex_gemini",
    )


def test_a_content_costs_its_text_and_one() -> None:
    assert read(GENERATE, generate()).input_tokens == count_tokens("Say hi") + PER_CONTENT
    one = {"parts": {"text": "Say hi"}}  # Google takes an object for a list of one
    assert read(GENERATE, {"contents": one}).input_tokens == 3
    assert read(GENERATE, {"contents": [one, one]}).input_tokens == 6


@pytest.mark.parametrize(
    ("name", "value", "added"),
    [
        ("systemInstruction", {"parts": [{"text": "Be brief."}]}, "Be brief."),
        ("generationConfig", {"responseSchema": {"type": "STRING"}}, '{"type":"STRING"}'),
        ("generationConfig", {"responseJsonSchema": {"type": "string"}}, '{"type":"string"}'),
    ],
)
def test_every_field_counts_in_both_spellings(name: str, value: Any, added: str) -> None:
    def snaked(field: str) -> str:
        return "".join("_" + c.lower() if c.isupper() else c for c in field)

    plain = read(GENERATE, generate()).input_tokens
    more = count_tokens(added) + (PER_CONTENT if name == "systemInstruction" else 0)
    assert read(GENERATE, generate(**{name: value})).input_tokens == plain + more
    inner = {snaked(key): item for key, item in value.items()}
    assert read(GENERATE, generate(**{snaked(name): inner})).input_tokens == plain + more


def test_tools_and_calls_count_as_compact_json() -> None:
    tools = [{"functionDeclarations": [{"name": "look", "parameters": {"type": "OBJECT"}}]}]
    compact = json.dumps(tools, separators=(",", ":"))
    plain = read(GENERATE, generate()).input_tokens
    assert read(GENERATE, generate(tools=tools)).input_tokens == plain + count_tokens(compact)
    call = {"id": "1", "name": "look", "args": {"at": "sea"}}
    expected = count_tokens("look") + count_tokens('{"at":"sea"}')
    assert cost({"functionCall": call, "thoughtSignature": "A" * 5000}) == expected
    assert cost({"function_call": call}) == expected
    answer = {"name": "look", "response": {"at": "sea"}, "parts": [{"inlineData": {"data": "A"}}]}
    assert cost({"functionResponse": answer}) == expected + 1032
    assert cost({"executableCode": {"code": "print(1)"}}) == count_tokens("print(1)")


def test_a_cached_content_is_taken_for_the_least_that_can_be_cached() -> None:
    plain = read(GENERATE, generate()).input_tokens
    for name in ("cachedContent", "cached_content"):
        cached = read(GENERATE, generate(**{name: "cachedContents/abc"}))
        assert cached.input_tokens == plain + CACHED_CONTENT


def blob(mime_type: str, size: int = 4000) -> dict[str, object]:
    return {"inlineData": {"mimeType": mime_type, "data": "A" * size}}


GEMINI_3 = "/v1beta/models/gemini-3-pro-preview:generateContent"


@pytest.mark.parametrize(
    ("part", "path", "tokens"),
    [
        (blob("image/png", 4_000_000), GENERATE, 1032),
        (blob("image/png"), GEMINI_3, 1120),
        (blob("image/png"), "/v1/projects/p/locations/l/endpoints/1:generateContent", 1120),
        ({"inline_data": {"mime_type": "image/png", "data": "A"}}, GENERATE, 1032),
        ({"fileData": {"mimeType": "image/png", "fileUri": "gs://x"}}, GENERATE, 1032),
        (blob("audio/wav", 213_330), GENERATE, 10 * AUDIO_PER_SECOND),
        (blob("audio/mp3", 53_330), GENERATE, 10 * AUDIO_PER_SECOND),
        ({"file_data": {"mime_type": "audio/mp3"}}, GENERATE, 60 * AUDIO_PER_SECOND),
        (blob("video/mp4", 833_330), GENERATE, 10 * (258 + AUDIO_PER_SECOND)),
        (blob("video/mp4", 833_330), GEMINI_3, 10 * (70 + AUDIO_PER_SECOND)),
        (blob("application/pdf", 400_000), GENERATE, 10 * 258),
        (blob("application/pdf", 100), GEMINI_3, 560),
        ({"fileData": {"mimeType": "application/pdf"}}, GENERATE, 10 * 258),
        ({"fileData": {"mimeType": "text/plain"}}, GENERATE, 3000),
    ],
)
def test_media_cost_by_the_published_rules(part: object, path: str, tokens: int) -> None:
    assert cost(part, path=path) == tokens


def test_the_levels_of_resolution() -> None:
    def config(level: str) -> dict[str, object]:
        return {"mediaResolution": "MEDIA_RESOLUTION_" + level}

    image = blob("image/png")
    assert cost(image, generationConfig=config("LOW")) == 64
    assert cost(image, path=GEMINI_3, generationConfig=config("LOW")) == 280
    # A part's own level goes before the request's.
    own = {**image, "mediaResolution": {"level": "MEDIA_RESOLUTION_ULTRA_HIGH"}}
    assert cost(own, path=GEMINI_3, generationConfig=config("LOW")) == 2240
    assert cost(image, path=GEMINI_3, generationConfig=config("NEW")) == 1120


def test_text_in_base64_counts_as_the_text_that_it_is() -> None:
    text = "The quick brown fox? Ähm, größer ÿÿÿ>>>???"
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        data = encode(text.encode()).decode()
        part = {"inlineData": {"mimeType": "text/plain", "data": data.rstrip("=")}}
        assert cost(part) == count_tokens(text)
    assert cost({"inlineData": {"mimeType": "text/plain", "data": "no base64"}}) > 0


@pytest.mark.parametrize("value", [256, 256.0, "256"])
@pytest.mark.parametrize(
    ("outer", "inner"),
    [("generationConfig", "maxOutputTokens"), ("generation_config", "max_output_tokens")],
)
def test_the_cap_is_read_as_google_reads_it(value: object, outer: str, inner: str) -> None:
    assert read(GENERATE, generate(**{outer: {inner: value}})).output_cap_tokens == 256


def test_candidates_multiply_the_cap() -> None:
    facts = read(GENERATE, generate(generationConfig={"candidateCount": 3, "maxOutputTokens": 5}))
    assert (facts.choices, facts.output_cap_tokens) == (3, 15)
    assert read(GENERATE, generate()).output_cap_tokens is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"contents": None}, "contents"),
        ({"contents": "Say hi"}, "contents"),
        ({"contents": [CONTENTS[0], 3]}, "contents[1]"),
        ({"systemInstruction": "Be brief."}, "systemInstruction"),
        ({"system_instruction": 3}, "system_instruction"),
        ({"tools": "x"}, "tools"),
        ({"generation_config": []}, "generation_config"),
        ({"generationConfig": {"maxOutputTokens": 0}}, "generationConfig.maxOutputTokens"),
        ({"generationConfig": {"max_output_tokens": "x"}}, "generationConfig.max_output_tokens"),
        ({"generationConfig": {"maxOutputTokens": 1.5}}, "generationConfig.maxOutputTokens"),
        ({"generationConfig": {"maxOutputTokens": True}}, "generationConfig.maxOutputTokens"),
        ({"generationConfig": {"maxOutputTokens": 2**40}}, "generationConfig.maxOutputTokens"),
        ({"generationConfig": {"candidateCount": 1000}}, "generationConfig.candidateCount"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, object], param: str) -> None:
    assert refused(GENERATE, generate(**fields)) == ("invalid_value", param)


@pytest.mark.parametrize(
    "fields",
    [
        {"systemInstruction": {}, "system_instruction": {}},
        {"generationConfig": {}, "generation_config": {}},
        {"generationConfig": {"maxOutputTokens": 5, "max_output_tokens": 50_000}},
    ],
)
def test_a_field_in_both_spellings_is_refused(fields: dict[str, object]) -> None:
    assert refused(GENERATE, generate(**fields))[0] == "duplicate_key"


def test_null_counts_as_absent_in_either_spelling() -> None:
    config = {"maxOutputTokens": None, "max_output_tokens": 50}
    body = generate(generationConfig=None, generation_config=config, systemInstruction=None)
    assert read(GENERATE, body).output_cap_tokens == 50


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"contents": []}', '{"generationConfig":{"maxOutputTokens":20},"contents": []}'),
        (
            '{"contents": [], "generation_config": {"top_k": 1e0}}',
            '{"contents": [], "generation_config": {"maxOutputTokens":20,"top_k": 1e0}}',
        ),
        (
            '{"contents": [], "generation_config": {"max_output_tokens": null}}',
            '{"contents": [], "generation_config": {"max_output_tokens": 20}}',
        ),
        (
            '{"contents": [], "generationConfig": null}',
            '{"contents": [], "generationConfig": {"maxOutputTokens":20}}',
        ),
    ],
)
def test_strict_mode_writes_a_cap_where_the_body_would_have_it(body: str, expected: str) -> None:
    facts = read(STREAM, body, cap=20)
    assert facts.new_body == expected.encode()
    assert (facts.output_cap_tokens, facts.hides_usage) == (20, False)


def test_embeddings_count_their_content_and_title_and_have_no_output() -> None:
    one = {"content": {"parts": [{"text": "Say hi"}]}, "title": "A title"}
    tokens = count_tokens("Say hi") + PER_CONTENT + count_tokens("A title")
    facts = read(EMBED, one, cap=20)
    assert (facts.input_tokens, facts.output_cap_tokens) == (tokens, 0)
    assert (facts.wire_format, facts.model) == ("gemini_embeddings", "gemini-embedding-001")
    assert facts.new_body is None
    assert read(BATCH_EMBED, {"requests": [one, one]}).input_tokens == 2 * tokens
    configured = {"content": one["content"], "embedContentConfig": {"title": "A title"}}
    assert read(EMBED, configured).input_tokens == tokens
    assert refused(EMBED, {}) == ("invalid_value", "content")
    assert refused(BATCH_EMBED, {}) == ("invalid_value", "requests")
    assert refused(BATCH_EMBED, {"requests": [one, {}]})[1] == "requests[1].content"
    assert refused(BATCH_EMBED, {"requests": [3]})[1] == "requests[0]"


def test_vertex_predicts_embeddings() -> None:
    path = PROJECT + "/publishers/google/models/text-embedding-005:predict"
    facts = read(path, {"instances": [{"content": "Say hi"}, {"content": "Say hi"}]})
    assert (facts.input_tokens, facts.model) == (4, "text-embedding-005")
    assert facts.wire_format == "vertex_embeddings_predict"
    assert refused(path, {"contents": []})[1] == "instances"


def test_anthropic_on_vertex_has_its_model_in_the_path() -> None:
    body = {
        "anthropic_version": "vertex-2023-10-16",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "Say hi"}],
    }
    facts = read(CLAUDE + ":rawPredict", body)
    assert (facts.model, facts.stream) == ("claude-sonnet-4-5@20250929", False)
    assert facts.wire_format == "vertex_anthropic_messages"
    assert (facts.output_cap_tokens, facts.factor_percent) == (50, 115)
    assert read(CLAUDE + ":streamRawPredict", body).stream
    assert read(CLAUDE + ":rawPredict", body | {"stream": True}).stream
    assert refused(CLAUDE + ":rawPredict", body | {"messages": 3})[1] == "messages"


def test_openais_api_at_google_is_read_as_openais() -> None:
    body = {"model": "gemini-2.5-flash", "messages": [], "stream": True, "max_tokens": 9}
    for path in (
        "/v1beta/openai/chat/completions",
        PROJECT + "/endpoints/openapi/chat/completions",
    ):
        facts = read(path, body)
        assert facts.wire_format in ("gemini_openai_chat", "vertex_openai_chat")
        assert (facts.model, facts.output_cap_tokens) == ("gemini-2.5-flash", 9)
        assert facts.hides_usage


def test_errors_have_the_shape_of_the_paths_api() -> None:
    def shape(path: str) -> set[str]:
        answer = json.loads(error_body(path, status=429, code="x", message="slow down"))
        return set(answer) | set(answer["error"])

    google, anthropic = {"error", "code", "message", "status"}, {"type", "error", "message"}
    for path in (GENERATE, STREAM, EMBED, "/v1beta/models/m:countTokens", "vertex_gemini"):
        assert shape(path) == google
    assert GEMINI.error_shape.__name__ == "gemini_error"
    assert shape(CLAUDE + ":rawPredict") == anthropic
    assert shape("/v1beta/openai/chat/completions") == {"error", "message", "type", "param", "code"}
