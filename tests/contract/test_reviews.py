"""Reaper policy "review", and people's word, on a real Valkey."""

import asyncio
import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from extproc.cli import main
from extproc.core.buckets import Period, Unit
from extproc.core.explain import ReservationReport
from extproc.core.limits import ServiceLimit
from extproc.core.ports import OpenReservation
from extproc.core.reservations import (
    Knowledge,
    Outcome,
    Settlement,
    SettleResult,
    SettleStatus,
    Source,
    State,
)
from extproc.core.reviews import Answer, Resolution, Review, decision
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.explain_records import explain_reservation
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.reviews import Reviews
from tests.contract.test_reaper import Notes, open_overdue, reaper
from tests.support.engine import Counters, admit, cache_view, minute, quota
from tests.support.explain import World
from tests.support.reservations import ROOT, Inspector, request, settlement

WEEK_MS = 7 * 86_400_000
RECORD_MS = 900_000


@pytest.fixture
def reviews(batcher: RedisBatcher) -> Reviews:
    return Reviews(batcher)


async def sweep(store: Any, notes: Notes | None = None) -> int:
    return await reaper(store, notes or Notes(), policy="review").sweep()


def waiting(client: redis.Redis, root: str = ROOT) -> list[str]:
    found: Any = client.zrange(keys.review(root), 0, -1)
    return sorted(found)


def life_ms(client: redis.Redis, rid: str = "r0") -> int:
    return int(client.pttl(keys.reservation(ROOT, rid)))


def used_so(rid: str, input_tokens: int, output_tokens: int, *, root: str = ROOT) -> Settlement:
    return decision(
        rid, root, input_tokens=input_tokens, output_tokens=output_tokens, release=False
    )


def used_nothing(rid: str) -> Settlement:
    return decision(rid, ROOT, release=True)


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
