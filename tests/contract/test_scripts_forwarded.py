"""An admission that gave its tokens back, though Envoy had forwarded the request."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import redis

from extproc.core.buckets import Unit
from extproc.core.reservations import (
    Admitted,
    Knowledge,
    Outcome,
    Settlement,
    SettleStatus,
    Source,
    State,
)
from extproc.stores import keys
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.engine import Counters, asking, minute, quota, sliding, slots, token_bucket
from tests.support.reservations import ROOT, Inspector, settlement
from tests.support.reservations import request as simple

RESERVED = 110
LIMITS = (
    minute("m", Unit.TOTAL, 1000),
    sliding("w", Unit.TOTAL, 1000, window_ms=60_000),
    token_bucket("b", Unit.TOTAL, 1, capacity=1000),
    quota("q", Unit.TOTAL, 1000),
    slots("s", 3),
)

# The write of the admission's answer was cancelled: it thinks that nothing was forwarded.
GAVE_BACK = settlement(
    "r1",
    0,
    0,
    knowledge=Knowledge.GUESSED,
    outcome=Outcome.NOT_FORWARDED,
    source=Source.ADMISSION,
    state=State.RELEASED,
)
# Envoy's entry: the upstream was called, the client left. The reserve is the guess.
CLIENT_GONE = settlement(
    "r1",
    10,
    100,
    knowledge=Knowledge.GUESSED,
    outcome=Outcome.CLIENT_GONE,
    source=Source.ENDING,
)


@pytest.fixture(params=["simple", "policies"])
async def charged(
    request: pytest.FixtureRequest,
    store: RedisReservationStore,
    counters: Counters,
    inspect: Inspector,
) -> Callable[[], int]:
    """Reservation "r1" is open; what its counters say of it. All must say the same."""
    name, today = inspect.minute(), inspect.minute()[:8]
    if request.param == "simple":
        counters.client.flushdb()
        inspect.cache(rpm=100, tpm=1000)
        assert isinstance(await store.reserve(simple(rid="r1")), Admitted)
        return lambda: inspect.used(name)[1] or 0

    assert isinstance(await store.reserve(asking(*LIMITS, rid="r1")), Admitted)

    def agreed() -> int:
        state = counters.state()
        used, held = counters.quota(LIMITS[3], today) or (0, 0)
        found = {
            int(state[LIMITS[0].key + name]),
            int(state[keys.amounts(LIMITS[1].key)]["r1"]),
            int(state[keys.amounts(LIMITS[1].key)]["sum"]),
            1000 - round(int(state[LIMITS[2].key]["level"]) / 1_000_000),
            used + held,
        }
        assert len(found) == 1, found
        return found.pop()

    return agreed


async def end(store: RedisReservationStore, what: Settlement) -> SettleStatus:
    call = store.release if what.state is State.RELEASED else store.settle
    return (await call(what)).status


async def test_the_ending_overturns_the_admissions_own_release_once(
    store: RedisReservationStore, inspect: Inspector, charged: Callable[[], int]
) -> None:
    assert charged() == RESERVED
    assert await end(store, GAVE_BACK) is SettleStatus.APPLIED
    assert charged() == 0
    assert await end(store, CLIENT_GONE) is SettleStatus.IMPROVED
    assert charged() == RESERVED
    record = inspect.record("r1")
    assert (record["state"], record["outcome"], record["source"]) == (
        "SETTLED",
        "client_gone",
        "ending",
    )
    for again in (CLIENT_GONE, GAVE_BACK, replace(CLIENT_GONE, output_tokens=300)):
        assert await end(store, again) is SettleStatus.NOOP
        assert charged() == RESERVED
    assert await end(store, settlement("r1", 10, 5)) is SettleStatus.IMPROVED
    assert charged() == 15


async def test_the_ending_first_is_not_given_back_by_the_admission(
    store: RedisReservationStore, charged: Callable[[], int]
) -> None:
    assert await end(store, CLIENT_GONE) is SettleStatus.APPLIED
    for _ in range(2):
        assert await end(store, GAVE_BACK) is SettleStatus.NOOP
        assert await end(store, CLIENT_GONE) is SettleStatus.NOOP
    assert charged() == RESERVED


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (GAVE_BACK, GAVE_BACK),
        (GAVE_BACK, replace(CLIENT_GONE, input_tokens=0, output_tokens=0)),
        (GAVE_BACK, replace(CLIENT_GONE, source=Source.ADMISSION)),
        (GAVE_BACK, replace(CLIENT_GONE, state=State.RELEASED)),
        (replace(GAVE_BACK, source=Source.ENDING), CLIENT_GONE),
        (replace(GAVE_BACK, source=Source.REAPER), CLIENT_GONE),
        (replace(GAVE_BACK, knowledge=Knowledge.KNOWN), CLIENT_GONE),
        (replace(GAVE_BACK, knowledge=Knowledge.COUNTED), CLIENT_GONE),
        (
            replace(GAVE_BACK, knowledge=Knowledge.COUNTED),
            replace(CLIENT_GONE, knowledge=Knowledge.COUNTED),
        ),
    ],
    ids=[
        "twice",
        "charges nothing",
        "itself",
        "a release",
        "ending",
        "reaper",
        "known",
        "counted",
        "both counted",
    ],
)
async def test_no_other_guess_overturns_a_release(
    store: RedisReservationStore,
    redis_client: redis.Redis,
    charged: Callable[[], int],
    first: Settlement,
    second: Settlement,
) -> None:
    redis_client.zadd(keys.pending(ROOT), {"r1": 1})  # due, so a reaper may end it
    await end(store, first)
    assert await end(store, second) is SettleStatus.NOOP
    assert charged() == 0
