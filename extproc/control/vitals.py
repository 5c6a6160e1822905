"""What a process holds, as gauges: looked at every few seconds, so that requests pay nothing."""

import asyncio
import os
import sys
from typing import Protocol

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.multiprocess import mark_process_dead

_INTERVAL_SECONDS = 2.0


class HasStreams(Protocol):
    """What serves Envoy."""

    @property
    def open_streams(self) -> int: ...


class Vitals:
    """Open ext_proc streams, asyncio tasks, and the memory blocks that Python has given out: looked
    at from the moment when it is made, in a running loop.

    Each at rest is a constant; one that only grows is a leak. With several processes that share a
    metrics directory the endpoint shows the sum of those that live.
    """

    def __init__(self, registry: CollectorRegistry, server: HasStreams) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, registry=registry, multiprocess_mode="livesum")

        self._server = server
        self._streams = gauge("tokenweir_open_streams", "Envoy's ext_proc streams open now.")
        self._tasks = gauge("tokenweir_tasks", "Tasks of the event loop.")
        self._blocks = gauge(
            "tokenweir_memory_blocks", "Blocks of memory that Python's allocator has given out."
        )
        self._task = asyncio.get_running_loop().create_task(self._run())

    def look(self) -> None:
        """Set the gauges to what is now."""
        self._streams.set(self._server.open_streams)
        self._tasks.set(len(asyncio.all_tasks()))
        self._blocks.set(sys.getallocatedblocks())

    async def stop(self) -> None:
        """Stop looking; what the gauges show goes with the process."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_INTERVAL_SECONDS)


def forget_gauges(pid: int) -> None:
    """What a process held went with it. Nothing to do where none shares a metrics directory."""
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        mark_process_dead(pid)  # type: ignore[no-untyped-call]
