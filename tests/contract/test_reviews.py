"""Reaper policy "review": what comes in, and what goes out by itself, on a real Valkey."""

import asyncio
import logging
from typing import Any

import pytest
import redis

from extproc.core.limits import ServiceLimit
from extproc.core.ports import OpenReservation
from extproc.core.reservations import (
    Knowledge,
    Outcome,
    Settlement,
    SettleStatus,
    Source,
    State,
)
from extproc.stores import keys
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.reviews import Reviews
from tests.contract.test_reaper import Notes, open_overdue, reaper
from tests.support.reservations import ROOT, Inspector, request, settlement
from tests.support.reviews import RECORD_MS, WEEK_MS, life_ms, sweep, waiting

# --- Coming in ------------------------------------------------------------------------------------


async def test_what_nobody_reported_is_charged_and_kept_for_people(
    store: RedisReservationStore,
    inspect: Inspector,
    redis_client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="tokenweir.reaper")
    await open_overdue(store, 2)
    notes = Notes()
    assert await sweep(store, notes) == 2
    assert inspect.used() == (2, 220)
    record = inspect.record("r0")
    assert (record["state"], record["outcome"], record["source"], record["rank"]) == (
        "RECONCILING",
        "unreported",
        "reaper",
        "1",
    )
    assert (inspect.open(), waiting(redis_client)) == (0, ["r0", "r1"])
    for key in (keys.review(ROOT), keys.reservation(ROOT, "r0")):
        assert WEEK_MS - 60_000 < int(redis_client.pttl(key)) <= WEEK_MS
    assert (notes.open, notes.reviews) == ([0], [2])
    assert {line.message for line in caplog.records} == {"reservation_in_review"}
    assert await sweep(store, notes) == 0
    assert notes.reviews == [2, 2]


@pytest.mark.parametrize("policy", ["estimate", "release"])
async def test_other_policies_keep_nothing(
    policy: Any, store: RedisReservationStore, redis_client: redis.Redis, inspect: Inspector
) -> None:
    await open_overdue(store, 1)
    notes = Notes()
    assert await reaper(store, notes, policy=policy).sweep() == 1
    assert waiting(redis_client) == []
    assert life_ms(redis_client) <= RECORD_MS
    assert notes.reviews == [0]


async def test_an_upstream_that_broke_is_nothing_for_people(
    store: RedisReservationStore, redis_client: redis.Redis, inspect: Inspector
) -> None:
    """RECONCILING by metering or the ending: they saw it."""
    await open_overdue(store, 1)
    await store.settle(
        settlement("r0", state=State.RECONCILING, source=Source.ENDING, knowledge=Knowledge.GUESSED)
    )
    assert waiting(redis_client) == []
    assert life_ms(redis_client) <= RECORD_MS


async def test_reapers_of_several_policies_at_once_end_each_reservation_once(
    store: RedisReservationStore, redis_client: redis.Redis, inspect: Inspector
) -> None:
    await open_overdue(store, 150)
    policies: tuple[Any, ...] = ("review", "review", "estimate", "review")
    counts = await asyncio.gather(*(reaper(store, Notes(), policy=p).sweep() for p in policies))
    assert sum(counts) == 150
    assert inspect.used() == (150, 150 * 110)
    kept = {f"r{i}" for i in range(150) if inspect.record(f"r{i}")["state"] == "RECONCILING"}
    assert kept == set(waiting(redis_client))
    assert kept


@pytest.mark.parametrize("release", [False, True])
async def test_an_end_that_comes_while_the_reaper_looks_wins(
    release: bool, store: RedisReservationStore, redis_client: redis.Redis, inspect: Inspector
) -> None:
    await open_overdue(store, 1)

    class Late:
        """The end arrives between the reaper's look and its settlement."""

        roots, settle = staticmethod(store.roots), staticmethod(store.settle)
        open_count = staticmethod(store.open_count)
        review_count = staticmethod(store.review_count)

        async def overdue(self, root: str, *, at_most: int) -> list[OpenReservation]:
            found = await store.overdue(root, at_most=at_most)
            if release:
                await store.release(settlement("r0", state=State.RELEASED))
            else:
                await store.settle(settlement("r0", 10, 5))
            return found

    assert await sweep(Late()) == 0
    assert waiting(redis_client) == []
    assert inspect.used() == (1, 0 if release else 15)


# --- Going out ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("late", "tokens"),
    [
        (settlement("r0", 10, 5), 15),
        (settlement("r0", 10, 7, knowledge=Knowledge.COUNTED, outcome=Outcome.CUT), 17),
        (settlement("r0", outcome=Outcome.UPSTREAM_REFUSED, state=State.RELEASED), 0),
    ],
    ids=["known", "counted", "released"],
)
async def test_a_late_end_that_knows_better_takes_it_out(
    late: Settlement,
    tokens: int,
    store: RedisReservationStore,
    redis_client: redis.Redis,
    inspect: Inspector,
) -> None:
    await open_overdue(store, 2)
    await sweep(store)
    verb = store.release if late.state is State.RELEASED else store.settle
    assert (await verb(late)).status is SettleStatus.IMPROVED
    assert inspect.used() == (2, 110 + tokens)
    assert waiting(redis_client) == ["r1"]
    assert life_ms(redis_client) <= RECORD_MS
    assert inspect.record("r0")["source"] == "metering"


async def test_a_late_guess_does_not(
    store: RedisReservationStore, redis_client: redis.Redis, inspect: Inspector
) -> None:
    await open_overdue(store, 1)
    await sweep(store)
    guess = settlement("r0", 10, 0, knowledge=Knowledge.GUESSED, source=Source.ENDING)
    assert (await store.settle(guess)).status is SettleStatus.NOOP
    assert waiting(redis_client) == ["r0"]
    assert life_ms(redis_client) > RECORD_MS


async def test_after_a_week_it_is_forgotten_and_the_charge_stands(
    store: RedisReservationStore, redis_client: redis.Redis, inspect: Inspector, reviews: Reviews
) -> None:
    await open_overdue(store, 2)
    await sweep(store)
    redis_client.zincrby(keys.review(ROOT), -WEEK_MS, "r0")
    redis_client.delete(keys.reservation(ROOT, "r0"))
    notes = Notes()
    await sweep(store, notes)
    assert notes.reviews == [1]
    assert [one.reservation_id for one in await reviews.waiting(ROOT)] == ["r1"]
    assert inspect.used() == (2, 220)


async def test_a_root_keeps_no_more_than_ten_thousand(
    store: RedisReservationStore, redis_client: redis.Redis, inspect: Inspector
) -> None:
    """The oldest go; what they were charged stands."""
    await open_overdue(store, 1)
    await sweep(store)
    newer = int(redis_client.time()[0]) * 1000 + 1000
    redis_client.zadd(keys.review(ROOT), {f"other-{i}": newer for i in range(9_999)})
    limit = ServiceLimit(service_id=ROOT, rpm=10_000, tpm=10_000_000)
    await store.reserve(request(rid="last", deadline_ms=0, limit=limit))
    assert await sweep(store) == 1
    assert redis_client.zcard(keys.review(ROOT)) == 10_000
    assert redis_client.zscore(keys.review(ROOT), "r0") is None
    assert redis_client.zscore(keys.review(ROOT), "last") is not None
    assert inspect.record("r0")["state"] == "EXPIRED"
    assert life_ms(redis_client) <= RECORD_MS
    assert inspect.used() == (2, 220)
