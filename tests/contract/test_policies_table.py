"""Policies, blocks and overrides on SQLite and on MariaDB."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from extproc.core.errors import StoreUnavailableError
from extproc.core.limits import MAX_LIMIT, ServiceLimit
from extproc.core.policies import Block, Dimension, Override, PolicySet, Rule, Scope
from extproc.core.policy_plan import EPOCH, PolicyDraft, PolicyFile
from extproc.stores.limit_table import LimitTable
from extproc.stores.policy_table import PoliciesChangedError, PolicyTable
from extproc.stores.sql import Database
from tests.support.policies import ROOT, policy

# A day that has not come, on any machine that runs this.
FUTURE = (datetime.now(UTC) + timedelta(days=2)).replace(microsecond=0)
RPM = (Rule(dimension=Dimension.RPM, limit=7),)


@pytest.fixture
def policies(database: Database) -> PolicyTable:
    return PolicyTable(database)


def file(*names: str, root: str | None = None, **given: Any) -> PolicyFile:
    has_start = "effective_from" in given
    given.setdefault("effective_from", EPOCH)
    drafts = [
        PolicyDraft(policy=policy(name, root=root, **given), has_start=has_start) for name in names
    ]
    return PolicyFile(root=root, drafts=tuple(drafts))


async def apply(table: PolicyTable, wanted: PolicyFile) -> int:
    changes = await table.plan(wanted)
    await table.apply(wanted, changes)
    return len(changes)


async def rows(database: Database, query: str) -> list[tuple[Any, ...]]:
    return await database.run(lambda c: [tuple(row) for row in c.execute(text(query))])


async def test_a_policy_comes_back_as_it_was_written(
    policies: PolicyTable, table: LimitTable
) -> None:
    rules = (
        Rule(
            dimension=Dimension.COST_MICROS_PER_CYCLE,
            limit=MAX_LIMIT,
            cycle_start=FUTURE,
            cycle_end=FUTURE + timedelta(1),
        ),
        *RPM,
    )
    limit = await table.put(ROOT, rpm=1, tpm=2)
    wanted = file("p", scope=Scope.MODEL, value="模型 é", rules=rules, effective_to=FUTURE)
    assert await apply(policies, wanted) == 1
    assert await policies.load(ROOT) == PolicySet(
        root=ROOT, service=limit, policies=(wanted.drafts[0].policy,)
    )
    assert await apply(policies, wanted) == 0


async def test_versions_are_never_overwritten(policies: PolicyTable, database: Database) -> None:
    for limit in (1, 2, 3):
        rules = (Rule(dimension=Dimension.RPM, limit=limit),)
        assert await apply(policies, file("p", "q", rules=rules)) == 2
        assert await apply(policies, file("p", "q", rules=rules)) == 0
    await apply(policies, file("q", rules=rules))
    found = await rows(
        database,
        "SELECT version, rules, effective_from, effective_to FROM limit_policy"
        " WHERE name = 'p' ORDER BY version",
    )
    assert [(version, f'"limit":{version}' in rules) for version, rules, *_ in found] == [
        (1, True),
        (2, True),
        (3, True),
    ]
    starts, ends = [row[2] for row in found], [row[3] for row in found]
    assert ends[:2] == starts[1:]
    assert ends[2] is not None
    assert [p.name for p in (await policies.all()).policies] == ["q"]


async def test_a_planned_version_is_there_beside_the_one_in_force(policies: PolicyTable) -> None:
    await apply(policies, file("p", root=ROOT))
    await apply(policies, file("p", root=ROOT, rules=RPM, effective_from=FUTURE))
    found = await policies.load(ROOT)
    assert found is not None
    assert [(p.version, p.effective_from, p.effective_to) for p in found.policies] == [
        (1, EPOCH, FUTURE),
        (2, FUTURE, None),
    ]
    await apply(policies, file("p", root=ROOT))
    found = await policies.load(ROOT)
    assert found is not None
    assert [(p.version, p.effective_to) for p in found.policies] == [(3, None)]


async def test_a_plan_that_is_out_of_date_writes_nothing(
    policies: PolicyTable, database: Database
) -> None:
    mine, theirs = file("p", "q", rules=RPM), file("p")
    changes = await policies.plan(mine)
    await apply(policies, theirs)
    before = await rows(database, "SELECT name, version, effective_to FROM limit_policy")
    with pytest.raises(PoliciesChangedError):
        await policies.apply(mine, changes)
    assert await rows(database, "SELECT name, version, effective_to FROM limit_policy") == before


async def test_of_many_who_apply_at_once_each_version_is_taken_once(
    policies: PolicyTable, database: Database
) -> None:
    async def one(limit: int) -> bool:
        wanted = file("p", rules=(Rule(dimension=Dimension.RPM, limit=limit),))
        try:
            return await apply(policies, wanted) == 1
        except (PoliciesChangedError, StoreUnavailableError):  # SQLite: locked
            return False

    done = await asyncio.gather(*(one(limit) for limit in range(12)))
    versions = await rows(database, "SELECT version FROM limit_policy ORDER BY version")
    assert [version for (version,) in versions] == list(range(1, sum(done) + 1))
    assert any(done)
    open_rows = await rows(database, "SELECT 1 FROM limit_policy WHERE effective_to IS NULL")
    assert len(open_rows) == 1


async def test_policies_of_others_do_not_come_along(
    policies: PolicyTable, table: LimitTable
) -> None:
    await table.put(ROOT, rpm=1, tpm=2)
    await apply(policies, file("everywhere"))
    await apply(policies, file("mine", root=ROOT))
    await apply(policies, file("theirs", root="other"))
    await policies.block(Block(scope=Scope.USER, value="eve", root="other"))
    for name in ("everywhere", "mine", "theirs"):
        await policies.override(
            name,
            Dimension.TOTAL_TPM,
            Override(policy=name, dimension=Dimension.TOTAL_TPM, limit=1, until=FUTURE),
        )
    found = await policies.load(ROOT)
    assert found is not None
    assert [p.name for p in found.policies] == ["everywhere", "mine"]
    assert [o.policy for o in found.overrides] == ["everywhere", "mine"]
    assert found.blocks == ()
    assert len((await policies.all()).policies) == 3


async def test_a_root_is_known_by_its_row_or_a_policy_of_its_own_in_force(
    policies: PolicyTable, table: LimitTable, database: Database
) -> None:
    await apply(policies, file("everywhere"))
    assert await policies.load(ROOT) is None
    await apply(policies, file("mine", root=ROOT, effective_from=FUTURE))
    assert await policies.load(ROOT) is None
    await apply(policies, file("mine", root=ROOT))
    found = await policies.load(ROOT)
    assert found is not None
    assert found.service is None
    await apply(policies, file(root=ROOT))
    assert await policies.load(ROOT) is None
    await table.put(ROOT, rpm=1, tpm=2)
    found = await policies.load(ROOT)
    assert found is not None
    assert found.service == ServiceLimit(service_id=ROOT, rpm=1, tpm=2)


async def test_blocks_come_and_go_and_end(policies: PolicyTable, table: LimitTable) -> None:
    await table.put(ROOT, rpm=1, tpm=2)
    first = Block(scope=Scope.USER, value="eve", reason="x", until=FUTURE)
    here = replace(first, root=ROOT, until=None)
    for block in (first, here, replace(first, reason="y")):
        await policies.block(block)
    past = replace(first, value="old", until=datetime.now(UTC) - timedelta(seconds=5))
    await policies.block(past)
    found = await policies.load(ROOT)
    assert found is not None
    assert set(found.blocks) == {replace(first, reason="y"), here}
    assert await policies.unblock(Scope.USER, "eve")
    assert not await policies.unblock(Scope.USER, "eve")
    assert not await policies.unblock(Scope.USER, "EVE", root=ROOT)
    assert (await policies.all(ROOT)).blocks == (here,)


async def test_the_last_override_counts_until_its_end(policies: PolicyTable) -> None:
    await apply(policies, file("p", root=ROOT))
    rule = ("p", Dimension.TOTAL_TPM)
    for limit in (5, 6):
        await policies.override(
            *rule, Override(policy="p", dimension=rule[1], limit=limit, until=FUTURE)
        )
    found = await policies.load(ROOT)
    assert found is not None
    assert [(o.limit, o.until) for o in found.overrides] == [(6, FUTURE)]
    over = datetime.now(UTC) - timedelta(seconds=5)
    await policies.override(*rule, Override(policy="p", dimension=rule[1], limit=7, until=over))
    assert (await policies.all(ROOT)).overrides == ()
    for name, dimension in (("p", Dimension.RPM), ("nobody", Dimension.TOTAL_TPM)):
        with pytest.raises(ValueError, match=f"no policy {name} limits {dimension}"):
            await policies.override(name, dimension, None)
