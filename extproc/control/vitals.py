"""What a process holds, as gauges: looked at every few seconds, so that requests pay nothing."""

import asyncio
import sys
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

_INTERVAL_SECONDS = 2.0


class Vitals:
    """Open ext_proc streams, asyncio tasks, and the memory blocks that Python has given out.

    Each at rest is a constant; one that only grows is a leak. With several processes that share a
    metrics directory the endpoint shows the sum of those that live.
    """

    def __init__(self, registry: CollectorRegistry, open_streams: Callable[[], int]) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, registry=registry, multiprocess_mode="livesum")

        self._open_streams = open_streams
        self._streams = gauge("tokenweir_open_streams", "Envoy's ext_proc streams open now.")
        self._tasks = gauge("tokenweir_tasks", "Tasks of the event loop.")
        self._blocks = gauge(
            "tokenweir_memory_blocks", "Blocks of memory that Python's allocator has given out."
        )
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Set the gauges to what is now."""
        self._streams.set(self._open_streams())
        self._tasks.set(len(asyncio.all_tasks()))
        self._blocks.set(sys.getallocatedblocks())

    def start(self) -> None:
        """Look every two seconds from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop looking; what the gauges show goes with the process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_INTERVAL_SECONDS)
