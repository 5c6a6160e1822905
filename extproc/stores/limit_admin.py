"""What an administrator does to limits and policies: SQL first, and only then the cache."""

import asyncio
from collections.abc import Sequence
from datetime import datetime

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

    What belongs to no root changes every root that is registered in Redis.
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
        await forget(self._redis, file.root)

    async def block(self, block: Block) -> None:
        """Refuse everything of one value from now on."""
        await self._table.block(block)
        await forget(self._redis, block.root)

    async def unblock(self, scope: Scope, value: str, *, root: str | None = None) -> bool:
        """Remove a block of the same scope, value and root; False when there was none."""
        found = await self._table.unblock(scope, value, root=root)
        await forget(self._redis, root)
        return found

    async def override(
        self, policy: str, dimension: Dimension, *, limit: int, until: datetime
    ) -> None:
        """Another limit for one rule, until then. Raises ValueError when there is no such rule."""
        override = Override(policy=policy, dimension=dimension, limit=limit, until=until)
        changed = await self._table.override(policy, dimension, override)
        await forget(self._redis, changed.root)

    async def end_override(self, policy: str, dimension: Dimension) -> None:
        """The policy's own limit again. Raises ValueError when there is no such rule."""
        changed = await self._table.override(policy, dimension, None)
        await forget(self._redis, changed.root)


async def forget(batcher: RedisClient, root: str | None, *, done: str = "saved") -> None:
    """Clear the cached limits of ``root``, or (None) of every registered one, after a commit, of
    which an error says what it has ``done``."""
    whose = f"the limits of {root or 'every root'}"
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            roots = [root] if root is not None else await batcher.command("SMEMBERS", keys.ROOTS)
            for start in range(0, len(roots), _CHUNK):
                chunk = roots[start : start + _CHUNK]
                # Key by key: in a cluster they live in different slots.
                await asyncio.gather(*(batcher.command("DEL", keys.config(each)) for each in chunk))
        except StoreUnavailableError as error:
            if attempt == _ATTEMPTS or not error.transient:
                raise StoreUnavailableError(
                    "redis",
                    f"{whose} are {done}, but the cache was not cleared: "
                    f"old ones may apply until it expires; run it again ({error})",
                    transient=error.transient,
                ) from error
        else:
            return
