"""SETTLE: faults that others reported about what is charged; see docs/known-faults.md."""

import logging
from typing import Any

import pytest

from extproc.core.buckets import Bucket, Unit
from extproc.core.limits import ServiceLimit
from extproc.core.reservations import Admitted, Knowledge, SettleStatus
from extproc.jobs.reaper import Reaper
from extproc.providers.tokens import count_tokens
from extproc.stores import keys
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.engine import (
    Counters,
    admit,
    minute,
    quota,
    reject,
    sliding,
    slots,
    token_bucket,
)
from tests.support.fakes import RecordingTelemetry
from tests.support.gateway import Gateway, handle_of
from tests.support.reservations import ROOT, Inspector, request, settlement
from tests.unit.provider_cases import answer_cases

MICROS = {"input_price": 1_000_000}  # one for each token
BALANCE = 10_000_000
ANSWERS = {case.name: case for case in answer_cases()}
WORD = b'data: {"choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'
INPUT, RESERVED = 10, 1000
TEXT = "This is a long visible answer of several words."


async def reserve(store: RedisReservationStore, inspect: Inspector) -> None:
    """Reservation "r1" of 1,000 tokens, 10 of them input."""
    inspect.cache(rpm=100, tpm=100_000)
    verdict = await store.reserve(request(rid="r1", input_tokens=INPUT, default=RESERVED - INPUT))
    assert isinstance(verdict, Admitted)
    assert inspect.used() == (1, RESERVED)


async def test_who_leaves_pays_for_what_was_delivered(
    store: RedisReservationStore, inspect: Inspector, gateway: Gateway
) -> None:
    """B018: 511 tokens had passed, and all of the 1,000 went back."""
    await reserve(store, inspect)
    handle = handle_of("r1", reserved_tokens=RESERVED)
    await gateway.answer(handle, [WORD] * 511, is_cut=True)
    assert inspect.used() == (1, INPUT + 511)
    assert inspect.open() == 0


async def test_a_zero_that_is_true_refunds_everything(
    store: RedisReservationStore, inspect: Inspector, gateway: Gateway
) -> None:
    """B029: nothing was produced and zero was reported, and the reserve was kept."""
    await reserve(store, inspect)
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0}}\n\n'
    handle = handle_of("r1", reserved_tokens=RESERVED)
    await gateway.answer(handle, [usage, b"data: [DONE]\n\n"])
    assert inspect.used() == (1, 0)


@pytest.mark.parametrize(
    ("name", "charged"),
    [
        # B152: 7,000 + 3,000, without a total.
        ("anthropic_json_no_total_field", 10_000),
        # B029: a zero beside text is no number.
        ("openai_sse_zero_only_usage_with_text", INPUT + count_tokens(TEXT)),
        # B031 and B032: an error in place of an answer is no output.
        ("openai_sse_error_first_event_200", 0),
        ("upstream_200_json_error_object", 0),
        ("upstream_200_non_json_error_text", 0),
    ],
)
async def test_an_answer_is_charged_for_what_it_says(
    store: RedisReservationStore, inspect: Inspector, gateway: Gateway, name: str, charged: int
) -> None:
    await reserve(store, inspect)
    case = ANSWERS[name]
    handle = handle_of("r1", reserved_tokens=RESERVED, wire_format=case.wire_format)
    await gateway.answer(handle, case.chunks, content_type=case.content_type or "")
    assert inspect.used() == (1, charged)
    assert inspect.open() == 0


async def test_the_text_of_an_error_is_no_output(
    store: RedisReservationStore, inspect: Inspector, gateway: Gateway
) -> None:
    """B032: half a stream, then words of the gateway between."""
    await reserve(store, inspect)
    error = b"(upstream) request failed, please retry later"
    await gateway.answer(handle_of("r1", reserved_tokens=RESERVED), [WORD, WORD, error])
    assert inspect.used() == (1, INPUT + 2)


