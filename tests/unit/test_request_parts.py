"""What a request's input is made of, in every format: by kind, media apart from what is scaled."""

from typing import Any

import pytest

from extproc.core.learned_factors import LearnedFactors
from extproc.providers.counting import DOCUMENT, MEDIA_KINDS
from extproc.providers.input_correction import corrected_input
from tests.unit.test_media import b64, png, read, wav

PICTURE = b64(png(1000, 1000))
URL = f"data:image/png;base64,{PICTURE}"
SOUND = b64(wav(10))
TEXT = "Some words to count. " * 10
CHAT = [{"role": "system", "content": TEXT}, {"role": "user", "content": TEXT}]
TOOLS = [{"type": "function", "function": {"name": "look", "description": TEXT}}]
MESSAGES = {"system", "messages", "tools", "schema"}
BLOB = {"inlineData": {"mimeType": "image/png", "data": PICTURE}}
GEMINI = {
    "systemInstruction": {"parts": [{"text": TEXT}]},
    "contents": [
        {
            "role": "user",
            "parts": [
                {"text": TEXT},
                BLOB,
                {"inline_data": {"mime_type": "audio/wav", "data": SOUND}},
                {"fileData": {"mimeType": "video/mp4", "fileUri": "gs://b/film"}},
                {"fileData": {"mimeType": "application/pdf", "fileUri": "gs://b/paper"}},
            ],
        }
    ],
    "tools": [{"functionDeclarations": [{"name": "look"}]}],
    "generationConfig": {"responseSchema": {"type": "OBJECT"}},
    "cachedContent": "cachedContents/1",
}
CONVERSE = {
    "system": [{"text": TEXT}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"text": TEXT},
                {"image": {"format": "png", "source": {"bytes": PICTURE}}},
                {"audio": {"format": "wav", "source": {"bytes": SOUND}}},
                {"video": {"format": "mp4", "source": {"s3Location": {"uri": "s3://b/film"}}}},
                {"document": {"name": "paper", "source": {"bytes": "AAAA"}}},
            ],
        },
        {
            "role": "assistant",
            "content": [{"reasoningContent": {"redactedContent": "A" * 600}}],
        },
    ],
    "toolConfig": {"tools": [{"toolSpec": {"name": "look", "description": TEXT}}]},
    "outputConfig": {"textFormat": {"type": "json_schema"}},
}
COHERE = {
    "model": "command-a-vision-07-2025",
    "messages": [
        *CHAT,
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]},
        {"role": "tool", "content": [{"type": "document", "document": {"data": TEXT}}]},
    ],
    "tools": TOOLS,
    "documents": [{"data": {"text": TEXT}}],
    "response_format": {"type": "json_object"},
}
GENERATE = {
    "model": "m",
    "prompt": TEXT,
    "system": TEXT,
    "images": [PICTURE],
    "context": list(range(50)),
}
MEDIA = {"images", "audio", "video", "documents"}
GEMINI_3 = "/v1beta/models/gemini-3-pro-preview:generateContent"
VERTEX = "/v1/projects/p/locations/l/publishers/google/models/gemini-2.5-pro:generateContent"

