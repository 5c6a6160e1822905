"""`explain` of a refusal, and the command that it names: both see the same cause."""

import asyncio
import shlex
from dataclasses import replace
from typing import Any

import pytest

from extproc.cli import main
from extproc.core.policies import EACH, Algorithm, Block, Dimension, Scope
from extproc.core.reservations import Admitted, Rejected
from extproc.core.resolve import across_root
from extproc.core.subjects import subject_text
from extproc.stores import keys
from tests.support.engine import STRICT
from tests.support.explain import ALICE, World, rules
from tests.support.policies import ROOT, descriptor, policy
from tests.support.reservations import request

WHO = subject_text(
    descriptor(service=ROOT, tenant="t", user="alice", provider="openai", api_key="sk-1"),
    is_priced=True,
)


async def command(*words: str) -> int:
    """`tokenweir explain` beside the loop of the test."""
    return await asyncio.to_thread(main, ["explain", *words])


async def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert await command(*words) == 0
    return capsys.readouterr().out


def named(out: str) -> list[str]:
    """The arguments of the command that an explanation names."""
    (line,) = [line for line in out.splitlines() if "it would meet now:" in line]
    return shlex.split(line.partition("now: ")[2])[2:]


async def test_a_block_is_seen_by_the_named_command(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    await world.apply(policy(rules=rules(Dimension.RPM, 9)))
    await world.admin.block(Block(scope=Scope.USER, value="alice"))
    assert isinstance(await world.ask(subject=WHO), Rejected)
    out = await told(capsys, "req-1")
    assert f"  who:         service {ROOT}, tenant t, user alice, provider openai\n" in out
    assert "(add what is not told here: api_key)" in out
    assert "sk-1" not in out + str(world.client.lrange(keys.refusals(ROOT), 0, -1))
    again = named(out)
    assert again[:4] == ["--service", ROOT, "--subject", "tenant=t,user=alice,provider=openai"]
    assert "would fit: never (block)\n" in await told(capsys, *again)


async def test_a_value_that_no_command_can_repeat_is_not_in_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    await world.apply(policy(rules=rules(Dimension.RPM, 0)))
    odd = subject_text(descriptor(user="a,tenant=b", agent="\x1b[2J"), is_priced=True)
    assert isinstance(await world.ask(subject=odd), Rejected)
    out = await told(capsys, "req-1")
    assert "\x1b" not in out
    assert "--subject" not in named(out)
    assert "(add what is not told here: user, agent)" in out


async def test_a_model_without_a_price_is_the_cause_that_is_named(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.apply(policy("money", rules=rules(Dimension.COST_MICROS_PER_DAY, 1000)))
    (_, version, bucket) = (await world.buckets())[0]
    unpriced = replace(
        request(root=ROOT),
        version=version,
        buckets=(replace(bucket, limit=0),),
        subject=subject_text(ALICE, is_priced=False),
    )
    assert isinstance(await world.store.reserve(unpriced), Rejected)
    out = await told(capsys, "req-1")
    cause = "the model has no price ([[prices]] of the settings)"
    assert f"\n      {cause}" in out
    assert "0 of 0" not in out
    again = named(out)
    out = await told(capsys, *again)
    assert "would fit: never (money/cost_micros_per_day)\n" in out
    assert f"\n  {cause}" in out
    price = '[{"model": "gpt-*", "input_micros": 1000000, "output_micros": 2000000}]'
    monkeypatch.setenv("TOKENWEIR_PRICES", price)
    asked = ("--service", ROOT, "--subject", "user=alice", "--model", "gpt-4o")
    out = await told(capsys, *asked, "--tokens", "300", "--output-tokens", "100")
    assert "would fit: now\n" in out
    assert "300 tokens, 100 of them output, 400 micro-USD\n" in out
    out = await told(capsys, *asked, "--tokens", "300")
    assert "300 tokens, 600 micro-USD\n" in out
    assert "would fit: never" in await told(capsys, *asked, "--tokens", "600")
    assert "would fit: now" in await told(capsys, *asked, "--tokens", "600", "--cost-micros", "9")


async def test_a_shared_ceiling_is_seen_without_naming_the_provider(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """429 although this service does nothing: others eat what all share."""
    await world.apply(policy("own"))
    ceiling = policy("ceiling", scope=Scope.PROVIDER, value="openai", across_roots=True)
    await world.apply(ceiling, root=None)
    (where, version, bucket) = (await world.buckets())[-1]
    there = replace(request(root=where, cap=90), version=version, buckets=(bucket,), is_pinned=True)
    mine = replace(there, estimate=STRICT, subject=WHO)
    other = replace(mine, reservation_id="other", request_id="other")
    assert isinstance(await world.store.reserve(other), Admitted)
    assert isinstance(await world.store.reserve(mine), Rejected)
    out = await told(capsys, "req-1")
    assert f"refused: request req-1 at root {where}, service {ROOT}\n" in out
    assert named(out)[:2] == ["--service", ROOT]
    asked = ("--service", ROOT, "--model", "gpt-4o")
    out = await told(capsys, *asked, "--tokens", "100")
    assert "provider openai is assumed, from the model" in out
    assert "(ceiling/total_tpm)\n" in out
    assert f"UTC req-1, service {ROOT}: 100 tokens, " in out
    assert "only 1 token is asked" not in out
    assert "only 1 token is asked: give --tokens" in await told(capsys, *asked)
    out = await told(capsys, "--service", ROOT, "--model", "claude-x", "--tokens", "100")
    assert "provider anthropic is assumed" in out
    assert across_root(Scope.PROVIDER, "openai") not in out


async def test_places_are_promised_at_the_latest(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    await world.apply(policy(rules=rules(Dimension.CONCURRENT, 1)))
    await world.ask()
    asked = ("--service", ROOT, "--subject", "user=alice", "--model", "gpt-4o")
    out = await told(capsys, *asked)
    (headline,) = [line for line in out.splitlines() if line.startswith("would fit: in ")]
    assert " at the latest, at " in headline


async def test_a_token_bucket_is_told_by_its_burst(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket: dict[str, Any] = {"algorithm": Algorithm.BUCKET, "burst": 2}
    await world.apply(policy(value=EACH, rules=rules(Dimension.RPM, 1, **bucket)))
    for _ in range(2):
        assert isinstance(await world.ask(), Admitted)
    assert isinstance(refused := await world.ask(rid="r3", subject=WHO), Rejected)
    assert [one.burst for one in refused.refusals] == [2]
    out = await told(capsys, "r3")
    assert "asked 1, left 0 of a burst of 2 requests, refilled by 1 a minute; fits from" in out
    out = await told(capsys, *named(out))
    assert "      burst 2, refilled by 1 a minute, used 2, left 0\n" in out
    assert "      another request fits: in " in out
