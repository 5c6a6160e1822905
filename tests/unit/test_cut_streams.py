"""A stream that is cut before its usage is charged for its text, in every format with text."""

import itertools
from dataclasses import replace

import pytest

from extproc.core.reservations import Knowledge, Outcome, Settlement
from extproc.providers.formats import BUILT_IN
from extproc.providers.tokens import count_tokens
from extproc.providers.wire_formats import WireFormat
from tests.unit.test_metering import HANDLE, Bench, body, headers
from tests.unit.text_streams import SSE, STREAMS, TRANSCRIPTION, sse

TEXT = (
    "The reservation is held until the answer has ended, and whatever was produced by then is "
    "counted, in words of one tongue or another: la réponse s'arrête, die Antwort bricht ab. "
) * 4
PARTS = [TEXT[at : at + 5] for at in range(0, len(TEXT), 5)]
# Calls that come whole have names and braces beside the text, so they are long ones.
_WHOLE = {("gemini", "calls"), ("vertex_gemini", "calls"), ("ollama_chat", "tool")} | {
    ("openai_responses", "whole items")
}
CASES = [(name, kind) for name, (_, kinds) in STREAMS.items() for kind in kinds]


def test_every_format_with_text_is_here() -> None:
    spoken = {r.name for r in BUILT_IN if isinstance(r, WireFormat) and r.has_text_output}
    assert set(STREAMS) == spoken


async def cut(name: str, content_type: str, stream: list[bytes], *, share: float) -> Settlement:
    """What is settled when Envoy drops the stream in the middle of its bytes."""
    data = b"".join(stream)[: int(len(b"".join(stream)) * share)]
    pieces = [body(data[at : at + 700]) for at in range(0, len(data), 700)]
    handle = replace(HANDLE, wire_format=name, reserved_tokens=100_000)
    bench = Bench()
    await bench.run_cancelled(headers(content_type=content_type, handle=handle), *pieces)
    (end,) = bench.ends
    return end


@pytest.mark.parametrize(("name", "kind"), CASES)
async def test_the_text_of_a_cut_stream_is_counted(name: str, kind: str) -> None:
    content_type, kinds = STREAMS[name]
    parts = [TEXT] * 20 if (name, kind) in _WHOLE else PARTS
    stream = list(kinds[kind](parts))
    for share in (0.5, 0.9):
        end = await cut(name, content_type, stream, share=share)
        arrived = int(sum(map(len, stream)) * share)
        sizes = itertools.accumulate(map(len, stream))
        whole = sum(size <= arrived for size in sizes) - (len(stream) - len(parts))
        truth = count_tokens("".join(parts[:whole]), HANDLE.encoding)
        assert end.output_tokens == pytest.approx(truth, rel=0.2)
        assert (end.knowledge, end.outcome) == (Knowledge.COUNTED, Outcome.CUT)
        assert not end.writes_history


async def test_plain_text_is_counted_as_it_comes() -> None:
    stream = list(TRANSCRIPTION["plain"](PARTS))
    end = await cut("openai_transcription", "text/plain", stream, share=0.5)
    truth = count_tokens(TEXT[: len(TEXT) // 2], HANDLE.encoding)
    assert end.output_tokens == pytest.approx(truth, rel=0.2)
    assert end.knowledge is Knowledge.COUNTED


@pytest.mark.parametrize(
    "delta",
    [
        {"audio": {"id": "a", "data": "UklGRg=="}},
        {"images": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]},
    ],
)
async def test_sound_and_pictures_without_usage_keep_the_reserve(delta: object) -> None:
    stream = [sse({"choices": [{"index": 0, "delta": delta}]}), sse({"choices": []})]
    end = await cut("openai_chat", SSE, stream, share=1)
    assert end.input_tokens + end.output_tokens == 100_000
    assert end.knowledge is Knowledge.GUESSED


async def test_sealed_thoughts_without_usage_keep_the_reserve() -> None:
    sealed = {"type": "redacted_thinking", "data": "Eu4BCkYIBxgC" * 50}
    stream = [sse({"type": "content_block_start", "index": 0, "content_block": sealed})]
    end = await cut("anthropic_messages", SSE, stream, share=1)
    assert end.input_tokens + end.output_tokens == 100_000
    assert end.knowledge is Knowledge.GUESSED
