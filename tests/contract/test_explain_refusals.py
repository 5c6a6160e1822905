"""`explain` of a refused request: by its id, and among the last ones of a subject's roots."""

import asyncio
import json
import re
import shlex
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from extproc.cli import main
from extproc.core.buckets import BucketKind
from extproc.core.explain import Asked, RefusalReport
from extproc.core.limits import MAX_LIMIT
from extproc.core.policies import ANY, Algorithm, Block, Dimension, Mode, Scope
from extproc.core.reservations import Admitted, Rejected
from extproc.core.resolve import across_root
from extproc.stores import keys
from extproc.stores.explain import explain_subject
from extproc.stores.explain_refusals import explain_refusals
from extproc.stores.limit_table import LimitTable
from extproc.stores.views import compile_view
from tests.support.engine import STRICT
from tests.support.explain import ALICE, World, cycle, rules
from tests.support.policies import ROOT, policy
from tests.support.reservations import request


async def find(world: World, wanted: str = "req-1", **more: Any) -> tuple[RefusalReport, ...]:
    return await explain_refusals(world.batcher, world.database, wanted_id=wanted, **more)


async def refuse(world: World, tokens: int = 100, **more: Any) -> Rejected:
    verdict = await world.ask(tokens, **more)
    assert isinstance(verdict, Rejected), verdict
    return verdict


async def test_every_kind_of_limit_is_named_as_it_was(world: World) -> None:
    """All refuse one request; what is told of each is what the answer and the policy say."""
    await LimitTable(world.database).put(ROOT, rpm=1, tpm=150)
    algorithms: dict[Dimension, dict[str, Any]] = {
        Dimension.INPUT_TPM: {"algorithm": Algorithm.SLIDING, "window_seconds": 30},
        Dimension.OUTPUT_TPM: {"algorithm": Algorithm.BUCKET, "burst": 90},
        Dimension.COST_MICROS_PER_CYCLE: cycle(),
    }
    limits = {
        **dict.fromkeys(Dimension, 150),
        Dimension.RPM: 1,
        Dimension.CONCURRENT: 1,
        Dimension.INPUT_TPM: 15,
        Dimension.OUTPUT_TPM: 10,
    }
    every = tuple(
        rule
        for dimension, limit in limits.items()
        for rule in rules(dimension, limit, **algorithms.get(dimension, {}))
    )
    await world.apply(
        policy("all", rules=every),
        policy("any", scope=Scope.TENANT, value=ANY),
        policy("trial", mode=Mode.SHADOW, rules=rules(Dimension.RPM, 0)),
    )
    prices: dict[str, Any] = {"input_price": 1_000_000, "output_price": 1_000_000}
    assert isinstance(await world.ask(90, **prices), Admitted)
    answer = await refuse(world, rid="r2", **prices)
    (report,) = await find(world, "r2")
    assert (report.root, report.request_id, report.model) == (ROOT, "req-1", "gpt-4o")
    assert (report.asked.tokens, report.asked.output_tokens) == (100, 90)
    assert report.asked.cost_micros == 100
    assert timedelta(0) <= report.at - report.refused_at < timedelta(seconds=5)
    assert report.limits[0].label == answer.refused_by
    assert report.more == 0
    refusals = {one.label: one for one in answer.refusals}
    assert {one.label for one in report.limits} == set(refusals) != set()
    assert len(report.limits) == 13
    buckets = {bucket.label: bucket for _, _, bucket in await world.buckets()}
    for one in report.limits:
        told, bucket = refusals[one.label], buckets[one.label]
        assert (one.limit, one.remaining) == (told.limit, told.remaining)
        assert one.retry_after_ms == told.retry_after_ms
        assert (one.algorithm, one.unit, one.subject) == (
            bucket.kind,
            bucket.unit,
            bucket.subject,
        )
        assert one.asked == report.asked.amount(one.unit)
        assert one.version == (1 if one.label.startswith(("all", "any")) else None)
        has_period = one.algorithm in (BucketKind.MINUTE, BucketKind.QUOTA)
        assert bool(one.period) == has_period
        # The counter that refused is the one that holds something.
        assert not has_period or world.client.exists(bucket.key + one.period)
        if one.retry_after_ms is not None:
            wait = timedelta(milliseconds=one.retry_after_ms)
            assert one.frees_at == report.refused_at + wait
    waits = [one.retry_after_ms for one in report.limits if one.retry_after_ms is not None]
    assert waits == sorted(waits, reverse=True)


