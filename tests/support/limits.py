"""Limits of a running stack, set in this process: the command line takes most of a second."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from extproc.demo.stack import Stack
from extproc.stores.client import open_client
from extproc.stores.limit_admin import LimitAdmin
from extproc.stores.limit_table import LimitTable
from extproc.stores.sql import Database

_TIMEOUT_MS = 3000


def write_limits(stack: Stack, service: str, *, rpm: int, tpm: int, enabled: bool = True) -> None:
    """As ``stack.set_limits``: in force for the next request."""

    async def write() -> None:
        database = Database(url=stack.database_url, threads=1, timeout_ms=_TIMEOUT_MS)
        redis = open_client(
            url=stack.redis_url,
            cluster="," in stack.redis_url,
            timeout_ms=_TIMEOUT_MS,
            max_connections=1,
        )
        try:
            admin = LimitAdmin(redis, LimitTable(database))
            await admin.set(service, rpm=rpm, tpm=tpm, enabled=enabled)
        finally:
            await redis.close()
            await database.close()

    # In a thread, because the caller may itself run in an event loop.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, write()).result()
