"""Records and notes of refusals that hold anything: `explain` and `reviews` name them, and tell the
others."""

import asyncio
import json
from typing import Any

import pytest

from extproc.cli import main
from extproc.cli_explain_texts import reservation_lines
from extproc.core.errors import StoreUnavailableError
from extproc.core.explain import ReservationReport, Unreadable
from extproc.core.policies import Dimension
from extproc.core.reservations import Admitted, Rejected
from extproc.core.reviews import Answer, Review, decision
from extproc.stores import keys
from extproc.stores.explain_records import explain_reservation
from extproc.stores.explain_refusals import explain_refusals
from extproc.stores.reviews import Reviews
from tests.support.explain import World, rules
from tests.support.policies import ROOT, policy

RECORD = keys.reservation(ROOT, "r1")
HUGE = "9" * 25
# What came into review before the last week is let go.
LATE = 4_000_000_000_000
NUMBERS = ("rank", "input", "reserved", "charged", "at", "chunks", "shadow", "prices", "requests")


@pytest.fixture
async def two(world: World) -> World:
    """Two open reservations, r1 and r2."""
    await world.apply(policy(rules=(*rules(Dimension.RPM, 2),)))
    for rid in ("r1", "r2"):
        assert isinstance(await world.ask(rid=rid), Admitted)
    return world


async def explain(world: World, root: str | None = None) -> dict[str, Any]:
    found = await explain_reservation(world.batcher, world.database, root=root, wanted_id="req-1")
    return {one.reservation_id: one for one in found}


@pytest.mark.parametrize("value", ["", "x", HUGE, "1e300", b"\xff\xfe"], ids=repr)
async def test_a_spoilt_record_is_named_and_the_others_are_told(
    two: World, value: str | bytes
) -> None:
    good: Any = two.client.hgetall(RECORD)
    waiting = Reviews(two.batcher)
    two.client.zadd(keys.review(ROOT), {"r1": LATE, "r2": LATE + 1})
    async with asyncio.timeout(20):
        for field in (*NUMBERS, "b1", "state", "outcome", "model"):
            two.client.delete(RECORD)
            two.client.hset(RECORD, mapping=good | {field: value})
            two.client.pexpire(RECORD, 100_000)
            found = await explain(two)
            assert isinstance(found["r2"], ReservationReport)
            for one in found.values():
                "\n".join(reservation_lines(one)).encode()
            if field in {"at", "chunks"}:
                assert isinstance(found["r1"], Unreadable), field
            assert isinstance((await waiting.waiting(ROOT))[1], Review)
            (holds,) = (await two.explain()).holds
            assert [hold.reservation_id for hold in holds.first] == ["r1", "r2"]


async def test_a_score_that_is_no_time_is_named(two: World) -> None:
    two.client.zadd(keys.review(ROOT), {"r1": "inf", "r2": LATE})
    assert [type(one) for one in await Reviews(two.batcher).waiting()] == [Review, Unreadable]
    two.client.zadd(keys.pending(ROOT), {"r1": "inf"})
    (holds,) = (await two.explain()).holds
    assert isinstance(holds.first[1], Unreadable)


async def test_a_spoilt_review_is_not_resolved(two: World) -> None:
    two.client.zadd(keys.review(ROOT), {"r1": LATE})
    two.client.hset(RECORD, "charged", "x")
    done = await Reviews(two.batcher).resolve(decision("r1", ROOT, release=True))
    assert done.answer is Answer.UNREADABLE


async def test_a_spoilt_note_is_left_out(two: World) -> None:
    for rid in ("r3", "r4"):
        assert isinstance(await two.ask(rid=rid), Rejected)
    name = keys.refusals(ROOT)
    note = json.loads(str(two.client.lindex(name, 0)))
    by = note["by"][0]
    for text in (
        "[" * 100_000,
        '{"by":' + "[" * 100_000,
        json.dumps(note | {"at": HUGE}),
        json.dumps(note | {"by": [[by[0], HUGE, *by[2:]]]}),
        json.dumps(note).replace('"at"', '"at":NaN,"x"'),
        json.dumps(note | {"request": "\ud800"}),
    ):
        two.client.lset(name, 0, text)
        found = await explain_refusals(two.batcher, two.database, wanted_id="r3")
        assert [one.reservation_id for one in found] == ["r3"]
        assert "r3" in [one.reservation_id for one in (await two.explain()).refusals]


async def test_a_spoilt_counter_is_named(two: World) -> None:
    ((_, _, bucket),) = await two.buckets()
    for key in two.client.scan_iter(bucket.key + "*"):
        two.client.set(key, "x")
    with pytest.raises(StoreUnavailableError, match="cannot be read"):
        await two.explain()


async def test_the_commands_show_both(two: World, capsys: pytest.CaptureFixture[str]) -> None:
    two.client.zadd(keys.review(ROOT), {"r1": LATE, "r2": LATE + 1})
    two.client.hset(RECORD, mapping={"at": "x", "chunks": HUGE})
    assert await asyncio.to_thread(main, ["explain", "req-1"]) == 0
    text = capsys.readouterr().out
    assert f"reservation r1 at root {ROOT}\n  its record cannot be read: ValueError" in text
    assert f"reservation r2 at root {ROOT}\n  request:" in text
    assert await asyncio.to_thread(main, ["explain", "req-1", "--json"]) == 0
    found = {
        one["reservation_id"]: one for one in json.loads(capsys.readouterr().out)["reservations"]
    }
    assert set(found["r1"]) == {"root", "reservation_id", "unreadable"}
    assert await asyncio.to_thread(main, ["reviews", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["reservation", "r1", "r2"]
    assert "cannot be read" in lines[1]
