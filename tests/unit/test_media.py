"""Pictures and sound: sizes from the first bytes, tokens by the published examples."""

import base64
import json
import random
import re
import struct
import time
from importlib.resources import files
from typing import Any

import pytest

from extproc.providers.counting import DOCUMENT, Counter
from extproc.providers.media_rules import image_rule
from extproc.providers.media_sizes import base64_start, image_size, wav_seconds
from extproc.providers.registry import read_request
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts

_FILES = files("extproc.providers")
RULES: dict[str, Any] = json.loads(_FILES.joinpath("media_rules.json").read_text("utf-8"))
FACTORS: dict[str, Any] = json.loads(_FILES.joinpath("input_factors.json").read_text("utf-8"))


def png(width: int, height: int, *, filling: int = 0) -> bytes:
    head = struct.pack(">I4sIIBBBBB", 13, b"IHDR", width, height, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + head + bytes(filling)


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(20)


def jpeg(width: int, height: int, *, before: bytes = b"") -> bytes:
    frame = b"\xff\xc2" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return b"\xff\xd8" + before + frame + bytes(100)


def segment(size: int, marker: int = 0xE1) -> bytes:
    # What a thumbnail holds looks like a frame of its own.
    return (
        struct.pack(">BBH", 0xFF, marker, size + 2)
        + (b"\xff\xc0\x00\x11\x08\x00\x01\x00\x01" * size)[:size]
    )


def webp(kind: bytes, rest: bytes) -> bytes:
    return b"RIFF" + bytes(4) + b"WEBP" + kind + bytes(4) + rest + bytes(30)


def lossy(width: int, height: int) -> bytes:
    return webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height))


def lossless(width: int, height: int) -> bytes:
    return webp(b"VP8L", b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14))


def extended(width: int, height: int) -> bytes:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return webp(b"VP8X", bytes(4) + sides)


def wav(seconds: float, rate: int = 32_000) -> bytes:
    size = int(seconds * rate)
    head = struct.pack("<IHHIIHH", 16, 1, 1, rate // 2, rate, 2, 16)
    return b"RIFF" + struct.pack("<I", size + 36) + b"WAVEfmt " + head + b"data" + bytes(size)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    "data",
    [
        png(1234, 567),
        gif(1234, 567),
        jpeg(1234, 567),
        jpeg(1234, 567, before=segment(60_000) + segment(65_000) + segment(7)),
        jpeg(1234, 567, before=b"\xff\xff" + segment(1) + b"\xff\x01" + segment(2, 0xC4)),
        lossy(1234, 567),
        lossless(1234, 567),
        extended(1234, 567),
    ],
    ids=["png", "gif", "jpeg", "long segments", "filling", "vp8", "vp8l", "vp8x"],
)
def test_the_size_is_read_from_the_bytes(data: bytes) -> None:
    assert image_size(b64(data)) == (1234, 567)
    assert image_size(base64.urlsafe_b64encode(data).decode()) == (1234, 567)
    url = f"data:image/x-any;name=a;base64,{b64(data)}"
    start = base64_start(url)
    assert start is not None
    assert image_size(url, start) == (1234, 567)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A",
        "/9j/",
        "\u4e2d" * 100,
        b64(png(0, 5)),
        b64(png(2**31, 5)),
        b64(png(5, 5))[:20],
        b64(lossy(7, 7))[:24],
        b64(b"<svg xmlns='http://www.w3.org/2000/svg' width='5' height='5'/>"),
        b64(jpeg(5, 5, before=segment(3) * 100)),
        b64(jpeg(5, 5, before=b"\xff\xe1\xff\xff")),
        b64(b"\xff\xd8" + b"\xff" * 1000),
    ],
)
def test_what_cannot_be_read_has_no_size(text: str) -> None:
    assert image_size(text) is None


