"""What a hostile test of the engine found, each once."""

from dataclasses import replace

import pytest
import redis

from extproc.core.buckets import Bucket, Period, Unit
from extproc.core.reservations import (
    Admitted,
    Knowledge,
    Outcome,
    Rejected,
    ReserveRequest,
    SettleStatus,
    Source,
    State,
)
from extproc.jobs.reaper import Reaper
from extproc.stores import keys
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.engine import (
    Counters,
    admit,
    asking,
    cache_view,
    minute,
    quota,
    sliding,
    token_bucket,
)
from tests.support.fakes import RecordingTelemetry
from tests.support.reservations import ROOT, Inspector, settlement

THREE_DAYS_MS, WEEK_MS = 3 * 86_400_000, 7 * 86_400_000
GIVEN_UP = settlement(
    "r1", 0, 0, outcome=Outcome.NOT_FORWARDED, source=Source.ENDING, state=State.RELEASED
)


@pytest.fixture(autouse=True)
def _cached(redis_client: redis.Redis, inspect: Inspector) -> None:
    cache_view(redis_client)


async def test_no_value_can_name_what_another_values_window_keeps(
    store: RedisReservationStore, counters: Counters
) -> None:
    """``gpt:n`` once was where the amounts of ``gpt`` are."""
    for value in ("gpt:n", "gpt", "gpt:n:n"):
        limit = sliding(f"p.total_tpm.model:{value}", Unit.TOTAL, 1000, window_ms=60_000)
        await admit(store, limit, cap=10)
    state = counters.state()
    assert len([key for key in state if key.startswith("window:")]) == 3
    assert [state[key]["sum"] for key in state if key.startswith("amounts:")] == ["20"] * 3


async def test_a_spoilt_counter_is_no_reason_to_move_the_others_again(
    store: RedisReservationStore, counters: Counters, inspect: Inspector
) -> None:
    spoilt = sliding("a", Unit.TOTAL, 1000, window_ms=60_000)
    others = (minute("m", Unit.TOTAL, 1000), quota("q", Unit.TOTAL, 1000))
    await admit(store, spoilt, *others, rid="r1", cap=10)
    counters.client.delete(keys.amounts(spoilt.key))
    counters.client.set(keys.amounts(spoilt.key), "no hash", ex=60)
    for status in (SettleStatus.APPLIED, SettleStatus.NOOP):
        assert (await store.settle(settlement("r1", 10, 5))).status is status
        assert counters.quota(others[1], inspect.minute()[:8]) == (15, 0)
    assert inspect.record("r1")["broken"] == spoilt.key


async def test_the_reaper_goes_on_behind_one_that_cannot_be_ended(
    store: RedisReservationStore, counters: Counters, inspect: Inspector
) -> None:
    for rid in ("r1", "r2"):
        await admit(store, minute("m", Unit.TOTAL, 1000), rid=rid, cap=10, deadline_ms=0)
    counters.client.hset(keys.reservation(ROOT, "r1"), "charged", "no number")
    counters.client.sadd(keys.ROOTS, ROOT)
    with pytest.raises(Exception, match="redis"):
        await Reaper(store, RecordingTelemetry()).sweep()
    assert inspect.record("r2")["state"] == State.EXPIRED


async def test_a_bucket_that_does_not_refuse_owes_one_filling_at_most(
    store: RedisReservationStore, counters: Counters
) -> None:
    """Or a trial by shadow would lock everybody out on the day when it is enforced."""

    def bucket(*, enforced: bool) -> Bucket:
        return token_bucket("b", Unit.REQUESTS, 60, capacity=2, enforced=enforced)

    for _ in range(100):
        await admit(store, bucket(enforced=False))
    verdict = await store.reserve(asking(bucket(enforced=True)))
    assert isinstance(verdict, Rejected)
    assert verdict.retry_after_ms is not None
    assert verdict.retry_after_ms <= 3000


async def test_a_quota_of_which_nothing_was_used_is_soon_forgotten(
    store: RedisReservationStore, counters: Counters
) -> None:
    """Whoever makes up names of models must not fill the memory with their quotas."""
    limits = [quota(p, Unit.TOTAL, 1000, period=p) for p in (Period.DAY, Period.MONTH)]
    for rid in ("r1", "r2"):
        await admit(store, *limits, rid=rid, cap=10)
    await store.release(GIVEN_UP)
    assert min(lives(counters)) > WEEK_MS
    await store.release(replace(GIVEN_UP, reservation_id="r2"))
    assert max(lives(counters)) < THREE_DAYS_MS
    # As soon as something is taken again it is kept as ever.
    await admit(store, *limits, rid="r3", cap=10)
    assert min(lives(counters)) > WEEK_MS


