"""NUMBER: faults that others reported about numbers in Redis and SQL; see docs/known-faults.md."""

import pytest
import redis

from extproc.core.buckets import Bucket, Unit
from extproc.core.limits import MAX_LIMIT
from extproc.stores import keys
from extproc.stores.limit_table import LimitTable
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.engine import (
    Counters,
    admit,
    minute,
    quota,
    reject,
    sliding,
    token_bucket,
)
from tests.support.gateway import Gateway, handle_of
from tests.support.reservations import Inspector, settlement
from tests.unit.provider_cases import answer_cases

BILLIONS = 3_000_000_000  # above 2**31 - 1
# What a token bucket keeps are millionths, and a double holds them exactly up to here.
LARGEST_BUCKET = (2**53 - 1) // 1_000_000


def of(limit: int) -> dict[str, Bucket]:
    filling = min(limit, LARGEST_BUCKET)
    return {
        "minute": minute("n", Unit.TOTAL, limit),
        "sliding": sliding("n", Unit.TOTAL, limit, window_ms=60_000),
        "quota": quota("n", Unit.TOTAL, limit),
        "money": quota("n", Unit.COST, limit),
        # It refills nothing that would be seen in the time of a test.
        "bucket": token_bucket("n", Unit.TOTAL, 1, capacity=filling),
    }


@pytest.mark.parametrize("kind", of(1))
@pytest.mark.parametrize("limit", [2**31 - 1, 2**31, 2**32 + 1, BILLIONS, MAX_LIMIT])
async def test_the_last_token_of_a_large_limit_is_admitted_and_the_next_refused(
    store: RedisReservationStore, counters: Counters, kind: str, limit: int
) -> None:
    """B096, B097: nothing wraps, nothing is rounded, nothing is written as 3e+09."""
    counter = of(limit)[kind]
    room = counter.capacity or counter.limit
    price = {"input_price": 1_000_000}
    first = await admit(store, counter, rid="r1", input_tokens=room - 1, cap=0, **price)
    assert [state.remaining for state in first.buckets] == [1]
    assert (await reject(store, counter, input_tokens=2, cap=0, **price)).buckets[0].remaining == 1
    last = await admit(store, counter, rid="r2", input_tokens=1, cap=0, **price)
    assert [state.remaining for state in last.buckets] == [0]
    await reject(store, counter, input_tokens=1, cap=0, **price)
    await store.settle(settlement("r1", room - 8, 0))
    seven = await admit(store, counter, input_tokens=7, cap=0, **price)
    assert [state.remaining for state in seven.buckets] == [0]
    assert "e+" not in repr(counters.state())


async def test_a_limit_of_billions_is_stored_as_it_is(table: LimitTable) -> None:
    """B097, in SQLite and MariaDB. Requests have 32 bits there, and more are refused by name."""
    for tpm in (2**31, BILLIONS, MAX_LIMIT):
        await table.put("svc-1", rpm=2**31 - 1, tpm=tpm, enabled=None)
        found = await table.find("svc-1")
        assert found is not None
        assert (found.rpm, found.tpm) == (2**31 - 1, tpm)
    with pytest.raises(ValueError, match="rpm"):
        await table.put("svc-1", rpm=BILLIONS, tpm=1, enabled=None)
    with pytest.raises(ValueError, match="tpm"):
        await table.put("svc-1", rpm=1, tpm=2**53 + 1, enabled=None)


@pytest.mark.parametrize("count", [2**31 - 2, 2**31, 2**32, 2**50 + 1, MAX_LIMIT - 1])
async def test_what_is_charged_is_stored_to_the_last_digit(
    store: RedisReservationStore, counters: Counters, inspect: Inspector, count: int
) -> None:
    """B096: a sum that a double cannot hold would end in another digit."""
    tokens, money = quota("t", Unit.TOTAL, MAX_LIMIT), quota("c", Unit.COST, MAX_LIMIT)
    prices = {"input_price": 1_000_000, "output_price": 1_000_000}
    today = inspect.minute()[:8]
    await admit(store, tokens, money, rid="r1", **prices)
    await store.settle(settlement("r1", count, 1))
    assert counters.quota(tokens, today) == counters.quota(money, today) == (count + 1, 0)
    assert inspect.record("r1")["charged"] == str(count + 1)


