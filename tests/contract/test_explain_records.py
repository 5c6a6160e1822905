"""`explain` of a reservation tells what its record holds; the command prints both."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from extproc.cli import main
from extproc.cli_explain_texts import reservation_lines
from extproc.core.explain import Asked, ReservationReport
from extproc.core.policies import (
    ANY,
    Algorithm,
    Dimension,
    Mode,
    Scope,
)
from extproc.core.reservations import (
    Admitted,
    Knowledge,
    Outcome,
    Source,
)
from extproc.core.usage import Usage
from extproc.stores import keys
from extproc.stores.explain_records import explain_reservation
from extproc.stores.limit_table import LimitTable
from tests.support.engine import STRICT
from tests.support.explain import SLACK_MS, World, cycle, rules
from tests.support.policies import ROOT, policy
from tests.support.reservations import request, settlement

# --- Records -------------------------------------------------------------------------------------


async def test_a_record_says_what_was_taken_and_what_became_of_it(world: World) -> None:
    await LimitTable(world.database).put(ROOT, rpm=1000, tpm=100_000)
    every = (
        *rules(Dimension.INPUT_TPM, 10_000, algorithm=Algorithm.SLIDING),
        *rules(Dimension.OUTPUT_TPM, 10_000, algorithm=Algorithm.BUCKET),
        *rules(Dimension.CONCURRENT, 5),
        *rules(Dimension.TOKENS_PER_DAY, 10_000),
        *rules(Dimension.COST_MICROS_PER_CYCLE, 10_000, **cycle()),
    )
    await world.apply(
        policy("all", rules=every),
        policy("odd", scope=Scope.MODEL),
        policy(
            "trial", mode=Mode.SHADOW, scope=Scope.TENANT, value=ANY, rules=rules(Dimension.RPM, 0)
        ),
    )
    prices = {"input_price": 1_000_000, "output_price": 2_000_000}
    assert isinstance(await world.ask(rid="r1", **prices), Admitted)

    async def explain(wanted: str = "r1") -> Any:
        (found,) = await explain_reservation(
            world.batcher, world.database, root=ROOT, wanted_id=wanted
        )
        return found

    def taken(report: Any) -> dict[str, tuple[int, int]]:
        return {one.label: (one.reserved, one.charged) for one in report.taken}

    report = await explain()
    assert (report.state, report.outcome, report.source) == ("RESERVED", "", "")
    assert report.knowledge.startswith("nothing yet")
    assert (report.reserved_tokens, report.charged_tokens) == (100, 100)
    assert (report.reserved_cost_micros, report.charged_cost_micros) == (190, 190)
    assert report.deadline - report.admitted_at == timedelta(seconds=60)
    assert report.ended_at is None
    assert report.policies == ("all v1", "odd v1", "service_limit", "trial v1")
    assert taken(report) == {
        "all/concurrent": (1, 1),
        "all/cost_micros_per_cycle": (190, 190),
        "all/input_tpm": (10, 10),
        "all/output_tpm": (90, 90),
        "all/tokens_per_day": (100, 100),
        "odd/total_tpm": (100, 100),
        "service_limit/rpm": (1, 1),
        "service_limit/total_tpm": (100, 100),
        "trial/rpm": (1, 1),
    }
    # What a record keeps leads back to the counters that the request met.
    met = {bucket.label: bucket for _, _, bucket in await world.buckets()}
    assert {t.label: (t.algorithm, t.unit, t.subject) for t in report.taken} == {
        label: (bucket.kind, bucket.unit, bucket.subject) for label, bucket in met.items()
    }
    assert [t.label for t in report.taken if t.shadow_refused] == ["trial/rpm"]
    for one in report.taken:
        assert not one.period or world.client.exists(met[one.label].key + one.period)

    await world.store.settle(settlement("r1", 12, 40, root=ROOT, source=Source.ENDING))
    report = await explain()
    assert (report.state, report.outcome, report.source) == ("SETTLED", "complete", "ending")
    assert report.knowledge.startswith("known")
    assert (report.reserved_tokens, report.charged_tokens) == (100, 52)
    assert (report.reserved_cost_micros, report.charged_cost_micros) == (190, 92)
    assert report.deadline is None
    assert abs(report.ended_at - report.at) < timedelta(seconds=SLACK_MS / 1000)
    assert taken(report) == {
        "all/concurrent": (1, 0),
        "all/cost_micros_per_cycle": (190, 92),
        "all/input_tpm": (10, 12),
        "all/output_tpm": (90, 40),
        "all/tokens_per_day": (100, 52),
        "odd/total_tpm": (100, 52),
        "service_limit/rpm": (1, 1),
        "service_limit/total_tpm": (100, 52),
        "trial/rpm": (1, 1),
    }
    assert (await explain("req-1")).reservation_id == "r1"


async def test_what_was_used_by_kind_is_told(world: World) -> None:
    await world.apply(policy(rules=rules(Dimension.RPM, 5)))
    assert isinstance(await world.ask(rid="r1"), Admitted)
    usage = Usage(input_tokens=10, output_tokens=9, reasoning_tokens=7)
    await world.store.settle(replace(settlement("r1", 10, 9), root=ROOT, usage=usage))
    (report,) = await explain_reservation(world.batcher, world.database, root=ROOT, wanted_id="r1")
    assert "  of which:    reasoning 7" in list(reservation_lines(report))


async def test_the_version_is_that_of_the_admission(world: World) -> None:
    await world.apply(policy(rules=rules(Dimension.RPM, 5)))
    await world.apply(policy(rules=rules(Dimension.RPM, 6)))
    assert isinstance(await world.ask(rid="r1"), Admitted)
    change = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    await world.divide_versions(change)
    at = round(change.timestamp() * 1000)
    for moment, wanted in ((at - 1, "p1 v1"), (at, "p1 v2"), (at - 86_400_001, "p1")):
        world.client.hset(keys.reservation(ROOT, "r1"), "at", moment)
        (report,) = await explain_reservation(
            world.batcher, world.database, root=ROOT, wanted_id="r1"
        )
        assert isinstance(report, ReservationReport)
        assert report.policies == (wanted,)


async def test_a_request_id_finds_its_records_at_its_root_only(world: World) -> None:
    table = LimitTable(world.database)
    for root in (ROOT, "other"):
        await table.put(root, rpm=1000, tpm=100_000)
        await world.source.load(root)
    for root, rid, note in (
        (ROOT, "r1", "req-1"),
        (ROOT, "r2", "req-1"),
        (ROOT, "r3", "req-10"),
        ("other", "r4", "req-1"),
    ):
        asked = replace(request(root=root, rid=rid), request_id=note)
        assert isinstance(await world.store.reserve(asked), Admitted)
    # So many keys that they do not fit into one page.
    world.client.mset({f"noise:{i}": 1 for i in range(5000)})

    async def ids(wanted: str, **more: Any) -> list[str]:
        where = {"root": ROOT, "wanted_id": wanted, **more}
        found = await explain_reservation(world.batcher, world.database, **where)
        return sorted(report.reservation_id for report in found)

    assert await ids("req-1") == ["r1", "r2"]
    assert len(await ids("req-1", most=1)) == 1
    assert await ids("r3") == ["r3"]
    assert await ids("r4") == []
    assert await ids("r4", root=None) == ["r4"]
    assert await ids("req-1", root=None) == ["r1", "r2", "r4"]
    assert await ids("not an id {}") == []
    (simple,) = await explain_reservation(world.batcher, world.database, root=ROOT, wanted_id="r3")
    assert isinstance(simple, ReservationReport)
    assert simple.policies == ("service_limit",)
    assert [one.label for one in simple.taken] == ["service_limit/rpm", "service_limit/total_tpm"]


async def test_a_release_before_its_reserve_is_explained_too(world: World) -> None:
    early = settlement("r1", 0, 0, root=ROOT, outcome=Outcome.NOT_FORWARDED)
    await world.store.release(replace(early, knowledge=Knowledge.KNOWN))
    (report,) = await explain_reservation(world.batcher, world.database, root=ROOT, wanted_id="r1")
    assert isinstance(report, ReservationReport)
    assert (report.state, report.admitted_at, report.taken) == ("RELEASED", None, ())


# --- The command ---------------------------------------------------------------------------------


async def command(*words: str) -> int:
    """`tokenweir explain` beside the loop of the test."""
    import asyncio

    return await asyncio.to_thread(main, ["explain", *words])


async def test_the_command_explains_a_subject(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    await world.apply(policy(rules=rules(Dimension.RPM, 1)))
    verdict = await world.ask(rid="r1")
    assert isinstance(verdict, Admitted)
    words = ("--subject", f"tenant={ROOT},user=alice", "--model", "gpt-4o", "--tokens", "50")
    assert await command(*words) == 0
    out = capsys.readouterr().out
    assert f"root {ROOT}: enabled, policies " in out
    assert "p1 v1 rpm: user *each, here user:alice\n" in out
    assert "limit 1, used 1, left 0" in out
    assert "(p1/rpm)" in out
    assert f"open at {ROOT}: 1\n  r1: 100 tokens, gpt-4o, for " in out
    assert await command(*words, "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["limits"][0]["label"] == "p1/rpm"
    assert plain["asked"]["tokens"] == 50
    assert plain["subject"] == {
        "tenant": ROOT,
        "user": "alice",
        "service": ROOT,
        "provider": "openai",
    }
    assert 0 < plain["fits_in_ms"] <= 60_000
    datetime.fromisoformat(plain["fits_at"])


async def test_the_command_explains_a_record_and_says_when_there_is_none(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    await world.apply(policy())
    met = await world.buckets()
    evil = replace(request(root=ROOT, rid="r1", model="x\x1b[2J", cap=90), estimate=STRICT)
    await world.store.reserve(replace(evil, version=met[0][1], buckets=(met[0][2],)))
    assert await command("req-1", "--root", ROOT) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "state:       RESERVED" in out
    assert "admitted by: p1 v1" in out
    assert "p1/total_tpm for user:alice, minute 20" in out
    assert "reserved 100, charged 100 tokens" in out
    assert await command("r1", "--root", ROOT, "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["reservations"][0]["policies"] == ["p1 v1"]
    assert plain["refusals"] == []
    # Nobody need know the root.
    for wanted in ("r1", "req-1"):
        assert await command(wanted) == 0
        assert f"reservation r1 at root {ROOT}\n" in capsys.readouterr().out
    assert await command("r2") == await command("r1", "--root", "other") == 1
    assert "nothing is known of r2: " in (err := capsys.readouterr().err)
    assert "nothing is known of r1 at root other: " in err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "give an ID"),
        (["r1", "--subject", "user=a"], "give an ID"),
        (["r1", "--root", "a{b"], "--root"),
        (["r1", "--root", "a", "--tokens", "1"], "--tokens"),
        (["--subject", "user=a"], "--model"),
        (["--subject", "user=a", "--model", "m"], "--root"),
        (["--subject", "nobody=a", "--model", "m"], "--subject"),
        (["--subject", "tenant=a,user", "--model", "m"], "--subject"),
        (["--subject", "tenant=a", "--model", "m", "--tokens", "-1"], "tokens must be"),
        (["--service", "a", "--model", "m", "--output-tokens", "2"], "output_tokens must be"),
    ],
)
def test_a_wrong_use_says_what_is_wrong(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *words]) == 2
    assert problem in capsys.readouterr().err


def test_input_and_output_are_each_asked_for_all_when_not_told_apart() -> None:
    from extproc.core.buckets import Unit

    whole, parts = Asked(tokens=10), Asked(tokens=10, output_tokens=4)
    assert [whole.amount(unit) for unit in (Unit.INPUT, Unit.OUTPUT, Unit.TOTAL)] == [10, 10, 10]
    assert [parts.amount(unit) for unit in (Unit.INPUT, Unit.OUTPUT, Unit.TOTAL)] == [6, 4, 10]
