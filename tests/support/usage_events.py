"""Usage events for tests of the ledger, and a look at its tables."""

from collections.abc import Iterable
from typing import Any

import redis
from sqlalchemy import create_engine, text

from extproc.stores import keys

ROOT = "svc-1"


def event(number: int = 1, *, root: str = ROOT, **changes: str | int) -> dict[str, str]:
    """The fields of a plain, whole event; each number is another reservation."""
    fields: dict[str, str | int] = {
        "v": 1,
        "revision": 1,
        "reservation_id": f"r{number}",
        "request_id": f"req-{number}",
        "root": root,
        "who": '{"service":"svc-1"}',
        "model": "gpt-4o",
        "wire_format": "openai_chat",
        "input": 10,
        "output": 20,
        "cost": 7,
        "kinds": "cached_input 4, reasoning 5",
        "reserved": 110,
        "reserved_cost": 9,
        "prices": "2500000 10000000",
        "price_version": "",
        "state": "SETTLED",
        "outcome": "complete",
        "source": "metering",
        "rank": 3,
        "at": 1_767_225_600_123,
        "minute": "202601010000",
        "settled": 1_767_225_605_456,
    }
    return {name: str(value) for name, value in {**fields, **changes}.items()}


def append(
    client: redis.Redis,
    events: Iterable[dict[str, str]],
    *,
    root: str = ROOT,
    registers: bool = True,
) -> None:
    """As the scripts do it."""
    pipe: Any = client.pipeline(transaction=False)
    if registers:
        pipe.sadd(keys.ROOTS, root)
    for fields in events:
        pipe.xadd(keys.events(root), fields)
    pipe.execute()


def rows(sql_url: str, statement: str) -> list[Any]:
    """The rows of one statement."""
    engine = create_engine(sql_url)
    try:
        with engine.connect() as connection:
            return list(connection.execute(text(statement)))
    finally:
        engine.dispose()


def count(sql_url: str, table: str) -> int:
    return int(rows(sql_url, f"SELECT COUNT(*) FROM {table}")[0][0])
