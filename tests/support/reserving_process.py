"""A process that reserves: ``python -m tests.support.reserving_process URL COUNT``.

Says "ready", waits for a line, asks for COUNT reservations at once, and says how many it got.
"""

import asyncio
import sys

from extproc.core.reservations import Admitted
from extproc.stores.batcher import RedisBatcher
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.reservations import request


async def main(url: str, count: int) -> None:
    """Reserve at the usual root."""
    batcher = RedisBatcher(url=url, timeout_ms=10_000)
    store = RedisReservationStore(batcher)
    await store.ping()
    print("ready", flush=True)
    sys.stdin.readline()
    verdicts = await asyncio.gather(*(store.reserve(request()) for _ in range(count)))
    await batcher.close()
    print(sum(isinstance(verdict, Admitted) for verdict in verdicts), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
