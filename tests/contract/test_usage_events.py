"""Usage events: every change of a charge appends one, in the script that makes the change."""

import random
from dataclasses import replace
from typing import Any

import pytest
import redis

from extproc.core.estimates import EstimatePlan
from extproc.core.ids import ACROSS_PREFIX
from extproc.core.limits import ServiceLimit
from extproc.core.outcomes import undo_of
from extproc.core.reservations import Knowledge, Outcome, Source, State
from extproc.core.slices import Drawing, SlicePlan, SliceRequest
from extproc.core.usage import Usage
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.cluster import RedisCluster
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.reviews import Reviews
from extproc.stores.slice_store import SlicedReservationStore
from tests.support.cluster import ValkeyCluster
from tests.support.reservations import ROOT, Inspector, request, settlement

RESERVED = 110
GUESS = settlement("r1", 10, 100, knowledge=Knowledge.GUESSED, outcome=Outcome.CUT)


class Events:
    """What the stream of the usual root holds."""

    def __init__(self, client: redis.Redis, root: str = ROOT) -> None:
        self.client, self.root = client, root

    def all(self) -> list[dict[str, str]]:
        found: Any = self.client.xrange(keys.events(self.root))
        return [fields for _, fields in found]

    def told(self, *names: str) -> list[tuple[str, ...]]:
        return [tuple(event[name] for name in names) for event in self.all()]


@pytest.fixture
def telling(batcher: RedisBatcher) -> SlicedReservationStore:
    return SlicedReservationStore(batcher, writes_events=True)


@pytest.fixture
def events(redis_client: redis.Redis, inspect: Inspector) -> Events:
    inspect.cache(rpm=10_000, tpm=10_000_000)
    return Events(redis_client)


async def test_an_end_tells_who_what_and_when(
    telling: SlicedReservationStore, events: Events, inspect: Inspector
) -> None:
    who = '{"service":"svc-1","user":"ann"}'
    asked = replace(request(rid="r1", request_id="req-7"), subject=who)
    await telling.reserve(asked)
    usage = Usage(input_tokens=12, output_tokens=30, cached_input_tokens=9)
    await telling.settle(replace(settlement("r1", 12, 30), usage=usage))
    (event,) = events.all()
    record = inspect.record("r1")
    assert 0 <= int(event.pop("settled")) - int(event.pop("at")) < 60_000
    assert event == {
        "v": "1",
        "revision": "1",
        "reservation_id": "r1",
        "request_id": "req-7",
        "root": ROOT,
        "who": who,
        "model": "gpt-4o",
        "wire_format": "openai_chat",
        "input": "12",
        "output": "30",
        "cost": "0",
        "kinds": "cached_input 9",
        "reserved": "110",
        "reserved_cost": "0",
        "prices": "",
        "price_version": "",
        "state": "SETTLED",
        "outcome": "complete",
        "source": "metering",
        "rank": "3",
        "minute": record["minute"],
    }


async def test_where_no_events_are_wanted_nothing_is_written(
    store: RedisReservationStore, events: Events, inspect: Inspector
) -> None:
    await store.reserve(replace(request(rid="r1"), subject="{}"))
    await store.settle(settlement("r1"))
    assert events.all() == []
    assert not {"told", "who"} & set(inspect.record("r1"))


async def test_better_knowledge_is_a_revision_that_holds_the_difference(
    telling: SlicedReservationStore, events: Events
) -> None:
    await telling.reserve(request(rid="r1"))
    partial = Usage(input_tokens=10, cached_input_tokens=4, reasoning_tokens=1)
    await telling.settle(replace(GUESS, usage=partial))
    real = Usage(input_tokens=8, output_tokens=30, cached_input_tokens=6)
    await telling.settle(replace(settlement("r1", 8, 30), usage=real))
    await telling.settle(settlement("r1", 500, 500))  # no better
    names = ("revision", "input", "output", "kinds", "reserved")
    assert events.told(*names) == [
        ("1", "10", "100", "cached_input 4, reasoning 1", "110"),
        ("2", "-2", "-70", "cached_input 2, reasoning -1", "0"),
    ]


async def test_a_release_tells_zeros_and_a_late_one_takes_back_all(
    telling: SlicedReservationStore, events: Events
) -> None:
    await telling.reserve(request(rid="r1"))
    await telling.release(settlement("r1", outcome=Outcome.UPSTREAM_REFUSED))
    await telling.reserve(request(rid="r2"))
    guess = replace(GUESS, reservation_id="r2", usage=Usage(cached_input_tokens=4))
    await telling.settle(guess)
    await telling.release(settlement("r2", outcome=Outcome.UPSTREAM_REFUSED))
    assert events.told("reservation_id", "revision", "input", "output", "kinds", "state") == [
        ("r1", "1", "0", "0", "", "RELEASED"),
        ("r2", "1", "10", "100", "cached_input 4", "SETTLED"),
        ("r2", "2", "-10", "-100", "cached_input -4", "RELEASED"),
    ]


async def test_a_reason_that_is_learnt_later_is_a_revision_of_zeros(
    telling: SlicedReservationStore, events: Events
) -> None:
    await telling.reserve(request(rid="r1"))
    cut = replace(GUESS, knowledge=Knowledge.COUNTED, usage=Usage(reasoning_tokens=3))
    await telling.settle(cut)
    gone = replace(GUESS, outcome=Outcome.CLIENT_GONE, source=Source.ENDING)
    await telling.settle(gone)
    assert events.told("revision", "input", "output", "kinds", "outcome") == [
        ("1", "10", "100", "reasoning 3", "cut"),
        ("2", "0", "0", "", "client_gone"),
    ]