CASES: list[tuple[str, dict[str, Any], set[str]]] = [
    (GEMINI_3, GEMINI, MESSAGES | MEDIA | {"cached"}),
    (VERTEX, GEMINI, MESSAGES | MEDIA | {"cached"}),
    ("/model/amazon.nova-pro-v1:0/converse", CONVERSE, MESSAGES | MEDIA | {"sealed"}),
    ("/model/anthropic.claude-opus-4-8/converse", CONVERSE, MESSAGES | MEDIA | {"sealed"}),
    (
        "/model/amazon.nova-lite-v1:0/invoke",
        {**CONVERSE, "inferenceConfig": {"maxTokens": 5}},
        (MESSAGES - {"schema"} | MEDIA | {"sealed"}),
    ),
    (
        "/model/us.anthropic.claude-sonnet-4-5/invoke",
        {"anthropic_version": "bedrock", "system": TEXT, "messages": CHAT[1:], "tools": TOOLS},
        {"system", "messages", "tools"},
    ),
    ("/model/meta.llama3/invoke", {"prompt": TEXT, "images": [PICTURE]}, {"text", "images"}),
    ("/v2/chat", COHERE, MESSAGES | {"images", "retrieved"}),
    (
        "/v1/chat",
        {
            "message": TEXT,
            "preamble": TEXT,
            "chat_history": [{"role": "SYSTEM", "message": TEXT}, {"role": "USER", "message": "x"}],
            "tool_results": [{"outputs": [{"a": TEXT}]}],
            "tools": TOOLS,
        },
        {"system", "messages", "tools", "retrieved"},
    ),
    (
        "/v2/embed",
        {"model": "embed-v4.0", "texts": [TEXT], "images": [URL]},
        {"text", "images"},
    ),
    ("/v2/rerank", {"model": "rerank-v4", "query": TEXT, "documents": [TEXT, "a"]}, {"text"}),
    ("/v1/rerank", {"query": TEXT, "documents": []}, set()),
    (
        "/api/chat",
        {"model": "gemma3", "messages": [*CHAT, {"role": "user", "images": [PICTURE]}]},
        {"system", "messages", "images"},
    ),
    ("/api/generate", GENERATE, {"text", "system", "images", "token_ids"}),
    ("/api/embed", {"model": "m", "input": [TEXT]}, {"text"}),
    ("/v1/embeddings", {"model": "m", "input": [1, 2, 3]}, {"token_ids"}),
    (
        "/v1beta/models/gemini-embedding-001:embedContent",
        {"content": {"parts": [{"text": TEXT}]}, "title": "A"},
        {"text"},
    ),
    (
        "/v1/responses",
        {
            "model": "gpt-4o",
            "instructions": TEXT,
            "input": [
                {"role": "user", "content": [{"type": "input_image", "image_url": URL}]},
                {"type": "reasoning", "encrypted_content": "A" * 600},
                {"type": "image_generation_call", "id": "i"},
            ],
        },
        {"system", "messages", "images", "sealed"},
    ),
    ("/v1/audio/speech", {"model": "tts", "input": TEXT}, {"text"}),
    (
        "/v1/images/edits",
        {"model": "gpt-image-1", "prompt": TEXT, "image": "x"},
        {"text", "images"},
    ),
    ("/v1/audio/transcriptions", {"model": "w", "url": "https://x.test"}, {"audio"}),
    ("/v1/agents/completions", {"agent_id": "a", "messages": CHAT}, {"system", "messages"}),
    ("/v1/fim/completions", {"model": "codestral", "prompt": TEXT, "suffix": "}"}, {"text"}),
]


@pytest.mark.parametrize(("path", "body", "kinds"), CASES, ids=[case[0] for case in CASES])
def test_every_kind_has_its_name_and_media_are_not_scaled(
    path: str, body: dict[str, Any], kinds: set[str]
) -> None:
    facts = read(path, body)
    assert set(facts.parts) == kinds
    assert all(tokens > 0 for tokens in facts.parts.values())
    media = sum(tokens for kind, tokens in facts.parts.items() if kind in MEDIA_KINDS)
    assert facts.media_tokens == media
    scaled = (sum(facts.parts.values()) - media) * facts.factor_percent / 100
    overhead = facts.input_tokens - media - scaled
    # What primes the answer and the prompt for tools; never more of the parts than of the whole.
    assert 0 <= overhead <= 3 * 1.5 + 346 + 1


