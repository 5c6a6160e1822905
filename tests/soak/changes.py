"""What administrators do meanwhile: limits and policies that change while requests run."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from sqlalchemy import insert

from extproc.demo.stack import Stack
from extproc.stores.client import open_client
from extproc.stores.limit_admin import LimitAdmin
from extproc.stores.limit_table import LimitTable
from extproc.stores.sql import Database
from extproc.stores.tables import service_limit

RPM, TPM = 1_000_000, 1_000_000_000
_TIMEOUT_MS = 10_000
_EVERY_SECONDS = 5.0
# One change of these is a policy file, which is a process of its own.
_POLICY_AT = 6


@asynccontextmanager
async def admin_of(stack: Stack) -> AsyncIterator[LimitAdmin]:
    """An administrator of the stack's limits, in this process."""
    database = Database(url=stack.database_url, threads=1, timeout_ms=_TIMEOUT_MS)
    redis = open_client(
        url=stack.redis_url, cluster=False, timeout_ms=_TIMEOUT_MS, max_connections=1
    )
    try:
        yield LimitAdmin(redis, LimitTable(database))
    finally:
        await redis.close()
        await database.close()


async def set_limits(stack: Stack, services: Sequence[str]) -> None:
    """Limits that are never reached for all, five requests a minute for "small"."""
    database = Database(url=stack.database_url, threads=1, timeout_ms=_TIMEOUT_MS)
    rows = [{"service_id": service, "rpm": RPM, "tpm": TPM, "status": 1} for service in services]
    try:
        # Nobody has asked for them yet, so there is no cache to clear.
        await database.run(lambda connection: connection.execute(insert(service_limit), rows))
    finally:
        await database.close()
    async with admin_of(stack) as admin:
        await admin.set("small", rpm=5, tpm=TPM)
        await admin.set("turns", rpm=RPM, tpm=TPM)
    await apply_policy(stack, "turns", 2)


async def apply_policy(stack: Stack, service: str, limit: int) -> None:
    """At most ``limit`` requests of the service may run at once."""
    rules = [{"dimension": "concurrent", "limit": limit}]
    policy = {"name": f"at-once-{service}", "scope": "service", "value": service, "rules": rules}
    file = stack.run_dir / f"policy-{service}.yaml"
    file.write_text(json.dumps({"root": service, "policies": [policy]}))  # JSON is YAML
    await asyncio.to_thread(stack.cli, "limits", "apply", "-f", str(file))


async def keep_changing(stack: Stack, services: Sequence[str]) -> None:
    """Until cancelled: other limits for somebody every few seconds, now and then other policies."""
    some = random.Random(2)
    async with admin_of(stack) as admin:
        for number in itertools.count():
            await asyncio.sleep(_EVERY_SECONDS)
            if number % _POLICY_AT:
                await admin.set(some.choice(services), rpm=RPM + number)
            elif number % (2 * _POLICY_AT):
                await apply_policy(stack, "turns", some.randint(1, 3))
            else:
                await apply_policy(stack, some.choice(services), 100 + number)
