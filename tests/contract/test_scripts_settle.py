"""settle.lua, release.lua and overdue.lua on a real Valkey."""

import itertools
import random
from dataclasses import replace

import pytest
import redis

from extproc.core.reservations import (
    Admitted,
    Knowledge,
    Outcome,
    SettleStatus,
    Source,
    State,
)
from extproc.core.usage import Usage
from extproc.stores import keys
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.reservations import ROOT, Inspector, request, settlement

RESERVED = 110


@pytest.fixture
async def minute(store: RedisReservationStore, inspect: Inspector) -> str:
    """Reservation "r1" of 10 + 100 tokens is open; the minute it was admitted in."""
    inspect.cache(rpm=100, tpm=10_000)
    verdict = await store.reserve(request(rid="r1"))
    assert isinstance(verdict, Admitted)
    return verdict.minute


async def test_settle_replaces_the_reserve_by_the_charge(
    store: RedisReservationStore, inspect: Inspector, minute: str
) -> None:
    result = await store.settle(settlement("r1", 12, 30))
    assert result.status is SettleStatus.APPLIED
    assert (result.reserved_tokens, result.charged_before_tokens, result.charged_tokens) == (
        RESERVED,
        RESERVED,
        42,
    )
    assert inspect.used(minute) == (1, 42)
    assert inspect.open() == 0
    assert inspect.record("r1")["state"] == "SETTLED"


async def test_what_was_used_by_kind_stands_in_the_record_that_ended(
    store: RedisReservationStore, inspect: Inspector, minute: str
) -> None:
    """Totals and zeros are not repeated there."""
    usage = Usage(
        input_tokens=12, output_tokens=30, cached_input_tokens=9, image_input_tokens=0
    ).merged(Usage(reasoning_tokens=11, server_tool_calls=2))
    await store.settle(replace(settlement("r1", 12, 30), usage=usage))
    told = "cached_input 9, reasoning 11, server_tool_calls 2"
    assert inspect.record("r1")["parts"] == told
    worse = replace(settlement("r1", 500, 500), usage=Usage(cached_input_tokens=400))
    await store.settle(worse)
    assert inspect.record("r1")["parts"] == told


async def test_settling_twice_changes_nothing(
    store: RedisReservationStore, inspect: Inspector, minute: str
) -> None:
    await store.settle(settlement("r1", 12, 30, history=True))
    again = await store.settle(settlement("r1", 500, 500, history=True))
    assert again.status is SettleStatus.NOOP
    assert (again.charged_tokens, again.outcome) == (42, "complete")
    assert inspect.used(minute) == (1, 42)
    assert inspect.history() == {"count": "1", "output_tokens": "30"}


async def test_release_after_settle_and_settle_after_release_are_noops(
    store: RedisReservationStore, inspect: Inspector, minute: str
) -> None:
    await store.settle(settlement("r1", 12, 30))
    assert (await store.release(settlement("r1"))).status is SettleStatus.NOOP
    assert inspect.used(minute) == (1, 42)

    await store.reserve(request(rid="r2"))
    released = await store.release(settlement("r2", outcome=Outcome.NOT_FORWARDED))
    assert (released.status, released.charged_tokens) == (SettleStatus.APPLIED, 0)
    assert inspect.used(minute) == (2, 42)  # the request stays counted
    assert (await store.settle(settlement("r2", 1, 1))).status is SettleStatus.NOOP
    assert inspect.used(minute) == (2, 42)
    assert inspect.open() == 0


async def test_a_charge_above_the_limit_is_charged(
    store: RedisReservationStore, inspect: Inspector, minute: str
) -> None:
    await store.settle(settlement("r1", 10_000, 5_000))
    assert inspect.used(minute) == (1, 15_000)


@pytest.mark.parametrize("output", [100, 0])
async def test_zero_differences_and_zero_charges(
    store: RedisReservationStore, inspect: Inspector, minute: str, output: int
) -> None:
    result = await store.settle(settlement("r1", 10 if output else 0, output))
    assert result.status is SettleStatus.APPLIED
    assert inspect.used(minute) == (1, RESERVED if output else 0)


async def test_negative_counts_never_mint_tokens(
    store: RedisReservationStore, inspect: Inspector, minute: str
) -> None:
    await store.settle(settlement("r1", -500, -500))
    assert inspect.used(minute) == (1, 0)


async def test_better_knowledge_corrects_a_guess_once_and_in_every_order(
    store: RedisReservationStore, inspect: Inspector, minute: str
) -> None:
    ends = [(Knowledge.GUESSED, 110), (Knowledge.COUNTED, 40), (Knowledge.KNOWN, 42)]
    total = RESERVED
    for number, order in enumerate(itertools.permutations(ends)):
        rid = f"x{number}"
        await store.reserve(request(rid=rid))
        best = 0
        for rank, tokens in order:
            result = await store.settle(settlement(rid, tokens, 0, knowledge=rank))
            assert (result.status is SettleStatus.NOOP) == (rank <= best)
            assert (result.status is SettleStatus.APPLIED) == (best == 0)
            best = max(best, rank)
        total += 42
        assert inspect.record(rid)["charged"] == "42"
        assert inspect.used(minute)[1] == total


