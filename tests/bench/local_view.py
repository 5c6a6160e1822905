"""One hot key with and without the local view: ``python -m tests.bench.local_view``.

In one process, on a Valkey of its own: each of ``CLIENTS`` tasks admits a request, waits as long as
a short answer takes, and settles it. Prints calls of scripts a request (from Valkey's own
statistics) and the time from the request to the decision. No Envoy: it is what the option changes.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis

from extproc.core.estimates import EstimatePlan
from extproc.core.local_view import LocalReserver
from extproc.core.policies import Descriptor
from extproc.core.reservations import Admitted, Slip
from extproc.core.reserving import Attempt, Reserver
from extproc.core.slice_keeper import SliceKeeper
from extproc.core.slices import SlicePlan
from extproc.stores.batcher import RedisBatcher
from extproc.stores.slice_store import SlicedReservationStore
from extproc.stores.views import Views
from tests.support.reservations import ROOT, Inspector, request, settlement
from tests.support.valkey import valkey_server, wait_for_quiet_minute

CLIENTS = 20
ANSWER_SECONDS = 0.05
SCRIPTS = ("cmdstat_evalsha", "cmdstat_eval")


class _Silent:
    def slices_held(self, tokens: int) -> None:
        pass


async def _run(url: str, *, requests: int, is_local: bool) -> tuple[list[float], int]:
    """Seconds of every decision, and how many came from slices."""
    batcher = RedisBatcher(url=url, timeout_ms=5000)
    store = SlicedReservationStore(batcher)
    await store.ping()
    plan = SlicePlan()
    keeper = SliceKeeper(store, plan, _Silent())
    unused: Any = None
    common: dict[str, Any] = {
        "store": store,
        "limits": unused,
        "views": Views(),
        "estimate": EstimatePlan(),
        "clock": lambda: datetime.now(UTC),
    }
    reserver = LocalReserver(**common, keeper=keeper, plan=plan) if is_local else Reserver(**common)
    descriptor = Descriptor(root=ROOT, values={}, requested_model="gpt-4o")
    seconds: list[float] = []
    local = 0

    async def client(count: int) -> None:
        nonlocal local
        for _ in range(count):
            asked = request(input_tokens=200, default=300)
            started = time.perf_counter()
            verdict = await reserver.reserve(Attempt(asked, descriptor))
            seconds.append(time.perf_counter() - started)
            assert isinstance(verdict, Admitted)
            await asyncio.sleep(ANSWER_SECONDS)
            end = settlement(asked.reservation_id, 200, 250)
            if verdict.slice_id:
                local += 1
                slip = Slip(slice_id=verdict.slice_id, input_tokens=200, reserved_tokens=500)
                end = replace(end, slip=slip)
            await store.settle(end)

    await asyncio.gather(*(client(requests // CLIENTS) for _ in range(CLIENTS)))
    await keeper.close(timeout_seconds=5)
    await store.close()
    await batcher.close()
    return seconds, local


def _calls(client: redis.Redis) -> int:
    stats: Any = client.info("commandstats")
    return sum(int(stats.get(name, {}).get("calls", 0)) for name in SCRIPTS)


def main() -> None:
    """Measure both in one run, and print them below each other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4000)
    requests = parser.parse_args().requests // CLIENTS * CLIENTS
    share = SlicePlan().share_permille / 10
    print(f"{requests} requests of one key, {CLIENTS} at once, slices of {share} %")
    titles = f"{'local view':<12}{'script calls/request':>22}{'admission p50 us':>18}"
    print(f"{titles}{'p99 us':>9}{'from slices':>13}")
    with tempfile.TemporaryDirectory() as folder, valkey_server(Path(folder)) as url:
        for is_local in (False, True):
            with redis.Redis.from_url(url, decode_responses=True) as client:
                client.flushdb()
                wait_for_quiet_minute(client, seconds=40)
                Inspector(client).cache(rpm=1_000_000, tpm=20_000_000)
                before = _calls(client)
                seconds, local = asyncio.run(_run(url, requests=requests, is_local=is_local))
                calls = _calls(client) - before
                used, left = Inspector(client).used(), Inspector(client).open()
            assert used == (requests, requests * 450), used
            assert left == 0
            cuts = statistics.quantiles(seconds, n=100)
            print(
                f"{'on' if is_local else 'off':<12}{calls / requests:>22.2f}"
                f"{cuts[49] * 1e6:>18.0f}{cuts[98] * 1e6:>9.0f}{local / requests:>12.0%} "
            )


if __name__ == "__main__":
    main()
