"""TOKENS: faults that others reported about tokenizers; see docs/known-faults.md.

Each instance is among the recorded requests of test_providers_requests.py; these are of their kind.
"""

import asyncio
import threading
import time
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from extproc.core.reservations import Outcome
from extproc.core.settler import Settler
from extproc.envoy_io.metering import Metering
from extproc.providers.tokens import ENCODING_NAMES, TiktokenCounter, count_tokens, warm_up
from extproc.providers.vocabularies import EncodingName
from tests.support.admission import CHAT, POLICY, Bench, message
from tests.support.gateway import answer_messages, handle_of
from tests.support.streams import MemoryContext

ENCODINGS = pytest.mark.parametrize("encoding", ENCODING_NAMES)
# Spellings that some tokenizer has for a token of its own.
SPECIAL = [
    *(f"<|{name}|>" for name in ("endoftext", "endofprompt", "im_start", "im_end", "fim_prefix")),
    *(
        f"<|{name}|>"
        for name in ("start", "end", "channel", "eot_id", "begin_of_text", "tool_call")
    ),
    *(f"<|{name}|>" for name in ("assistant", "vision_start", "reserved_special_token_0")),
    *("[INST]", "<s>", "</s>", "<pad>", "<unk>", "[CLS]", "<start_of_turn>", "<think>"),
]
RUNS = [
    *("a", "^", "_", "=", "-", "0", "1234567890", "ab", "aA", '"', "\\"),
    *(" ", "\n", "\t", "\r\n", "\u00a0", "\x00", "\u0301", "\u200d"),
    *("汉", "가", "ส", "א", "ß", "😀", "👩\u200d👩\u200d👧", "\U0001d54f"),
]
HIGH, LOW = chr(0xD83D), chr(0xDC00)  # halves of a character


@cache
def reference(encoding: EncodingName) -> TiktokenCounter:
    return TiktokenCounter(encoding)


@ENCODINGS
def test_a_special_spelling_is_the_text_that_it_is(encoding: EncodingName) -> None:
    """B110: it raises nothing and is never one cheap token."""
    for spelling in SPECIAL:
        for text in (spelling, spelling * 50, f"Explain {spelling} to me", spelling[:-1]):
            assert count_tokens(text, encoding) == reference(encoding)(text)
        assert count_tokens(spelling * 50, encoding) >= 100


@ENCODINGS
@pytest.mark.parametrize("unit", RUNS, ids=ascii)
def test_a_long_run_of_anything_is_counted_soon_and_exactly(
    unit: str, encoding: EncodingName
) -> None:
    """B111, B112: 100,000 characters, which a quadratic merge would take minutes for."""
    warm_up()
    text = unit * (100_000 // len(unit))
    started = time.process_time()
    counted = count_tokens(text, encoding)
    assert time.process_time() - started < 0.2
    assert 1 <= counted <= len(text.encode("utf-8"))
    short = unit * (4000 // len(unit))
    assert count_tokens(short, encoding) == reference(encoding)(short)


@ENCODINGS
@pytest.mark.parametrize(
    "text", [HIGH, LOW, LOW + HIGH, f"x{HIGH}y", HIGH * 1000, "😀" + HIGH, LOW + " "], ids=ascii
)
def test_half_a_character_counts_as_the_sign_for_it(text: str, encoding: EncodingName) -> None:
    """B116: alone, in the wrong order, in a run, beside a whole one."""
    mended = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert count_tokens(text, encoding) == count_tokens(mended, encoding) > 0


async def test_small_requests_and_streams_go_on_while_a_megabyte_is_counted() -> None:
    """B113: counting stood on the loop. Here its thread is held until all others are done, so any
    that waited for it would wait for ever."""
    bench = Bench(policy=replace(POLICY, timeout_seconds=60))
    release = threading.Event()
    bench.executor.submit(release.wait)
    large = {**CHAT, "messages": [{"role": "user", "content": "word " * 190_000}]}
    counting = asyncio.create_task(bench.ask(message(large)))
    settler = Settler(bench.store, bench.telemetry)
    metering = Metering(settler, bench.telemetry, is_stopping=lambda: False)
    word = b'data: {"choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'

    async def stream(number: int) -> None:
        reply = await bench.ask(message())
        assert reply.WhichOneof("response") == "request_body"
        handle = handle_of(f"r{number}", reserved_tokens=100)
        context: Any = MemoryContext(answer_messages(handle, [word] * 5), half_close=True)
        await metering.process(context)

    try:
        async with asyncio.timeout(20):
            await asyncio.gather(*(stream(number) for number in range(100)))
        assert not counting.done()
    finally:
        release.set()
    reply = await counting
    assert await settler.flush(timeout_seconds=5) == 0
    assert reply.WhichOneof("response") == "request_body"
    assert max(request.input_tokens for request in bench.store.reserved) > 190_000
    ends = [end.outcome for end in bench.store.settled]
    assert ends == [Outcome.COMPLETE_ESTIMATED] * 100
