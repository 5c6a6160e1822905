"""USAGE, ABORT: faults that others reported about what an answer is charged; see
docs/known-faults.md."""

import pytest

from extproc.providers.tokens import count_tokens
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.admission import CHAT
from tests.support.engine import admit
from tests.support.gateway import Gateway, handle_of
from tests.support.reservations import Inspector
from tests.unit.provider_cases import answer_cases
from tests.unit.spoken_answers import SPOKEN

ANSWERS = {case.name: case for case in answer_cases()}
INPUT, RESERVED = 10, 1000


async def reserve(store: RedisReservationStore, inspect: Inspector) -> None:
    """Reservation "r1" of 1,000 tokens, 10 of them input."""
    inspect.cache(rpm=100, tpm=10_000_000)
    await admit(store, rid="r1", version="", input_tokens=INPUT, default=RESERVED - INPUT)
    assert inspect.used() == (1, RESERVED)


CACHED = {
    "inside": b'{"prompt_tokens":10000,"completion_tokens":100,'
    b'"prompt_tokens_details":{"cached_tokens":8000}}',
    "beside": b'{"input_tokens":2000,"cache_read_input_tokens":8000,"output_tokens":100}',
    "none": b'{"prompt_tokens":10000,"completion_tokens":100}',
}


@pytest.mark.parametrize("how", CACHED)
async def test_a_cached_token_counts_like_any_other(
    store: RedisReservationStore, inspect: Inspector, gateway: Gateway, how: str
) -> None:
    """B065: the settlement takes all 10,000, as the reserve did, which cannot know the cache."""
    inspect.cache(rpm=100, tpm=10_000_000)
    is_anthropic = how == "beside"
    path = "/v1/messages" if is_anthropic else "/v1/chat/completions"
    prompt = [{"role": "user", "content": "word " * 10_000}]
    status, handle = await gateway.ask(
        {"model": "m", "messages": prompt, "max_tokens": 100}, path=path
    )
    assert status == 200
    assert handle is not None
    assert handle.input_tokens >= 10_000
    assert inspect.used() == (1, handle.input_tokens + 100)
    answer = b'{"type":"message","choices":[],"usage":' + CACHED[how] + b"}"
    await gateway.answer(handle, [answer], content_type="application/json")
    assert inspect.used() == (1, 10_100)


async def test_both_sides_of_an_answer_are_taken_from_the_minute(
    store: RedisReservationStore, inspect: Inspector, gateway: Gateway
) -> None:
    """B066: 900 and 100 are 1,000, in every format."""
    for number, spoken in enumerate(SPOKEN.values(), start=1):
        inspect.cache(rpm=100, tpm=10_000_000)
        await admit(store, rid=f"r{number}", version="", input_tokens=INPUT, cap=5)
        handle = handle_of(f"r{number}", reserved_tokens=15, wire_format=spoken.wire_format)
        body = spoken.body(["hello"], [(900, 100)])
        await gateway.answer(handle, [body], content_type=spoken.content_type)
        assert inspect.used() == (number, 1000 * number)


@pytest.mark.parametrize("name", SPOKEN)
@pytest.mark.parametrize("is_reported", [True, False])
async def test_who_leaves_in_any_format_pays_for_what_came(
    store: RedisReservationStore, inspect: Inspector, gateway: Gateway, name: str, is_reported: bool
) -> None:
    """B045: 511 words had passed, and no usage came; nothing was recorded. Where the provider had
    said what it was so far, that counts."""
    await reserve(store, inspect)
    spoken = SPOKEN[name]
    # Ollama's numbers come with its last line only, which says that it has ended.
    is_reported = is_reported and name != "ollama"
    events = spoken.events([" word"] * 511, [(45, 600)] if is_reported else [])
    if name in ("chat", "completions", "anthropic"):
        events = events[:-1]  # the end marker
    elif name == "converse":
        events = [one for one in events if b"messageStop" not in one]
    if spoken.framing == "sse":
        chunks = [b"data: " + one + b"\n\n" for one in events]
    elif spoken.framing == "array":
        chunks = [(b"," if at else b"[") + one for at, one in enumerate(events)]
    else:
        chunks = [one if spoken.framing == "binary" else one + b"\n" for one in events]
    handle = handle_of("r1", reserved_tokens=RESERVED, wire_format=spoken.wire_format)
    await gateway.answer(handle, chunks, content_type=spoken.content_type, is_cut=True)
    charged = inspect.used()[1]
    assert charged is not None
    if is_reported:
        assert charged == 645
    else:
        assert INPUT + 511 <= charged <= INPUT + 511 * 15 // 10
    assert inspect.open() == 0