def test_reading_a_size_never_raises_and_takes_no_time_for_large_pictures() -> None:
    rng = random.Random(4)
    heads = [png(9, 9), gif(9, 9), jpeg(9, 9, before=segment(40)), lossy(9, 9), extended(9, 9)]
    for _ in range(3000):
        data = bytearray(rng.choice(heads))
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        image_size(b64(bytes(data[: rng.randint(0, len(data))])))
        wav_seconds(b64(bytes(data)))
    large = b64(jpeg(640, 480, before=segment(65_000) * 60) + bytes(8_000_000))
    started = time.process_time()
    for _ in range(100):
        assert image_size(large) == (640, 480)
    assert time.process_time() - started < 0.1  # measured: 0.01; decoding it all takes 1 s


def test_an_address_is_no_data_url() -> None:
    for text in (
        "https://x.test/a.png",
        "data:image/png,abc",
        "data:" + "a" * 300 + ";base64,x",
        "",
    ):
        assert base64_start(text) is None


@pytest.mark.parametrize(
    ("model", "size", "detail", "tokens"),
    [
        # The examples of OpenAI's page.
        ("gpt-4o", (1024, 1024), "high", 765),
        ("gpt-4o", (2048, 4096), None, 1105),
        ("gpt-4o", (4096, 8192), "low", 85),
        ("gpt-4.1-mini", (1024, 1024), None, 1659),  # 1,024 patches x 1.62
        ("gpt-4.1-mini", (1800, 2400), None, 2353),  # 1,452 patches x 1.62
        # What the API charged (the second source in the data file), less the text around it.
        ("gpt-4o-2024-11-20", (128, 64), "high", 255),
        ("gpt-4o-mini-2024-07-18", (128, 64), "high", 8500),
        ("gpt-4o-mini", (128, 64), "low", 2833),
        ("o3-2025-04-16", (128, 64), "high", 225),
        ("o4-mini", (128, 64), "low", 14),
        # One of each other family.
        ("gpt-5", (512, 512), None, 210),
        ("azure/GPT-5.1", (512, 512), None, 210),
        ("gpt-5-nano", (320, 320), None, 246),
        ("gpt-5.2", (3200, 3200), None, 1826),
        ("gpt-5.4", (1600, 1600), None, 3000),
        ("gpt-5.4", (3200, 3200), "high", 3000),
        ("gpt-5.4", (3200, 3200), "original", 12_000),
        ("gpt-5.6", (3200, 3200), None, 12_000),
        ("gpt-5.6", (3200, 3200), "high", 3000),
        ("llama-4", (1024, 1024), None, 765),
        ("gpt-4o", None, None, 765),
        ("gpt-4o", None, "low", 85),
    ],
)
def test_openais_pictures(
    model: str, size: tuple[int, int] | None, detail: str | None, tokens: int
) -> None:
    assert image_rule("openai", model).cost(size, detail) == tokens


@pytest.mark.parametrize(
    ("provider", "model", "size", "tokens"),
    [
        ("anthropic", "claude-sonnet-4-5", (200, 200), 64),
        ("anthropic", "claude-sonnet-4-5", (1000, 1000), 1296),
        ("anthropic", "claude-sonnet-4-20250514", (4000, 4000), 1521),
        ("anthropic", "claude-sonnet-4-5", None, 1568),
        ("anthropic", "claude-opus-4-7", (1000, 1000), 1296),
        ("anthropic", "anthropic/claude-opus-4.7", None, 4784),
        ("anthropic", "claude-sonnet-5", (8000, 100), 184),
        ("gemini", "gemini-2.5-pro", (384, 300), 258),
        ("gemini", "gemini-2.0-flash", (960, 540), 258 * 6),
        ("gemini", "gemini-3-pro-preview", (10, 10), 1120),
    ],
)
def test_the_others_pictures(
    provider: str, model: str, size: tuple[int, int] | None, tokens: int
) -> None:
    assert image_rule(provider, model).cost(size) == tokens


def test_every_shape_of_picture_has_a_finite_positive_cost() -> None:
    sizes = [(1, 1), (1, 100_000), (100_000, 1), (100_000, 100_000), (31, 33), (769, 1)]
    details: tuple[object, ...] = (None, "low", "high", "original", 7, {})
    models = ("gpt-4o", "gpt-4.1-mini", "gpt-5.6", "claude-opus-4-8", "gemini-2.5-pro", "x")
    more = ("amazon.nova-pro-v1:0", "command-a-vision", "embed-v4.0", "qwen2.5vl", "gemma3")
    for provider in RULES:
        for model in (*models, *more):
            for size in (*sizes, None):
                for detail in details:
                    tokens = image_rule(provider, model).cost(size, detail)
                    assert 1 <= tokens < 10_000_000, (provider, model, size)