async def test_expired_then_the_real_usage_arrives(
    store: RedisReservationStore, inspect: Inspector, minute: str
) -> None:
    guess = settlement(
        "r1",
        10,
        100,
        knowledge=Knowledge.GUESSED,
        outcome=Outcome.UNREPORTED,
        source=Source.REAPER,
        state=State.EXPIRED,
    )
    assert (await store.settle(guess)).status is SettleStatus.NOOP  # not yet due
    inspect.client.zadd(keys.pending(ROOT), {"r1": 1})
    assert (await store.settle(guess)).status is SettleStatus.APPLIED
    assert inspect.record("r1")["state"] == "EXPIRED"
    improved = await store.settle(settlement("r1", 10, 5, history=True))
    assert (improved.status, improved.charged_before_tokens) == (SettleStatus.IMPROVED, RESERVED)
    assert inspect.used(minute) == (1, 15)
    assert inspect.history() == {"count": "1", "output_tokens": "5"}
    assert inspect.record("r1")["state"] == "SETTLED"
    assert (await store.settle(settlement("r1", 10, 6))).status is SettleStatus.NOOP


async def test_a_guessed_release_is_corrected_by_the_real_usage(
    store: RedisReservationStore, inspect: Inspector, minute: str
) -> None:
    guess = settlement("r1", knowledge=Knowledge.GUESSED, outcome=Outcome.UNREPORTED)
    assert (await store.release(guess)).status is SettleStatus.APPLIED
    assert inspect.used(minute) == (1, 0)
    assert (await store.settle(settlement("r1", 10, 5))).status is SettleStatus.IMPROVED
    assert inspect.used(minute) == (1, 15)


async def test_the_reason_of_a_cut_is_learnt_later_or_kept_from_before(
    store: RedisReservationStore, inspect: Inspector, minute: str
) -> None:
    cut = settlement("r1", 10, 5, knowledge=Knowledge.COUNTED, outcome=Outcome.CUT)
    broken = settlement(
        "r1",
        10,
        100,
        knowledge=Knowledge.GUESSED,
        outcome=Outcome.UPSTREAM_BROKEN,
        source=Source.ENDING,
        state=State.RECONCILING,
    )
    await store.settle(cut)
    result = await store.settle(broken)
    assert (result.status, result.outcome) == (SettleStatus.CLASSIFIED, "upstream_broken")
    assert inspect.used(minute) == (1, 15)
    assert inspect.record("r1")["state"] == "RECONCILING"
    assert (await store.settle(broken)).status is SettleStatus.NOOP

    inspect.client.delete(keys.reservation(ROOT, "r1"), keys.tpm_prefix(ROOT) + minute)
    await store.reserve(request(rid="r1"))
    await store.settle(broken)
    result = await store.settle(cut)
    assert (result.status, result.outcome) == (SettleStatus.IMPROVED, "upstream_broken")
    assert inspect.record("r1")["state"] == "RECONCILING"
    assert inspect.used(minute)[1] == 15


@pytest.mark.parametrize("first", ["metering", "ending"])
async def test_what_passed_unseen_by_metering_is_not_free(
    store: RedisReservationStore, inspect: Inspector, minute: str, first: str
) -> None:
    """Metering was cut off, but Envoy says that the answer went on to its end."""
    cut = settlement("r1", 10, 5, knowledge=Knowledge.COUNTED, outcome=Outcome.CUT)
    ended = settlement(
        "r1",
        10,
        100,
        knowledge=Knowledge.GUESSED,
        outcome=Outcome.COMPLETE_ESTIMATED,
        source=Source.ENDING,
    )
    for end in (cut, ended) if first == "metering" else (ended, cut):
        await store.settle(end)
    assert inspect.record("r1")["charged"] == str(RESERVED)
    assert inspect.used(minute) == (1, RESERVED)
    assert (await store.settle(ended)).status is SettleStatus.NOOP
    assert (await store.settle(settlement("r1", 10, 50))).status is SettleStatus.IMPROVED
    assert inspect.used(minute) == (1, 60)


async def test_settling_goes_to_the_window_of_the_admission(
    store: RedisReservationStore, inspect: Inspector, minute: str
) -> None:
    earlier = inspect.minute(back=1)
    inspect.move_to_minute("r1", earlier)
    await store.reserve(request(rid="r2"))
    await store.settle(settlement("r1", 10, 5, history=True))
    assert inspect.used(earlier) == (1, 15)
    assert inspect.used(minute) == (1, RESERVED)
    # The history belongs to the minute in which the answer ended.
    assert inspect.history(earlier) == {}
    assert inspect.history()["output_tokens"] == "5"