async def test_the_version_is_that_of_the_refusal(world: World) -> None:
    await world.apply(policy(rules=rules(Dimension.RPM, 5)))
    await world.apply(policy(rules=rules(Dimension.RPM, 0)))
    await refuse(world)
    change = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    await world.divide_versions(change)
    at = round(change.timestamp() * 1000)
    for moment, version in ((at - 1, 1), (at, 2), (at - 86_400_001, None)):
        rewrite(world, at=str(moment))
        (report,) = await find(world)
        assert report.limits[0].version == version


def rewrite(world: World, *, root: str = ROOT, **fields: object) -> None:
    """Change the newest note of a root."""
    text: Any = world.client.lindex(keys.refusals(root), 0)
    world.client.lset(keys.refusals(root), 0, json.dumps({**json.loads(text), **fields}))


async def test_a_block_is_no_policy(world: World) -> None:
    await world.apply(policy(rules=rules(Dimension.RPM, 1)))
    await world.ask()
    await world.admin.block(Block(scope=Scope.USER, value="alice", reason="", until=None))
    await refuse(world)
    (report,) = await find(world)
    assert [(one.label, one.subject, one.version) for one in report.limits] == [
        ("block/user", "", None),
        ("p1/rpm", "user:alice", 1),
    ]


async def test_an_id_is_looked_for_at_every_root_or_at_one(world: World) -> None:
    # So many that they do not fit into one page, and some that nobody refused.
    roots = [f"svc-{number}" for number in range(250)]
    for root in roots:
        world.client.sadd(keys.ROOTS, root)
        world.client.hset(keys.config(root), mapping={"status": 1, "rpm": 0, "tpm": 1000})
    world.client.sadd(keys.ROOTS, "quiet")
    for root in roots:
        await world.store.reserve(replace(request(root=root), request_id=f"{root}/first"))
    for number in (7, 249):
        again = replace(request(root=roots[number], rid=f"r{number}"), request_id="often")
        await world.store.reserve(again)
        rewrite(world, root=roots[number], at=str(number))
    for root in roots:
        (report,) = await find(world, f"{root}/first")
        assert report.root == root
    assert [one.reservation_id for one in await find(world, "often")] == ["r249", "r7"]
    assert [one.reservation_id for one in await find(world, "often", most=1)] == ["r249"]
    assert [one.root for one in await find(world, "often", root="svc-7")] == ["svc-7"]
    assert [one.root for one in await find(world, "r7")] == ["svc-7"]
    for nothing in ("ofte", "often ", "", "r", "unknown"):
        assert await find(world, nothing) == ()


async def test_a_long_id_is_found_by_what_was_kept_of_it(world: World) -> None:
    await world.apply(policy(rules=rules(Dimension.RPM, 0)))
    long = "x" * 500
    for kept in (long[:128], long[:256], long, long[:100] + "y"):
        assert isinstance(await world.ask(request_id=kept), Rejected)
    assert [len(one.request_id) for one in await find(world, long)] == [256, 256, 128]


