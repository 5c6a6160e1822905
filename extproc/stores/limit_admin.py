"""What an administrator does to limits and policies: SQL first, and only then the cache."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial

from extproc.core.errors import StoreUnavailableError
from extproc.core.limits import ServiceLimit
from extproc.core.policies import BadRow, Block, Dimension, Override, PolicySet, Scope
from extproc.core.policy_plan import PolicyChange, PolicyFile
from extproc.stores import keys
from extproc.stores.client import RedisClient
from extproc.stores.limit_table import LimitTable
from extproc.stores.policy_table import PolicyCheck, PolicyTable

# DEL can be repeated without harm, and much depends on it.
_ATTEMPTS = 3
_CHUNK = 256


class LimitAdmin:
    """Changes are committed in SQL, then the cache key is deleted: the next request sees them.

    A failed commit deletes nothing. When the commit succeeded and the cache could not be cleared,
    StoreUnavailableError("redis") says so: old limits may apply until the cached entry expires.
    """

    def __init__(self, batcher: RedisClient, table: LimitTable) -> None:
        self._redis = batcher
        self._table = table

    async def set(
        self,
        service_id: str,
        *,
        rpm: int | None = None,
        tpm: int | None = None,
        enabled: bool | None = None,
    ) -> ServiceLimit:
        """Create a service, or change what is given. Raises ValueError for a wrong value."""
        limit = await self._table.put(service_id, rpm=rpm, tpm=tpm, enabled=enabled)
        await forget(self._redis, service_id)
        return limit

    async def disable(self, service_id: str) -> ServiceLimit:
        """Refuse every request of the service. Raises ValueError when there is none."""
        return await self.set(service_id, enabled=False)

    async def delete(self, service_id: str) -> bool:
        """Remove the service: it is unknown from now on, if it has no policies of its own.

        False when there was none. The cache is cleared even then: so a run whose clearing failed
        can be repeated.
        """
        found = await self._table.delete(service_id)
        await forget(self._redis, service_id, done="deleted")
        return found

    async def get(self, service_id: str) -> ServiceLimit | None:
        """The limits as in SQL."""
        return await self._table.find(service_id)

    async def list(self) -> list[ServiceLimit]:
        """All services as in SQL, sorted by id."""
        return await self._table.all()

    async def bad(self) -> Sequence[BadRow]:
        """The rows of services that cannot be read."""
        return await self._table.bad()


class PolicyAdmin:
    """Changes of policies, blocks and overrides, in the same order and with the same errors.

    What belongs to no root changes every root.
    """

    def __init__(self, batcher: RedisClient, table: PolicyTable) -> None:
        self._redis = batcher
        self._table = table

    async def list(self, root: str | None = None) -> PolicySet:
        """What is in force or to come: all of it, or what concerns ``root``."""
        return await self._table.all(root)

    async def check(self) -> PolicyCheck:
        """Whatever is wrong with what is stored, at all roots."""
        return await self._table.check()

    async def plan(self, file: PolicyFile) -> tuple[PolicyChange, ...]:
        """What ``apply`` would change. Raises PolicyPlanError."""
        return await self._table.plan(file)

    async def apply(self, file: PolicyFile, expected: Sequence[PolicyChange]) -> None:
        """Make ``file`` true, if that is still the plan ``expected``; else PoliciesChangedError.

        The cache is cleared even when there is nothing to change: so a run whose clearing failed
        can be repeated.
        """
        if expected:
            await self._table.apply(file, expected)
        await self._forget(file.root)

    async def block(self, block: Block) -> None:
        """Refuse everything of one value from now on."""
        await self._table.block(block)
        await self._forget(block.root)

    async def unblock(self, scope: Scope, value: str, *, root: str | None = None) -> bool:
        """Remove a block of the same scope, value and root; False when there was none."""
        found = await self._table.unblock(scope, value, root=root)
        await self._forget(root)
        return found

    async def override(
        self, policy: str, dimension: Dimension, *, limit: int, until: datetime
    ) -> None:
        """Another limit for one rule, until then. Raises ValueError when there is no such rule."""
        override = Override(policy=policy, dimension=dimension, limit=limit, until=until)
        changed, _ = await self._table.override(policy, dimension, override)
        await self._forget(changed.root)

    async def end_override(self, policy: str, dimension: Dimension) -> bool:
        """The policy's own limit again; False when it was in force before. Raises ValueError when
        there is no such rule."""
        changed, found = await self._table.override(policy, dimension, None)
        await self._forget(changed.root)
        return found

    async def _forget(self, root: str | None) -> None:
        if root is None:
            await forget_all(self._redis, self._table)
        else:
            await forget(self._redis, root)


async def forget(batcher: RedisClient, root: str, *, done: str = "saved") -> None:
    """Clear the cached limits of ``root``, after a commit, of which an error says what it has
    ``done``."""

    async def once() -> None:
        await batcher.command("DEL", keys.config(root))

    await _insist(once, f"the limits of {root}", done=done)


async def forget_all(batcher: RedisClient, table: PolicyTable) -> None:
    """Clear the cached limits of every root, after a commit.

    The registered ones first. They may not be all, when Redis lost that set alone (in a cluster it
    has a master of its own), so those in SQL follow, and whatever Redis has cached: that looks at
    every key. Each is tried even when another failed.
    """

    async def once() -> None:
        failure: StoreUnavailableError | None = None
        done: set[str] = set()
        async with aclosing(_cached(batcher, table)) as pages:
            async for page in pages:
                if isinstance(page, StoreUnavailableError):
                    failure = failure or page
                    continue
                new = sorted(set(page) - done)
                done.update(new)
                failure = await _delete(batcher, new) or failure
        if failure is not None:
            raise failure

    await _insist(once, "the limits of every root")


async def _cached(
    batcher: RedisClient, table: PolicyTable
) -> AsyncGenerator[list[str] | StoreUnavailableError]:
    """Pages of keys that may hold cached limits, or why there are no more from one source."""
    for source in (partial(batcher.command, "SMEMBERS", keys.ROOTS), table.roots):
        try:
            yield [keys.config(root) for root in await source()]
        except StoreUnavailableError as error:
            yield error
    try:
        async for page in batcher.scan(keys.config("*")):
            yield page
    except StoreUnavailableError as error:
        yield error


async def _delete(batcher: RedisClient, names: Sequence[str]) -> StoreUnavailableError | None:
    """Key by key: in a cluster they live in different slots. The first failure."""
    failure: StoreUnavailableError | None = None
    for start in range(0, len(names), _CHUNK):
        calls = (batcher.command("DEL", name) for name in names[start : start + _CHUNK])
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, StoreUnavailableError):
                failure = failure or result
            elif isinstance(result, BaseException):
                raise result
    return failure


async def _insist(clear: Callable[[], Awaitable[None]], whose: str, *, done: str = "saved") -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            await clear()
        except StoreUnavailableError as error:
            if attempt == _ATTEMPTS or not error.transient:
                raise StoreUnavailableError(
                    error.store,
                    f"{whose} are {done}, but the cache was not cleared: "
                    f"old ones may apply until it expires; run it again ({error})",
                    transient=error.transient,
                ) from error
        else:
            return