async def test_a_window_that_expired_is_not_made_again(
    store: RedisReservationStore, inspect: Inspector, minute: str
) -> None:
    inspect.client.delete(keys.tpm_prefix(ROOT) + minute)
    assert (await store.settle(settlement("r1", 10, 5000))).status is SettleStatus.APPLIED
    assert inspect.used(minute) == (1, None)


async def test_a_correction_keeps_the_windows_ttl(
    store: RedisReservationStore, inspect: Inspector, minute: str
) -> None:
    key = keys.tpm_prefix(ROOT) + minute
    inspect.client.expire(key, 50)
    await store.settle(settlement("r1", 0, 0))
    await store.reserve(request(rid="r2"))
    assert 0 < inspect.client.ttl(key) <= 50


async def test_a_window_lost_and_made_anew_never_goes_below_zero(
    store: RedisReservationStore, inspect: Inspector, minute: str
) -> None:
    inspect.client.delete(keys.tpm_prefix(ROOT) + minute)
    await store.reserve(request(rid="r2", input_tokens=1, cap=0))
    await store.release(settlement("r1"))
    assert inspect.used(minute)[1] == 0


async def test_unknown_ids_change_nothing(
    store: RedisReservationStore, inspect: Inspector, minute: str
) -> None:
    before = set(inspect.client.keys()) - {keys.ROOTS}
    assert (await store.settle(settlement("nobody", history=True))).status is SettleStatus.MISSING
    assert set(inspect.client.keys()) - {keys.ROOTS} == before
    assert (await store.release(settlement("nobody"))).status is SettleStatus.MISSING
    assert (await store.settle(settlement("nobody"))).status is SettleStatus.NOOP


async def test_overdue_lists_what_is_past_its_deadline_and_drops_what_has_no_record(
    store: RedisReservationStore, inspect: Inspector, minute: str
) -> None:
    await store.reserve(request(rid="late", input_tokens=3, deadline_ms=0))
    await store.reserve(request(rid="lost", deadline_ms=0))
    inspect.client.delete(keys.reservation(ROOT, "lost"))
    found = await store.overdue(ROOT, at_most=10)
    assert [(o.reservation_id, o.input_tokens, o.reserved_tokens) for o in found] == [
        ("late", 3, 103)
    ]
    assert found[0].overdue_ms >= 0
    assert await store.open_count(ROOT) == 2


async def test_a_record_that_others_spoilt_does_not_stop_the_reaper(
    store: RedisReservationStore, inspect: Inspector, minute: str
) -> None:
    inspect.client.hset(keys.reservation(ROOT, "bad"), "rank", 0)
    inspect.client.zadd(keys.pending(ROOT), {"bad": 1})
    assert await store.overdue(ROOT, at_most=10) == []
    assert inspect.open() == 1


async def test_overdue_looks_past_a_batch_that_is_all_stale(
    store: RedisReservationStore, inspect: Inspector, minute: str
) -> None:
    inspect.client.zadd(keys.pending(ROOT), {f"stale{i}": i for i in range(10)})
    await store.reserve(request(rid="late", deadline_ms=0))
    assert [o.reservation_id for o in await store.overdue(ROOT, at_most=3)] == ["late"]


async def test_after_a_random_mix_every_key_expires_and_the_books_balance(
    store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis
) -> None:
    inspect.cache(rpm=10_000, tpm=50_000)
    dice = random.Random(7)
    ids = [f"id{i}" for i in range(200)]
    for _ in range(600):
        rid = dice.choice(ids)
        rank = dice.choice([Knowledge.GUESSED, Knowledge.COUNTED, Knowledge.KNOWN])
        end = settlement(
            rid, dice.randrange(50), dice.randrange(300), knowledge=rank, history=rank == 3
        )
        verb = dice.randrange(4)
        if verb < 2 and inspect.record(rid).get("state") != "RELEASED":
            await store.reserve(request(rid=rid, input_tokens=dice.randrange(100)))
        elif verb == 2:
            await store.settle(end)
        else:
            await store.release(end)
    names = set(redis_client.keys()) - {keys.ROOTS}
    assert keys.pending(ROOT) in names
    assert [name for name in names if redis_client.ttl(name) < 0] == []
    charged = sum(int(inspect.record(rid).get("charged", 0)) for rid in ids)
    minutes = {inspect.record(rid).get("minute") for rid in ids} - {None, ""}
    assert sum(inspect.used(name)[1] or 0 for name in minutes if name) == charged
    assert inspect.open() == sum(inspect.record(rid).get("rank") == "0" for rid in ids)


async def test_the_pending_set_outlives_its_last_deadline(
    store: RedisReservationStore, inspect: Inspector, minute: str
) -> None:
    await store.reserve(request(rid="long", deadline_ms=5_000_000))
    await store.reserve(request(rid="short", deadline_ms=1_000))
    assert inspect.client.pttl(keys.pending(ROOT)) > 5_000_000
    assert inspect.client.pttl(keys.reservation(ROOT, "long")) > 5_800_000