async def test_a_refusal_across_roots_is_found_where_it_was_made(world: World) -> None:
    await world.apply(policy("own"))
    ceiling = policy("ceiling", scope=Scope.PROVIDER, value="openai", across_roots=True)
    await world.apply(ceiling, root=None)
    (where, version, bucket) = (await world.buckets())[-1]
    taken = replace(request(root=where, cap=100), version=version, buckets=(bucket,))
    await world.store.reserve(replace(taken, is_pinned=True, estimate=STRICT))
    (report,) = await find(world)
    assert report.root == where == across_root(Scope.PROVIDER, "openai")
    assert report.limits[0].label == "ceiling/total_tpm"
    # Asked for one root, the shared ones are looked at too: they refuse its requests.
    assert [one.root for one in await find(world, root=ROOT)] == [where]
    subject = await world.explain()
    assert [one.root for one in subject.refusals] == [where]


async def test_a_subject_shows_the_last_refusals_of_its_roots(world: World) -> None:
    await world.apply(policy("tiny", rules=rules(Dimension.RPM, 0)))
    for number in range(12):
        await refuse(world, rid=f"r{number}")
    found = (await world.explain()).refusals
    assert [one.reservation_id for one in found] == [f"r{number}" for number in range(11, 1, -1)]


async def test_a_value_that_is_no_id_is_shown_to_whoever_asks_for_it(world: World) -> None:
    mail = "alice@example.com"
    await world.apply(policy("tiny", rules=rules(Dimension.RPM, 0)))
    found = (await world.source.load(ROOT)).policies
    assert found is not None
    who = replace(ALICE, values={Scope.USER: mail})
    view = compile_view(found)
    (bucket,) = view.resolve(who, datetime.now(UTC)).buckets
    asked = replace(request(root=ROOT), version=view.version, buckets=(bucket,))
    assert isinstance(await world.store.reserve(asked), Rejected)
    (report,) = await find(world)
    assert report.limits[0].subject.startswith("user::")
    subject = await explain_subject(world.batcher, world.database, descriptor=who)
    assert subject.refusals[0].limits[0].subject == f"user:{mail}"
    subject = await explain_subject(world.batcher, world.database, descriptor=ALICE)
    assert subject.refusals[0].limits[0].subject.startswith("user::")


async def test_what_no_request_should_ask_is_explained_too(world: World) -> None:
    await world.apply(policy())
    _, version, bucket = (await world.buckets())[0]
    huge = request(root=ROOT, input_tokens=2**60, cap=2**60)
    prices: dict[str, Any] = {"input_price": 2**32, "output_price": 2**32}
    huge = replace(huge, version=version, buckets=(bucket,), estimate=STRICT, **prices)
    assert isinstance(await world.store.reserve(huge), Rejected)
    (report,) = await find(world)
    assert report.asked == Asked(tokens=MAX_LIMIT, output_tokens=0, cost_micros=MAX_LIMIT)


async def test_notes_that_are_not_understood_are_left_out(world: World) -> None:
    await world.apply(policy(rules=rules(Dimension.RPM, 0)))
    await refuse(world)
    whole: Any = world.client.lindex(keys.refusals(ROOT), 0)
    assert len(await find(world)) == 1
    odd: tuple[dict[str, Any], ...] = (
        {"by": []},
        {"by": {}},
        {"at": "x"},
        {"by": [["zz|a", 1, 2, 3]]},
        {"id": 5},
    )
    for spoilt in odd:
        world.client.lset(keys.refusals(ROOT), 0, whole)
        rewrite(world, **spoilt)
        assert len(await find(world)) == ("id" in spoilt)
    for text in ("", "{", "[]", "7", '"at"', "{}"):
        world.client.lset(keys.refusals(ROOT), 0, text)
        assert await find(world) == ()
    assert (await world.explain()).refusals == ()


# --- The command ---------------------------------------------------------------------------------


async def command(*words: str) -> int:
    """`tokenweir explain` beside the loop of the test."""
    return await asyncio.to_thread(main, ["explain", *words])