async def test_what_ended_before_events_were_wanted_is_told_whole(
    store: RedisReservationStore, telling: SlicedReservationStore, events: Events
) -> None:
    for rid in ("r1", "r2"):
        await store.reserve(request(rid=rid))
        await store.settle(replace(GUESS, reservation_id=rid))
    await telling.settle(settlement("r1", 8, 30))
    await telling.settle(replace(GUESS, reservation_id="r2", outcome=Outcome.CLIENT_GONE))
    assert events.told("revision", "input", "output") == [("1", "8", "30"), ("1", "10", "100")]


async def test_an_undo_of_what_never_ended_tells_nothing(
    telling: SlicedReservationStore, events: Events
) -> None:
    for rid in ("r1", "r2"):
        await telling.reserve(request(rid=rid))
    await telling.release(undo_of("r1", ROOT, Source.ADMISSION))
    assert events.all() == []
    await telling.settle(replace(GUESS, reservation_id="r2"))
    await telling.release(undo_of("r2", ROOT, Source.ADMISSION))
    assert events.told("input", "output") == [("10", "100"), ("-10", "-100")]


async def test_an_end_of_nothing_tells_nothing(
    telling: SlicedReservationStore, events: Events
) -> None:
    await telling.settle(settlement("nobody"))
    await telling.release(settlement("nobody"))
    await telling.settle(settlement("nobody"))
    assert events.all() == []


async def test_a_shared_root_tells_nothing(
    telling: SlicedReservationStore, events: Events, redis_client: redis.Redis
) -> None:
    root = f"{ACROSS_PREFIX}model:m"
    limit = ServiceLimit(service_id=root, rpm=100, tpm=100_000)
    await telling.reserve(request(rid="r1", root=root, limit=limit))
    await telling.settle(settlement("r1", root=root))
    assert redis_client.keys("events:*") == []


async def test_the_reaper_and_people_tell_too(
    telling: SlicedReservationStore, events: Events, batcher: RedisBatcher
) -> None:
    await telling.reserve(request(rid="r1", deadline_ms=0))
    reaped = settlement(
        "r1",
        10,
        100,
        knowledge=Knowledge.GUESSED,
        outcome=Outcome.UNREPORTED,
        source=Source.REAPER,
        state=State.RECONCILING,
    )
    await telling.settle(reaped)
    said = settlement("r1", 3, 4, source=Source.OPERATOR)
    await Reviews(batcher, writes_events=True).resolve(said)
    assert events.told("source", "input", "output", "state") == [
        ("reaper", "10", "100", "RECONCILING"),
        ("operator", "-7", "-96", "SETTLED"),
    ]


async def test_a_slice_tells_nothing_and_what_was_drawn_from_it_tells_once(
    telling: SlicedReservationStore, events: Events
) -> None:
    asked = SliceRequest(
        slice_id="slice.1",
        root=ROOT,
        model="gpt-4o",
        version="",
        buckets=(),
        least_tokens=100,
        overdue_ms=60_000,
        deadline_ms=60_000,
        estimate=EstimatePlan(),
    )
    assert await telling.take_slice(asked, SlicePlan()) is not None
    drawing = Drawing(reservation_id="r1", input_tokens=10, reserved_tokens=50, subject="{}")
    for _ in range(2):
        await telling.draw(ROOT, "slice.1", (drawing,))
    await telling.settle(settlement("r1", 8, 30))
    await telling.return_slice(ROOT, "slice.1")
    told = events.told("reservation_id", "who", "input", "output", "reserved")
    assert told == [("r1", "{}", "8", "30", "50")]


@pytest.mark.parametrize("seed", range(3))
async def test_after_any_ends_in_any_order_the_events_add_up_to_what_is_charged(
    telling: SlicedReservationStore, events: Events, inspect: Inspector, seed: int
) -> None:
    dice = random.Random(seed)
    ids = [f"id{i}" for i in range(60)]
    for rid in ids:
        await telling.reserve(request(rid=rid, input_tokens=dice.randrange(100)))
    changes = 0
    for _ in range(300):
        end = settlement(
            dice.choice(ids),
            dice.randrange(50),
            dice.randrange(300),
            knowledge=dice.choice(list(Knowledge)[1:]),
            outcome=dice.choice(list(Outcome)),
            source=dice.choice((Source.ADMISSION, Source.METERING, Source.ENDING)),
        )
        result = await (telling.release if dice.random() < 0.3 else telling.settle)(end)
        changes += result.status in ("applied", "improved", "classified")
    charged, revisions = dict.fromkeys(ids, 0), dict.fromkeys(ids, 0)
    for event in events.all():
        rid = event["reservation_id"]
        charged[rid] += int(event["input"]) + int(event["output"])
        revisions[rid] += 1
        assert int(event["revision"]) == revisions[rid]
    assert sum(revisions.values()) == changes
    for rid in ids:
        record = inspect.record(rid)
        assert charged[rid] == (int(record["charged"]) if record["rank"] != "0" else 0), rid


async def test_in_a_cluster_the_event_is_in_the_slot_of_its_root(
    cluster: ValkeyCluster, redis_cluster: RedisCluster
) -> None:
    store = RedisReservationStore(redis_cluster, writes_events=True)
    for i in range(6):
        root = f"svc-{i}"
        limit = ServiceLimit(service_id=root, rpm=100, tpm=100_000)
        await store.reserve(request(rid="r1", root=root, limit=limit))
        await store.settle(settlement("r1", root=root))
        assert await redis_cluster.command("XLEN", keys.events(root)) == 1