@pytest.mark.parametrize("policy", ["release", "estimate"])
async def test_a_settlement_that_was_lost_is_booked_when_it_comes(
    store: RedisReservationStore,
    inspect: Inspector,
    gateway: Gateway,
    caplog: pytest.LogCaptureFixture,
    policy: Any,
) -> None:
    """B021: the reaper had freed it, and the late truth was "recovered" without being booked."""
    limit = ServiceLimit(service_id=ROOT, rpm=10, tpm=100_000)
    await store.reserve(request(rid="r1", default=490, deadline_ms=0, limit=limit))
    assert inspect.used() == (1, 500)
    reaper = Reaper(store, RecordingTelemetry(), policy=policy, interval=1)
    assert await reaper.sweep() == 1
    assert inspect.used() == (1, 0 if policy == "release" else 500)
    gateway.settler.submit(settlement("r1", 10, 290))
    await gateway.flush()
    assert inspect.used() == (1, 300)
    # Too late even for that: it is said to be missing, not settled.
    inspect.client.delete(keys.reservation(ROOT, "r1"))
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="tokenweir.settle"):
        gateway.settler.submit(settlement("r1", 10, 290))
        await gateway.flush()
    assert [vars(record)["status"] for record in caplog.records] == ["missing"]


async def test_the_truth_after_the_sweeper_moves_the_balance_once(
    store: RedisReservationStore, counters: Counters, inspect: Inspector
) -> None:
    """B022: the sweeper had settled 2.20, and 0.55 was an exception. Here what is known replaces
    what was guessed, once; whatever comes then is a no-op."""
    limit = quota("balance", Unit.COST, BALANCE)
    today = inspect.minute()[:8]
    await admit(store, limit, rid="r1", input_tokens=2_200_000, cap=0, deadline_ms=0, **MICROS)
    counters.client.sadd(keys.ROOTS, ROOT)
    reaper = Reaper(store, RecordingTelemetry(), policy="estimate", interval=1)
    assert await reaper.sweep() == 1
    assert counters.quota(limit, today) == (2_200_000, 0)
    late = settlement("r1", 550_000, 0)
    assert (await store.settle(late)).status is SettleStatus.IMPROVED
    assert counters.quota(limit, today) == (550_000, 0)
    for tokens in (550_000, 2_200_000, 0):
        again = await store.settle(settlement("r1", tokens, 0))
        assert again.status is SettleStatus.NOOP
        assert counters.quota(limit, today) == (550_000, 0)


async def test_an_explicit_zero_gives_the_money_back(
    store: RedisReservationStore, counters: Counters, inspect: Inspector
) -> None:
    """B029: 4.397952 stayed reserved."""
    limit = quota("balance", Unit.COST, BALANCE)
    today = inspect.minute()[:8]
    await admit(store, limit, rid="r1", input_tokens=4_397_952, cap=0, **MICROS)
    assert counters.quota(limit, today) == (0, 4_397_952)
    await store.settle(settlement("r1", 0, 0))
    assert counters.quota(limit, today) == (0, 0)


TEN = {
    "minute": minute("tight", Unit.TOTAL, 10),
    "sliding": sliding("tight", Unit.TOTAL, 10, window_ms=60_000),
    "bucket": token_bucket("tight", Unit.TOTAL, 1, capacity=10),
    "quota": quota("tight", Unit.TOTAL, 10),
}


@pytest.mark.parametrize("kind", TEN)
async def test_a_refusal_leaves_what_was_left(
    store: RedisReservationStore, counters: Counters, kind: str
) -> None:
    """B028: 2 were left, 5 were asked, and -3 was stored."""
    limit: Bucket = TEN[kind]
    await admit(store, limit, input_tokens=8, cap=0)
    before = counters.state()
    refused = await reject(store, limit, input_tokens=5, cap=0)
    assert refused.buckets[0].remaining == 2
    assert counters.state() == before
    assert (await admit(store, limit, input_tokens=2, cap=0)).buckets[0].remaining == 0


async def test_there_is_one_book_and_a_spend_is_in_it_once(
    store: RedisReservationStore, counters: Counters, inspect: Inspector
) -> None:
    """B030: 0.0052272 was spent and 0.0053251 counted, once when it came and once when flushed.
    Money is counted in whole millionths here, rounded up."""
    limit, places = quota("budget", Unit.COST, BALANCE), slots("parallel", 100)
    today = inspect.minute()[:8]
    ids = [f"r{number}" for number in range(20)]
    for rid in ids:
        await admit(store, limit, places, rid=rid, input_tokens=9000, cap=0, **MICROS)
        for knowledge, micros in ((Knowledge.COUNTED, 98), (Knowledge.KNOWN, 5228)):
            end = settlement(rid, micros, 0, knowledge=knowledge)
            await store.settle(end)
            await store.settle(end)
    booked = sum(int(inspect.record(rid)["cost"]) for rid in ids)
    assert booked == 20 * 5228
    assert counters.quota(limit, today) == (booked, 0)