async def test_the_command_explains_a_refusal_and_names_the_command_for_now(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    await LimitTable(world.database).put(ROOT, rpm=1, tpm=1000)
    await world.apply(policy(rules=rules(Dimension.TOTAL_TPM, 250)))
    await world.ask(200)
    await refuse(world, 100, model="x\x1b[2J y")
    assert await command("req-1", "--root", ROOT) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    lines = out.splitlines()
    assert lines[0] == f"refused: request req-1 at root {ROOT}"
    assert re.fullmatch(r"  when: {8}20\S+ \S+ UTC \(\d+ m?s ago\)", lines[1])
    assert lines[3:5] == [
        "  model:       x?[2J y",
        "  asked:       100 tokens, 90 of them output",
    ]
    fits = r"fits from 20\S+ \S+:00 UTC \(in \d+ s\)"
    assert lines[5] == "  refused by 2 limits, the binding one first:"
    assert re.fullmatch(r"    p1 v1 total_tpm for user:alice, minute 20\d{10}", lines[6])
    assert re.fullmatch(f"      asked 100, left 50 of 250 tokens; {fits}", lines[7])
    service = f"service_limit rpm for service:{ROOT}"
    assert re.fullmatch(rf"    {service}, minute 20\d{{10}}", lines[8])
    assert re.fullmatch(f"      asked 1, left 0 of 1 requests; {fits}", lines[9])
    # The command that it names tells the same of now.
    told = lines[10].partition("it would meet now: ")[2]
    assert told == (
        f"tokenweir explain --service {ROOT} --subject user=alice --model 'x?[2J y' "
        "--tokens 100 --output-tokens 90"
    )
    assert await command(*shlex.split(told)[2:]) == 0
    out = capsys.readouterr().out
    assert "limit 250, used 200, left 50" in out
    tail = out.partition("last refusals, of anybody: 1\n")[2]
    assert re.fullmatch(
        r"  20\S+ \S+ UTC req-1: 100 tokens, x\?\[2J y, by p1 v1 total_tpm for user:alice "
        f"and 1 more, {fits}\n",
        tail,
    )
    assert await command("req-1", "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["reservations"][0]["reserved_tokens"] == 200
    (refusal,) = plain["refusals"]
    assert refusal["asked"] == {
        "tokens": 100,
        "output_tokens": 90,
        "cost_micros": 0,
        "is_priced": True,
    }
    assert refusal["limits"][0]["label"] == "p1/total_tpm"
    datetime.fromisoformat(refusal["limits"][0]["frees_at"])


async def test_the_command_says_what_passes_and_what_does_not(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    await world.apply(policy(rules=rules(Dimension.CONCURRENT, 1)))
    await world.ask(rid="r1")
    await refuse(world, 200, rid="r2")

    async def refused_by(wanted: str) -> str:
        assert await command(wanted) == 0
        return capsys.readouterr().out.partition("refused by:\n")[2].rpartition("  it would")[0]

    told = await refused_by("r2")
    assert re.fullmatch(
        "    p1 v1 concurrent for user:alice, slots\n      asked 1, left 0 of 1 open requests; "
        r"worth a try from .* UTC \((in .*s|passed)\)\n",
        told,
    )
    text: Any = world.client.lindex(keys.refusals(ROOT), 0)
    rewrite(world, at=str(int(json.loads(text)["at"]) - 60_000))
    assert (await refused_by("r2")).endswith(" UTC (passed)\n")
    await world.apply(policy(rules=rules(Dimension.TOTAL_TPM, 100)))
    await refuse(world, 200, rid="r3")
    assert (await refused_by("r3")).endswith("asked 200, left 100 of 100 tokens; never fits\n")
    await world.apply(policy(rules=rules(Dimension.RPM, 9)))
    await world.admin.block(Block(scope=Scope.USER, value="alice", reason="", until=None))
    await refuse(world, rid="r4")
    assert await refused_by("r4") == (
        "    a block of this user: refused until it ends or is lifted\n"
    )
