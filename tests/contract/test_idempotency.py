"""A client's idempotency key: one attempt at a time, the same request each time, never sticky."""

from dataclasses import replace

import pytest
import redis

from extproc.core.buckets import Unit
from extproc.core.reservations import (
    Admitted,
    Conflict,
    IdConflict,
    Outcome,
    Rejected,
    ReserveRequest,
    Source,
    State,
)
from extproc.stores import keys
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.engine import Counters, asking, cache_view, minute
from tests.support.reservations import ROOT, Inspector, request, settlement

KEY, BODY, OTHER_BODY = "00ff" * 8, "aaaa" * 4, "bbbb" * 4
TTL_MS = 3_600_000


@pytest.fixture(params=["simple", "policies"])
def kind(request: pytest.FixtureRequest, inspect: Inspector, redis_client: redis.Redis) -> str:
    """The same for both scripts."""
    if request.param == "simple":
        inspect.cache(rpm=100, tpm=1000)
    else:
        cache_view(redis_client)
    return str(request.param)


def attempt(
    kind: str, *, body: str = BODY, key: str = KEY, input_tokens: int = 10
) -> ReserveRequest:
    limits = (minute("tpm", Unit.TOTAL, 1000),)
    asked = (
        request(input_tokens=input_tokens)
        if kind == "simple"
        else asking(*limits, input_tokens=input_tokens)
    )
    return replace(
        asked,
        owner="own-" + asked.reservation_id[:8],
        request_hash=body,
        idempotency_key=key,
        idempotency_ttl_ms=TTL_MS,
    )


async def test_the_same_key_is_refused_while_its_attempt_is_open(
    store: RedisReservationStore, kind: str, redis_client: redis.Redis
) -> None:
    assert isinstance(await store.reserve(attempt(kind)), Admitted)
    before = Counters(redis_client).state()
    assert await store.reserve(attempt(kind)) == IdConflict(Conflict.IN_FLIGHT)
    assert Counters(redis_client).state() == before
    assert redis_client.zcard(keys.pending(ROOT)) == 1


async def test_after_its_end_it_begins_a_new_attempt_that_names_the_one_before(
    store: RedisReservationStore, kind: str, inspect: Inspector
) -> None:
    first, second = attempt(kind), attempt(kind)
    await store.reserve(first)
    await store.settle(settlement(first.reservation_id))
    assert isinstance(await store.reserve(second), Admitted)
    assert inspect.record(second.reservation_id)["before"] == first.reservation_id
    assert await store.reserve(attempt(kind)) == IdConflict(Conflict.IN_FLIGHT)


async def test_the_same_key_with_another_request_is_an_error_open_or_ended(
    store: RedisReservationStore, kind: str
) -> None:
    first = attempt(kind)
    await store.reserve(first)
    reused = IdConflict(Conflict.KEY_REUSED)
    assert await store.reserve(attempt(kind, body=OTHER_BODY)) == reused
    await store.settle(settlement(first.reservation_id))
    assert await store.reserve(attempt(kind, body=OTHER_BODY)) == reused


async def test_a_refusal_is_not_sticky(
    store: RedisReservationStore, kind: str, redis_client: redis.Redis
) -> None:
    refused = await store.reserve(attempt(kind, input_tokens=2000))
    assert isinstance(refused, Rejected)
    assert not redis_client.exists(keys.idempotency(ROOT, KEY))
    assert isinstance(await store.reserve(attempt(kind, body=OTHER_BODY)), Admitted)


async def test_an_undone_attempt_forgets_its_key(
    store: RedisReservationStore, kind: str, redis_client: redis.Redis
) -> None:
    first = attempt(kind)
    await store.reserve(first)
    undo = settlement(
        first.reservation_id,
        outcome=Outcome.NOT_FORWARDED,
        source=Source.ADMISSION,
        state=State.RELEASED,
    )
    await store.release(replace(undo, undo=True))
    assert not redis_client.exists(keys.idempotency(ROOT, KEY))


async def test_our_own_repetition_of_a_call_is_no_second_use_of_the_key(
    store: RedisReservationStore, kind: str
) -> None:
    first = attempt(kind)
    one, other = await store.reserve(first), await store.reserve(first)
    assert isinstance(one, Admitted)
    assert isinstance(other, Admitted)
    assert one.reserved_tokens == other.reserved_tokens


async def test_keys_of_other_roots_and_other_keys_are_other_attempts(
    store: RedisReservationStore, kind: str, redis_client: redis.Redis
) -> None:
    await store.reserve(attempt(kind))
    assert isinstance(await store.reserve(attempt(kind, key="11" * 16)), Admitted)
    other = replace(attempt("simple"), root="svc-other")
    Inspector(redis_client, "svc-other").cache(rpm=10, tpm=1000)
    assert isinstance(await store.reserve(other), Admitted)


async def test_a_key_is_kept_as_long_as_said_and_never_for_ever(
    store: RedisReservationStore, kind: str, redis_client: redis.Redis
) -> None:
    await store.reserve(attempt(kind))
    left = redis_client.pttl(keys.idempotency(ROOT, KEY))
    assert TTL_MS - 60_000 < int(left) <= TTL_MS
    short = replace(attempt(kind, key="22" * 16), idempotency_ttl_ms=1)
    await store.reserve(short)
    assert int(redis_client.pttl(keys.idempotency(ROOT, "22" * 16))) > 30_000
    assert Counters(redis_client).without_ttl() == []