def usage(prompt: str, completion: str) -> bytes:
    """A stream with a word, and numbers as a provider may write them."""
    report = f'{{"prompt_tokens":{prompt},"completion_tokens":{completion}}}'
    word = 'data: {"choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'
    return f'{word}data: {{"choices":[],"usage":{report}}}\n\ndata: [DONE]\n\n'.encode()


@pytest.mark.parametrize(
    ("body", "charged"),
    [
        (usage("23", "14417.2"), 23 + 14418),  # B098
        (usage("22.5", "0.1"), 23 + 1),
        (usage("2.3e1", "1.4417E4"), 23 + 14417),
        # B102, and siblings: a report with what cannot be a number of tokens is not believed at
        # all, and our own counts stand in.
        (usage("-100", "7"), 10 + 1),
        (usage("23", "-7"), 10 + 1),
        (usage("1e308", "9007199254740993"), 10 + 1),
        (usage("-1e-9", "1e-400"), 10 + 1),
        (usage("-0.0", "2147483648"), 10 + 1),
        (usage("NaN", "Infinity"), 10 + 1),
        # B100: nor is one with 5,000 digits, which costs nothing else.
        (usage("9" * 5000, "7"), 10 + 1),
        (usage("23", "-" + "9" * 5000), 10 + 1),
    ],
    ids=range(11),
)
async def test_a_number_of_any_kind_is_charged_as_whole_tokens(
    store: RedisReservationStore, inspect: Inspector, body: bytes, charged: int
) -> None:
    inspect.cache(rpm=10, tpm=100_000)
    gateway = Gateway(store)
    await admit(store, rid="r1", version="", cap=990)
    await gateway.answer(handle_of("r1", reserved_tokens=1000), [body])
    assert inspect.used() == (1, charged)
    assert inspect.record("r1")["charged"] == str(charged)
    gateway.close()


@pytest.mark.parametrize("name", ["openai_json_negative_tokens", "openai_json_tokens_1e308"])
async def test_absurd_usage_credits_nobody(
    store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis, name: str
) -> None:
    """B102: the charge is what was counted, never below the input."""
    (case,) = (case for case in answer_cases() if case.name == name)
    inspect.cache(rpm=10, tpm=100_000)
    gateway = Gateway(store)
    await admit(store, rid="r1", version="", cap=990)
    handle = handle_of("r1", reserved_tokens=1000, wire_format=case.wire_format)
    await gateway.answer(handle, case.chunks, content_type=case.content_type or "")
    charged = inspect.used()[1]
    assert charged is not None
    assert 10 <= charged < 1000
    assert redis_client.get(keys.tpm_prefix("svc-1") + inspect.minute()) == str(charged)
    gateway.close()


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"n": 2**32, "max_tokens": 2**32}),  # B099
        ("/v1/chat/completions", {"n": 2**31, "max_tokens": 2}),
        ("/v1/completions", {"prompt": ["x"] * 64, "best_of": 2**26, "max_tokens": 2**26}),
        ("/v1beta/models/m:generateContent", {"generationConfig": {"candidateCount": 2**62}}),
        ("/v1/messages", {"max_tokens": 2**63}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 10**29}),
        ("/api/chat", {"options": {"num_predict": 2**64}}),
    ],
)
async def test_factors_that_would_wrap_are_refused(
    store: RedisReservationStore, inspect: Inspector, path: str, fields: dict[str, object]
) -> None:
    inspect.cache(rpm=10, tpm=MAX_LIMIT)
    gateway = Gateway(store)
    body = {"model": "m", "messages": [], "contents": [], **fields}
    assert await gateway.ask(body, path=path) == (400, None)
    assert inspect.used() == (None, None)
    gateway.close()


async def test_the_largest_request_that_is_taken_is_reserved_to_the_last_token(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    """B099: 128 x (2**31 - 1), which no 32 bits hold."""
    inspect.cache(rpm=10, tpm=MAX_LIMIT)
    gateway = Gateway(store)
    body = {"model": "m", "messages": [], "n": 128, "max_tokens": 2**31 - 1}
    status, handle = await gateway.ask(body)
    assert status == 200
    assert handle is not None
    assert inspect.used() == (1, handle.input_tokens + 128 * (2**31 - 1))
    gateway.close()