@pytest.mark.parametrize(
    ("path", "part", "without"),
    [
        (GEMINI_3, GEMINI, {"contents": [{"parts": [{"text": TEXT * 9}]}]}),
        (
            "/model/amazon.nova-pro-v1:0/converse",
            CONVERSE,
            {"messages": [{"role": "user", "content": [{"text": TEXT * 9}]}]},
        ),
        ("/v2/chat", COHERE, {"model": "command-a", "messages": CHAT}),
        ("/api/generate", GENERATE, {"model": "m", "prompt": TEXT}),
    ],
)
def test_media_are_not_corrected_by_a_learned_factor_and_teach_none(
    path: str, part: dict[str, Any], without: dict[str, Any]
) -> None:
    learned = LearnedFactors()
    plain = read(path, without)
    tokens, permille = corrected_input(learned, plain)
    assert (tokens, permille) == (plain.input_tokens, 1000)
    provider = {"/v2/chat": "cohere", "/api/generate": "ollama", GEMINI_3: "gemini"}
    rich = read(path, part)
    name = provider.get(path, "bedrock")
    for _ in range(500):
        learned.learn(name, rich.model, estimated=1000, actual=2000)
    factor = learned.permille(name, rich.model)
    assert factor > 1900
    tokens, permille = corrected_input(learned, rich)
    assert permille == 0
    text = rich.input_tokens - rich.media_tokens
    assert tokens == rich.media_tokens + -(-text * factor // 1000)


def cost(path: str, body: dict[str, Any], kind: str = "images") -> int:
    return read(path, body).parts[kind]


def converse(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def picture_of(width: int, height: int) -> dict[str, Any]:
    return {"image": {"format": "png", "source": {"bytes": b64(png(width, height))}}}


@pytest.mark.parametrize(
    ("model", "size", "tokens"),
    [
        # AWS's table says about 800, 1,300, 2,400 and 2,600.
        ("amazon.nova-pro-v1:0", (900, 450), 844),
        ("amazon.nova-pro-v1:0", (800, 400), 844),
        ("amazon.nova-pro-v1:0", (900, 900), 1688),
        ("us.amazon.nova-lite-v1:0", (1800, 900), 2600),
        ("amazon.nova-2-lite-v1:0", (1300, 1300), 2600),
        ("us.anthropic.claude-sonnet-4-5-v1:0", (1000, 1000), 1296),
        ("anthropic.claude-opus-4-8-v1:0", (2000, 1500), 3888),
        ("mistral.pixtral-large", (1000, 1000), 1568),
    ],
)
def test_bedrocks_pictures_by_whose_model_it_is(
    model: str, size: tuple[int, int], tokens: int
) -> None:
    assert cost(f"/model/{model}/converse", converse(picture_of(*size))) == tokens


@pytest.mark.parametrize(
    ("size", "detail", "tokens"),
    [
        # The example of Cohere's page: 1024 x 2048 after it was fitted, eight tiles and the whole.
        ((10_000, 20_000), None, 9 * 256),
        ((20_000, 10_000), "high", 9 * 256),
        ((700, 500), None, 256),
        ((700, 500), "high", 3 * 256),
        ((5000, 5000), "low", 256),
        ((1536, 2048), "auto", 13 * 256),
        ((769, 10), None, 3 * 256),
    ],
)
def test_coheres_pictures_by_size_and_detail(
    size: tuple[int, int], detail: str | None, tokens: int
) -> None:
    url = {"url": f"data:image/png;base64,{b64(png(*size))}"} | (
        {"detail": detail} if detail else {}
    )
    part = {"type": "image_url", "image_url": url}
    body = {"model": "command-a-vision-07-2025", "messages": [{"role": "user", "content": [part]}]}
    assert cost("/v2/chat", body) == tokens
    assert cost("/compatibility/v1/chat/completions", body) == tokens


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("gemma3:12b", 260),
        ("qwen2.5vl:7b", 1298),
        ("llama3.2-vision", 1),
        ("llava", 1601),
    ],
)
def test_ollamas_pictures_by_the_model(model: str, tokens: int) -> None:
    assert cost("/api/generate", {"model": model, "prompt": "x", "images": [PICTURE]}) == tokens


@pytest.mark.parametrize(
    ("model", "size", "level", "tokens"),
    [
        ("gemini-2.5-pro", (384, 384), None, 258),
        ("gemini-2.5-pro", (960, 540), None, 6 * 258),
        ("gemini-2.5-pro", (5000, 5000), "LOW", 64),
        ("gemini-3-pro-preview", (384, 384), None, 1120),
        ("gemini-3-pro-preview", (384, 384), "LOW", 280),
        ("gemini-3.1-flash", (384, 384), "ULTRA_HIGH", 2240),
    ],
)
def test_googles_pictures_by_size_and_resolution(
    model: str, size: tuple[int, int], level: str | None, tokens: int
) -> None:
    blob = {"inlineData": {"mimeType": "image/png", "data": b64(png(*size))}}
    config = {"mediaResolution": f"MEDIA_RESOLUTION_{level}"} if level else {}
    body = {"contents": [{"parts": [blob]}], "generationConfig": config}
    assert cost(f"/v1beta/models/{model}:generateContent", body) == tokens


def test_a_picture_behind_openais_api_costs_what_its_model_takes() -> None:
    part = {"type": "image_url", "image_url": {"url": URL}}
    for model, tokens in (
        ("openai/gpt-4o", 765),
        ("anthropic/claude-sonnet-4.5", 1296),
        ("google/gemini-3-pro-preview", 1120),
        ("amazon/nova-pro-v1", 2084),
    ):
        body = {"model": model, "messages": [{"role": "user", "content": [part]}]}
        assert cost("/api/v1/chat/completions", body) == tokens


def test_sound_by_its_header_everywhere() -> None:
    google = {"inlineData": {"mimeType": "audio/wav", "data": SOUND}}
    body: dict[str, Any] = {"contents": [{"parts": [google]}]}
    assert cost(GEMINI_3, body, "audio") == 11 * 32  # ten seconds and a header
    block = {"audio": {"format": "wav", "source": {"bytes": SOUND}}}
    assert 100 <= cost("/model/amazon.nova-2-omni/converse", converse(block), "audio") <= 101


def test_a_document_that_is_text_is_text_and_a_file_is_not() -> None:
    text = {"document": {"name": "a", "source": {"text": TEXT}}}
    file = {"document": {"name": "a", "source": {"bytes": "AAAA"}}}
    path = "/model/amazon.nova-pro-v1:0/converse"
    assert set(read(path, converse(text)).parts) == {"messages"}
    assert read(path, converse(file)).media_tokens == DOCUMENT
