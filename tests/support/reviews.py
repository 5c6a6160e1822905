"""Short ways to put reservations into review, and to look at what waits."""

from typing import Any

import redis

from extproc.core.reservations import (
    Settlement,
)
from extproc.core.reviews import decision
from extproc.stores import keys
from tests.contract.test_reaper import Notes, reaper
from tests.support.reservations import ROOT

WEEK_MS = 7 * 86_400_000
RECORD_MS = 900_000


async def sweep(store: Any, notes: Notes | None = None) -> int:
    return await reaper(store, notes or Notes(), policy="review").sweep()


def waiting(client: redis.Redis, root: str = ROOT) -> list[str]:
    found: Any = client.zrange(keys.review(root), 0, -1)
    return sorted(found)


def life_ms(client: redis.Redis, rid: str = "r0") -> int:
    return int(client.pttl(keys.reservation(ROOT, rid)))


def used_so(rid: str, input_tokens: int, output_tokens: int, *, root: str = ROOT) -> Settlement:
    return decision(
        rid, root, input_tokens=input_tokens, output_tokens=output_tokens, release=False
    )


def used_nothing(rid: str) -> Settlement:
    return decision(rid, ROOT, release=True)
