"""People's word about reservations in review, and the command, on a real Valkey."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
import redis

from extproc.cli import main
from extproc.core.buckets import Period, Unit
from extproc.core.explain import ReservationReport
from extproc.core.limits import ServiceLimit
from extproc.core.reservations import (
    SettleResult,
    SettleStatus,
    State,
)
from extproc.core.reviews import Answer, Resolution, Review
from extproc.stores import keys
from extproc.stores.explain_records import explain_reservation
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.reviews import Reviews
from tests.contract.test_reaper import Notes, open_overdue, reaper
from tests.support.engine import Counters, admit, cache_view, minute, quota
from tests.support.explain import World
from tests.support.reservations import ROOT, Inspector, request, settlement
from tests.support.reviews import RECORD_MS, life_ms, sweep, used_nothing, used_so, waiting

# --- People decide --------------------------------------------------------------------------------


async def test_people_see_what_waits_the_oldest_first(
    store: RedisReservationStore, redis_client: redis.Redis, inspect: Inspector, reviews: Reviews
) -> None:
    await open_overdue(store, 2)
    await open_overdue(store, 1, root="other")
    await sweep(store)
    redis_client.zincrby(keys.review(ROOT), -5000, "r1")
    redis_client.delete(keys.ROOTS)  # whose master may lose it alone
    found = await reviews.waiting()
    assert [(one.root, one.reservation_id) for one in found] == [
        ("other", "r0"),
        (ROOT, "r1"),
        (ROOT, "r0"),
    ]
    assert [one.root for one in await reviews.waiting("other")] == ["other"]
    assert await reviews.waiting("nobody") == []
    one = found[0]
    assert isinstance(one, Review)
    assert (one.input_tokens, one.charged_tokens, one.charged_cost_micros) == (10, 110, None)
    assert (one.model, one.request_id) == ("gpt-4o", "req-1")
    assert one.admitted_at is not None
    assert one.admitted_at <= one.since <= datetime.now(UTC) + timedelta(seconds=5)


async def test_more_than_one_page_waits(
    store: RedisReservationStore, inspect: Inspector, reviews: Reviews
) -> None:
    await open_overdue(store, 450)
    await sweep(store)
    assert len({one.reservation_id for one in await reviews.waiting()}) == 450


async def test_a_decision_is_charged_in_the_minute_of_the_admission_once(
    store: RedisReservationStore, redis_client: redis.Redis, inspect: Inspector, reviews: Reviews
) -> None:
    await open_overdue(store, 1)
    await sweep(store)
    earlier = inspect.minute(back=1)
    inspect.move_to_minute("r0", earlier)
    done = await reviews.resolve(used_so("r0", 10, 5))
    assert done == Resolution(
        answer=Answer.RESOLVED,
        state="SETTLED",
        source="operator",
        charged_tokens=15,
        was_charged_tokens=110,
    )
    assert inspect.used(earlier) == (1, 15)
    assert inspect.used() == (None, None)
    assert waiting(redis_client) == []
    assert inspect.history() == {}
    record = inspect.record("r0")
    assert (record["rank"], record["outcome"]) == ("3", "unreported")
    # Asked again, it says what was done before.
    again = await reviews.resolve(used_so("r0", 10, 5))
    assert (again.answer, again.charged_tokens) == (Answer.SAME, 15)
    other = await reviews.resolve(used_so("r0", 10, 6))
    assert (other.answer, other.charged_tokens, other.source) == (Answer.OTHER, 15, "operator")
    assert (await reviews.resolve(used_nothing("r0"))).answer is Answer.OTHER
    assert inspect.used(earlier) == (1, 15)
    assert life_ms(redis_client) > RECORD_MS


async def test_what_was_settled_by_a_report_was_decided_by_nobody(
    store: RedisReservationStore, inspect: Inspector, reviews: Reviews
) -> None:
    await open_overdue(store, 1)
    await store.settle(settlement("r0", 10, 5))
    for said in (used_so("r0", 10, 6), used_so("r0", 10, 5), used_nothing("r0")):
        done = await reviews.resolve(said)
        assert (done.answer, done.source) == (Answer.NOT_IN_REVIEW, "metering")
    assert inspect.used() == (1, 15)


async def test_a_release_gives_the_tokens_back_and_keeps_the_request(
    store: RedisReservationStore, redis_client: redis.Redis, inspect: Inspector, reviews: Reviews
) -> None:
    await open_overdue(store, 1)
    await sweep(store)
    done = await reviews.resolve(used_nothing("r0"))
    assert (done.answer, done.state, done.charged_tokens) == (Answer.RESOLVED, "RELEASED", 0)
    assert inspect.used() == (1, 0)
    assert waiting(redis_client) == []
    assert (await reviews.resolve(used_nothing("r0"))).answer is Answer.SAME
    assert (await reviews.resolve(used_so("r0", 0, 0))).answer is Answer.OTHER


async def test_a_decision_reaches_all_counters_of_a_policy_root(
    store: RedisReservationStore, redis_client: redis.Redis, inspect: Inspector, reviews: Reviews
) -> None:
    cache_view(redis_client)
    redis_client.sadd(keys.ROOTS, ROOT)
    money = quota("cost", Unit.COST, 10**9, period=Period.MONTH)
    tokens = minute("tpm", Unit.OUTPUT, 10**6)
    for rid in ("r0", "r1"):
        await admit(
            store,
            money,
            tokens,
            rid=rid,
            deadline_ms=0,
            input_price=1_000_000,
            output_price=2_000_000,
        )
    assert await sweep(store) == 2
    (one, _) = await reviews.waiting(ROOT)
    assert isinstance(one, Review)
    assert one.charged_cost_micros == 210
    month = datetime.fromtimestamp(int(redis_client.time()[0]), UTC).strftime("%Y%m")
    counters = Counters(redis_client)
    assert counters.quota(money, month) == (420, 0)
    assert (await reviews.resolve(used_so("r0", 10, 5))).answer is Answer.RESOLVED
    assert (await reviews.resolve(used_nothing("r1"))).answer is Answer.RESOLVED
    assert counters.quota(money, month) == (20, 0)
    assert redis_client.get(tokens.key + inspect.minute()) == "5"
    # The record of a policy root tells input from output.
    assert (await reviews.resolve(used_so("r0", 10, 5))).answer is Answer.SAME
    assert (await reviews.resolve(used_so("r0", 5, 10))).answer is Answer.OTHER
    assert counters.without_ttl() == []


async def test_of_people_and_metering_at_once_one_is_heard(
    store: RedisReservationStore, inspect: Inspector, reviews: Reviews
) -> None:
    await open_overdue(store, 40)
    await sweep(store)
    done = await asyncio.gather(
        *(reviews.resolve(used_so(f"r{i}", 10, 1)) for i in range(40)),
        *(reviews.resolve(used_so(f"r{i}", 10, 2)) for i in range(40)),
        *(store.settle(settlement(f"r{i}", 10, 3)) for i in range(20)),
    )
    total = 0
    for i in range(40):
        said = [done[i], done[i + 40]]
        heard = [one for one in said if isinstance(one, Resolution)]
        by_people = sum(one.answer is Answer.RESOLVED for one in heard)
        late = done[i + 80] if i < 20 else None
        by_metering = isinstance(late, SettleResult) and late.status is SettleStatus.IMPROVED
        assert by_people + by_metering == 1
        # Both learn what stands.
        charged = int(inspect.record(f"r{i}")["charged"])
        assert {one.charged_tokens for one in heard} == {charged}
        total += charged
    assert inspect.used() == (40, total)


async def test_metering_and_the_reaper_do_not_change_a_decision(
    store: RedisReservationStore, inspect: Inspector, reviews: Reviews, redis_client: redis.Redis
) -> None:
    await open_overdue(store, 1)
    await sweep(store)
    await reviews.resolve(used_so("r0", 10, 5))
    assert (await store.settle(settlement("r0", 10, 50))).status is SettleStatus.NOOP
    assert await sweep(store) == 0
    assert inspect.used() == (1, 15)
    assert waiting(redis_client) == []


async def test_what_is_not_in_review_is_left_alone(
    store: RedisReservationStore, inspect: Inspector, reviews: Reviews
) -> None:
    limit = ServiceLimit(service_id=ROOT, rpm=10_000, tpm=10_000_000)
    await store.reserve(request(rid="open", limit=limit))
    await open_overdue(store, 1)
    await reaper(store, Notes()).sweep()  # by estimate
    await store.release(settlement("note", state=State.RELEASED))  # of a reserve that never came
    for rid, answer, state in (
        ("open", Answer.NOT_IN_REVIEW, "RESERVED"),
        ("r0", Answer.NOT_IN_REVIEW, "EXPIRED"),
        ("note", Answer.UNKNOWN, None),
        ("never", Answer.UNKNOWN, None),
    ):
        for said in (used_so(rid, 1, 1), used_nothing(rid)):
            done = await reviews.resolve(said)
            assert (done.answer, done.state) == (answer, state)
    assert inspect.used() == (2, 220)
    assert inspect.open() == 1


async def test_explain_knows_when_it_ended(world: World) -> None:
    await open_overdue(world.store, 1)
    await sweep(world.store)

    async def explain() -> ReservationReport:
        (found,) = await explain_reservation(
            world.batcher, world.database, root=ROOT, wanted_id="r0"
        )
        assert isinstance(found, ReservationReport)
        return found

    for _ in range(2):
        report = await explain()
        assert report.ended_at is not None
        assert abs(report.ended_at - report.at) < timedelta(seconds=30)
        await Reviews(world.batcher).resolve(used_so("r0", 10, 5))


# --- The command ----------------------------------------------------------------------------------


async def command(*arguments: str) -> int:
    """`tokenweir reviews`, which runs a loop of its own."""
    return await asyncio.to_thread(main, ["reviews", *arguments])


async def test_the_command_lists_and_resolves(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await command("list") == 0
    assert capsys.readouterr().out == "nothing waits\n"
    limit = ServiceLimit(service_id=ROOT, rpm=10_000, tpm=10_000_000)
    await world.store.reserve(request(rid="r0", deadline_ms=0, limit=limit, model="gpt\x1b[31m"))
    await sweep(world.store)

    assert await command("list") == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["root", "reservation", "since"]
    assert row.split()[:2] == [ROOT, "r0"]
    assert "gpt?[31m" in row
    assert await command("list", "--root", ROOT, "--json") == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["reservation_id"], shown["charged_tokens"]) == ("r0", 110)
    assert datetime.fromisoformat(shown["since"]).tzinfo is not None

    charge = ("resolve", "r0", "--root", ROOT, "--input", "10", "--output", "5")
    assert await command(*charge) == 0
    assert "SETTLED, 15 tokens charged, said by operator (before: 110)" in capsys.readouterr().out
    assert await command(*charge) == 0
    assert "resolved so before: SETTLED, 15 tokens" in capsys.readouterr().out
    assert await command("resolve", "r0", "--root", ROOT, "--release") == 1
    assert "stays so: SETTLED, 15 tokens charged" in capsys.readouterr().err
    assert await command("resolve", "r0", "--root", "elsewhere", "--release") == 1
    assert "is not known" in capsys.readouterr().err
    await world.store.reserve(request(rid="open", limit=limit))
    assert await command("resolve", "open", "--root", ROOT, "--release") == 1
    assert "not in review: RESERVED" in capsys.readouterr().err
    assert await command("list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["list", "--root", "a{b}"], "--root"),
        (["resolve", "r0", "--root", ROOT], "reviews resolve"),
        (["resolve", "r0", "--root", ROOT, "--input", "1"], "reviews resolve"),
        (["resolve", "r0", "--root", ROOT, "--input", "-1", "--output", "1"], "reviews resolve"),
        (["resolve", "r0", "--root", ROOT, "--release", "--output", "1"], "--release"),
        (["resolve", "r{0}", "--root", ROOT, "--release"], "RESERVATION_ID"),
    ],
)
def test_wrong_usage_is_named(
    arguments: list[str], key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reviews", *arguments]) == 2
    assert f"wrong setting: {key}" in capsys.readouterr().err