@pytest.mark.parametrize("table", [RULES, FACTORS], ids=["media_rules", "input_factors"])
def test_every_rule_has_a_date_and_a_note_and_every_model_a_rule(table: dict[str, Any]) -> None:
    for provider, rules in table.items():
        assert re.fullmatch(r"20\d\d-\d\d", rules["as_of"]), provider
        assert len(rules["notes"]) > 40, provider
        assert all(source.startswith("https://") for source in rules["sources"]), provider
        assert rules["rules"][-1]["models"] == "", provider
        for rule in rules["rules"]:
            re.compile(rule["models"])


def read(path: str, body: dict[str, Any]) -> RequestFacts:
    facts = read_request(
        path,
        json.dumps(body).encode(),
        content_type="application/json",
        content_encoding=None,
        limits=ReadLimits(),
    )
    assert isinstance(facts, RequestFacts)
    return facts


def test_chat_responses_and_messages_read_the_sizes() -> None:
    url = f"data:image/png;base64,{b64(png(512, 512))}"
    chat = {"type": "image_url", "image_url": {"url": url}}
    item = {"type": "input_image", "image_url": url, "detail": "low"}
    source = {"type": "base64", "media_type": "image/jpeg", "data": b64(jpeg(280, 280))}
    block = {"type": "image", "source": source}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [block]}
    for path, field, model, part, tokens in (
        ("/v1/chat/completions", "messages", "gpt-4o", chat, 255),
        ("/v1/responses", "input", "gpt-4o", item, 85),
        ("/v1/messages", "messages", "claude-sonnet-4-5", block, 100),
        ("/v1/messages", "messages", "claude-sonnet-4-5", result, 100),
    ):
        body = {"model": model, "max_tokens": 5}
        facts = read(path, {**body, field: [{"role": "user", "content": [part]}]})
        assert facts.parts["images"] == facts.media_tokens == tokens
        bare = read(path, {**body, field: [{"role": "user", "content": []}]})
        assert facts.input_tokens - bare.input_tokens == tokens


def test_seconds_of_sound_come_from_the_header() -> None:
    def cost(data: bytes) -> int:
        audio = {"type": "input_audio", "input_audio": {"data": b64(data), "format": "wav"}}
        body = {"model": "gpt-audio", "messages": [{"role": "user", "content": [audio]}]}
        return read("/v1/chat/completions", body).parts["audio"]

    assert 100 <= cost(wav(10)) <= 101
    assert 100 <= cost(wav(10, rate=96_000)) <= 101
    # A rate that would make a minute of nothing is not believed: at most what MP3 would take.
    assert cost(wav(10, rate=1) + bytes(40_000)) <= 102
    assert cost(bytes(32_000)) == 21


def test_the_parts_of_a_request_by_kind() -> None:
    messages = [
        {"role": "system", "content": "You are terse."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Look"}, {"type": "file", "file": {}}],
        },
    ]
    schema = {"type": "json_schema", "json_schema": {"name": "x"}}
    tools = [{"type": "function", "function": {"name": "look"}}]
    facts = read(
        "/v1/chat/completions",
        {"model": "gpt-4o", "messages": messages, "tools": tools, "response_format": schema},
    )
    assert set(facts.parts) == {"system", "messages", "documents", "tools", "schema"}
    assert facts.parts["documents"] == DOCUMENT
    assert facts.input_tokens == sum(facts.parts.values()) + 3


def test_what_a_subclass_counts_inside_a_message_is_of_that_message_once() -> None:
    class Blocks(Counter):
        def _part(self, part: JsonObject) -> int:
            if "tool" in part:
                return self.content(part["tool"]) + self.json({"a": 1}) + self.text("more")
            return super()._part(part)

    counter = Blocks("o200k_base")
    total = counter.message({"content": [{"tool": "some words"}]}) + counter.json([1])
    assert sum(counter.parts.values()) == total
    assert set(counter.parts) == {"messages", "tools"}
