"""How many usage events a second the ledger writer moves from a Valkey into a MariaDB.

``python -m tests.bench.ledger_writer [--events N] [--batch N]`` starts both, fills the streams
first, and then runs one writer until they are empty.
"""

import argparse
import asyncio
import os
import random
import tempfile
import time
from pathlib import Path
from uuid import UUID

import redis

from extproc.core.ledger import Written
from extproc.jobs.ledger_writer import LedgerWriter
from extproc.providers.registry import provider_of
from extproc.stores.batcher import RedisBatcher
from extproc.stores.event_stream import RedisEventSource
from extproc.stores.ledger_table import LedgerTable
from extproc.stores.migrate import upgrade
from extproc.stores.sql import Database
from tests.support.mariadb import OwnServer, make_database
from tests.support.usage_events import append, count, event
from tests.support.valkey import valkey_server

_ROOTS = 20
_MODELS = ("gpt-4o", "gpt-4.1", "o3", "claude-sonnet-4-5")
_USERS = 50
_NOW = 1_767_225_600_000


class _Quiet:
    def ledger_written(self, written: Written, *, seconds: float, oldest_ms: int) -> None: ...

    def ledger_waiting(self, events: int) -> None: ...

    def ledger_failed(self, store: str) -> None:
        raise RuntimeError(f"{store} failed")


async def _drain(redis_url: str, sql_url: str, batch: int) -> tuple[int, float, float]:
    client = RedisBatcher(url=redis_url, timeout_ms=10_000)
    database = Database(url=sql_url, threads=1, timeout_ms=30_000)
    writer = LedgerWriter(
        RedisEventSource(client),
        LedgerTable(database),
        _Quiet(),
        provider_of=provider_of,
        batch=batch,
    )
    started, cpu = time.perf_counter(), time.process_time()
    moved = await writer.sweep()
    elapsed, used = time.perf_counter() - started, time.process_time() - cpu
    await client.close()
    await database.close()
    return moved, elapsed, used


def _cpu_of_children() -> dict[str, float]:
    """CPU seconds of the servers that were started here, by name."""
    tick = os.sysconf("SC_CLK_TCK")
    found: dict[str, float] = {}
    for one in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = one.read_text()
        except OSError:  # it has ended
            continue
        name, words = text[text.index("(") + 1 : text.rindex(")")], text.rpartition(")")[2].split()
        if int(words[1]) == os.getpid():
            found[name] = (int(words[11]) + int(words[12])) / tick
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=1000)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        valkey_server(Path(folder)) as redis_url,
        OwnServer(Path(folder), durable=True, buffer_mb=256) as server,
        redis.Redis.from_url(redis_url) as client,
    ):
        sql_url = make_database(server.url)
        upgrade(sql_url)
        dice = random.Random(1)
        for root in range(_ROOTS):
            numbers = range(root, args.events, _ROOTS)
            for start in range(0, len(numbers), 5000):
                events = (
                    event(
                        i,
                        root=f"svc-{root}",
                        reservation_id=f"{dice.getrandbits(128):032x}",
                        request_id=str(UUID(int=dice.getrandbits(128))),
                        input=dice.randrange(10_000),
                        output=dice.randrange(2000),
                        cost=dice.randrange(50_000),
                        kinds=f"cached_input {dice.randrange(9)}, reasoning {dice.randrange(900)}",
                        at=_NOW + i,
                        settled=_NOW + i + dice.randrange(20_000),
                        model=_MODELS[i // _ROOTS % len(_MODELS)],
                        who=f'{{"service":"svc-{root}","user":"u{i // _ROOTS % _USERS}"}}',
                    )
                    for i in numbers[start : start + 5000]
                )
                append(client, events, root=f"svc-{root}")
        before = _cpu_of_children()
        moved, seconds, cpu = asyncio.run(_drain(redis_url, sql_url, args.batch))
        after = _cpu_of_children()
        assert moved == args.events == count(sql_url, "usage_ledger")
        print(
            f"{moved} events in {seconds:.1f} s: {moved / seconds:,.0f} events/s into MariaDB, "
            f"batches of {args.batch}, writer's CPU {cpu / moved * 1e6:.0f} us an event"
        )
        for name, used in sorted(after.items()):
            print(f"{name}: CPU {(used - before.get(name, 0)) / moved * 1e6:.0f} us an event")


if __name__ == "__main__":
    main()
