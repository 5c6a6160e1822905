"""Two administrators at once, on SQLite and on MariaDB: as if one had come after the other."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from extproc.core.errors import StoreUnavailableError
from extproc.core.policies import Block, Dimension, Override, Scope
from extproc.core.policy_plan import EPOCH, PolicyDraft, PolicyFile, PolicyPlanError
from extproc.stores.policy_table import PoliciesChangedError, PolicyTable
from extproc.stores.sql import Database
from extproc.stores.sql_lock import only_writer
from tests.support.policies import ROOT, policy

ROUNDS = 8
BLOCK = Block(scope=Scope.USER, value="alice")


@pytest.fixture
async def second(database: Database, sql_url: str) -> AsyncIterator[Database]:
    """Another process' connections to the same database."""
    opened = Database(url=sql_url, timeout_ms=1000)
    yield opened
    await opened.close()


def file(name: str, count: int = 1, *, root: str | None = ROOT) -> PolicyFile:
    made = (policy(f"{name}{i}", root=root, effective_from=EPOCH) for i in range(count))
    return PolicyFile(root=root, drafts=tuple(PolicyDraft(policy=one) for one in made))


async def both(
    one: PolicyTable, mine: PolicyFile, other: PolicyTable, theirs: PolicyFile
) -> list[BaseException | None]:
    """Plan both, and then apply both at once."""
    plans = [await one.plan(mine), await other.plan(theirs)]
    applying = (one.apply(mine, plans[0]), other.apply(theirs, plans[1]))
    return list(await asyncio.gather(*applying, return_exceptions=True))


async def test_of_two_files_of_a_root_one_is_applied(database: Database, second: Database) -> None:
    one, other = PolicyTable(database), PolicyTable(second)
    for turn in range(ROUNDS):
        done = await both(one, file(f"a{turn}-"), other, file(f"b{turn}-"))
        assert [type(each) for each in done if each] == [PoliciesChangedError]
        assert len((await one.all(ROOT)).policies) == 1


async def test_two_files_that_have_room_alone_only_are_not_both_applied(
    database: Database, second: Database
) -> None:
    one, other = PolicyTable(database), PolicyTable(second)
    for turn in range(ROUNDS):
        done = await both(one, file(f"a{turn}-", 40), other, file(f"b{turn}-", 40, root=None))
        assert [type(each) for each in done if each] == [PolicyPlanError]
        assert (await one.check()).crowds == ()
        for root in (ROOT, None):
            empty = PolicyFile(root=root, drafts=())
            await one.apply(empty, await one.plan(empty))


async def test_a_change_waits_for_another_only_so_long(
    database: Database, second: Database
) -> None:
    one, other = PolicyTable(database), PolicyTable(second)
    await one.apply(file("p"), await one.plan(file("p")))
    wanted = file("q")
    plan = await other.plan(wanted)
    override = Override(policy="p0", dimension=Dimension.TOTAL_TPM, limit=1, until=EPOCH)
    with database.engine.connect() as connection, only_writer(connection, wait_seconds=5):
        for change in (
            other.apply(wanted, plan),
            other.block(BLOCK),
            other.unblock(BLOCK.scope, BLOCK.value),
            other.override("p0", Dimension.TOTAL_TPM, override),
        ):
            with pytest.raises(StoreUnavailableError) as caught:
                await change
            assert caught.value.transient
        assert (await other.all(ROOT)).blocks == ()  # readers do not wait
    await other.block(BLOCK)


async def test_a_change_that_fails_keeps_nobody_waiting(
    database: Database, second: Database
) -> None:
    one, other = PolicyTable(database), PolicyTable(second)
    with pytest.raises(PoliciesChangedError):
        await one.apply(file("p"), ())
    with pytest.raises(ValueError, match="no policy p0"):
        await one.override("p0", Dimension.TOTAL_TPM, None)
    await other.apply(file("p"), await other.plan(file("p")))
    await one.block(BLOCK)
    assert await other.unblock(BLOCK.scope, BLOCK.value)