async def test_a_quota_that_a_guess_has_emptied_can_still_be_charged(
    store: RedisReservationStore, counters: Counters, inspect: Inspector
) -> None:
    limit = quota("d", Unit.TOTAL, 1000)
    await admit(store, limit, rid="r1", cap=10)
    await store.release(replace(GIVEN_UP, knowledge=Knowledge.GUESSED, source=Source.ADMISSION))
    assert max(lives(counters)) < THREE_DAYS_MS
    await store.settle(settlement("r1", 10, 5))
    assert counters.quota(limit, inspect.minute()[:8]) == (15, 0)
    assert min(lives(counters)) > WEEK_MS


def lives(counters: Counters) -> list[int]:
    return [int(counters.client.pttl(key)) for key in counters.state()]


async def test_a_reaper_that_was_away_for_hours_still_finds_what_is_held(
    store: RedisReservationStore, counters: Counters
) -> None:
    await admit(store, minute("m", Unit.TOTAL, 1000), rid="r1", deadline_ms=1000)
    hours = 20 * 3_600_000
    assert int(counters.client.pttl(keys.reservation(ROOT, "r1"))) > hours
    assert int(counters.client.pttl(keys.pending(ROOT))) > hours


async def test_an_undone_request_is_not_counted_again_by_a_late_release(
    store: RedisReservationStore, counters: Counters
) -> None:
    limit = minute("m", Unit.REQUESTS, 1000)
    await admit(store, limit, rid="r1")
    await store.release(
        replace(GIVEN_UP, knowledge=Knowledge.GUESSED, source=Source.ADMISSION, undo=True)
    )
    await store.release(GIVEN_UP)
    assert list(counters.state().values()) == ["0"]
    # But what was forwarded after all is.
    await admit(store, limit, rid="r2")
    undo = replace(
        GIVEN_UP,
        reservation_id="r2",
        knowledge=Knowledge.GUESSED,
        source=Source.ADMISSION,
        undo=True,
    )
    await store.release(undo)
    await store.settle(settlement("r2"))
    assert list(counters.state().values()) == ["1"]


async def test_an_undo_gives_the_idempotency_key_back_to_the_attempt_before(
    store: RedisReservationStore, redis_client: redis.Redis
) -> None:
    def attempt(rid: str) -> ReserveRequest:
        return replace(
            asking(minute("m", Unit.TOTAL, 1000), rid=rid, request_hash="a" * 16),
            idempotency_key="k",
            idempotency_ttl_ms=3_600_000,
        )

    for rid in ("r1", "r2"):
        assert isinstance(await store.reserve(attempt(rid)), Admitted)
        if rid == "r1":
            await store.settle(settlement("r1"))
    await store.release(replace(GIVEN_UP, reservation_id="r2", undo=True))
    assert redis_client.hgetall(keys.idempotency(ROOT, "k")) == {"rid": "r1", "hash": "a" * 16}
    assert key_life(redis_client) > 0


def key_life(client: redis.Redis) -> int:
    return int(client.pttl(keys.idempotency(ROOT, "k")))


async def test_a_renewed_attempt_keeps_its_idempotency_key(
    store: RedisReservationStore, redis_client: redis.Redis
) -> None:
    asked = asking(minute("m", Unit.TOTAL, 1000), rid="r1", request_hash="a" * 16)
    await store.reserve(replace(asked, idempotency_key="k", idempotency_ttl_ms=60_000))
    await store.renew(ROOT, "r1", deadline_ms=500_000)
    assert key_life(redis_client) > 400_000


async def test_idle_shared_roots_leave_the_register_and_busy_ones_stay(
    store: RedisReservationStore, redis_client: redis.Redis
) -> None:
    for number in range(3):
        root = f"across:model:m{number}"
        await store.reserve(
            asking(minute("m", Unit.TOTAL, 1000, root=root), root=root, rid="r1", is_pinned=True)
        )
    await store.settle(replace(settlement("r1"), root="across:model:m0"))
    for root in ("across:model:m0", "across:model:m1"):
        redis_client.zadd(keys.ROOTS_ACROSS, {root: 1})
    # m0 is idle; m1 is old but something is open; m2 was asked just now.
    assert await store.roots() == ["across:model:m1", "across:model:m2"]
