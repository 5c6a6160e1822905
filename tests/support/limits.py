"""Limits of a running stack, set in this process: the command line takes most of a second."""

import asyncio

from extproc.stores.client import open_client
from extproc.stores.limit_admin import LimitAdmin
from extproc.stores.limit_table import LimitTable
from extproc.stores.sql import Database
from tests.support.client import StackClient

_TIMEOUT_MS = 3000


def set_limits(client: StackClient, *, rpm: int = 1000, tpm: int = 1_000_000) -> None:
    """As ``client.limit``. Not for use inside a running event loop."""

    async def write() -> None:
        database = Database(url=client.stack.database_url, threads=1, timeout_ms=_TIMEOUT_MS)
        redis = open_client(
            url=client.stack.redis_url, cluster=False, timeout_ms=_TIMEOUT_MS, max_connections=1
        )
        try:
            await LimitAdmin(redis, LimitTable(database)).set(client.service, rpm=rpm, tpm=tpm)
        finally:
            await redis.close()
            await database.close()

    asyncio.run(write())