async def test_a_recorded_stream_without_its_end_is_charged_for_its_text(
    store: RedisReservationStore, inspect: Inspector, gateway: Gateway
) -> None:
    """B045: as it was recorded, cut by the client or by the provider."""
    case = ANSWERS["responses_sse_client_abort_no_terminal"]
    await reserve(store, inspect)
    handle = handle_of("r1", reserved_tokens=RESERVED, wire_format=case.wire_format)
    await gateway.answer(handle, case.chunks, is_cut=True)
    charged = inspect.used()[1]
    assert charged is not None
    assert INPUT < charged < RESERVED


@pytest.mark.parametrize(
    ("name", "charged"),
    [
        ("sse_ends_after_content_filter_finish", 114),
        (
            "openai_sse_zero_only_usage_with_text",
            INPUT + count_tokens("This is a long visible answer of several words."),
        ),
        ("vllm_sse_continuous_usage_aborted", None),
    ],
)
@pytest.mark.parametrize("is_cut", [True, False])
async def test_an_odd_end_is_charged_for_what_was_there(
    store: RedisReservationStore,
    inspect: Inspector,
    gateway: Gateway,
    name: str,
    charged: int | None,
    *,
    is_cut: bool,
) -> None:
    """B048: an end behind a content filter, and zeros beside text, are neither free nor the whole
    reserve. Whether the connection was closed or cut makes no difference."""
    case = ANSWERS[name]
    await reserve(store, inspect)
    handle = handle_of("r1", reserved_tokens=RESERVED, wire_format=case.wire_format)
    await gateway.answer(handle, case.chunks, is_cut=is_cut)
    if charged is None:
        charged = case.expect["input_tokens"] + case.expect["output_tokens"]
    assert inspect.used() == (1, charged)


@pytest.mark.parametrize("reason", ["content_filter", "length", "stop", "tool_calls"])
async def test_the_reason_of_an_end_changes_no_charge(
    store: RedisReservationStore, inspect: Inspector, gateway: Gateway, reason: str
) -> None:
    """A sibling of B048: with and without usage."""
    inspect.cache(rpm=100, tpm=10_000_000)
    word = b'data: {"choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"%s"}]%s}\n\n'
    usage = b',"usage":{"prompt_tokens":44,"completion_tokens":70}'
    total = 0
    for number, more in enumerate((usage, b"")):
        await admit(store, rid=f"r{number}", version="", input_tokens=INPUT, cap=990)
        handle = handle_of(f"r{number}", reserved_tokens=RESERVED)
        await gateway.answer(handle, [word, word, end % (reason.encode(), more)])
        total += 114 if more else INPUT + 2
        assert inspect.used() == (number + 1, total)


async def test_a_refusal_by_the_provider_gives_the_tokens_back_and_keeps_the_request(
    store: RedisReservationStore, inspect: Inspector, gateway: Gateway
) -> None:
    """B049: whatever the status, however large the prompt was."""
    inspect.cache(rpm=100, tpm=10_000_000)
    large = {**CHAT, "messages": [{"role": "user", "content": "word " * 5000}]}
    for number, refusal in enumerate((400, 401, 404, 413, 422, 429, 500, 529), start=1):
        status, handle = await gateway.ask(large)
        assert status == 200
        assert handle is not None
        await gateway.refuse(handle, refusal)
        assert inspect.used() == (number, 0)
        assert inspect.open() == 0
