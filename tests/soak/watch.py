"""Looks at the server, at Redis and at the server's own gauges."""

import time
from typing import Any

import psutil
import redis

from extproc.demo.stack import Stack, http_get
from extproc.stores import keys
from tests.soak.verdict import Sample

_KEPT = {keys.ROOTS, keys.ROOTS_ACROSS, keys.INPUT_FACTORS}
_MB = 1024 * 1024
_GAUGES = ("tokenweir_open_streams", "tokenweir_tasks", "tokenweir_memory_blocks")


class Watch:
    """Samples of one stack's ``serve``."""

    def __init__(self, stack: Stack, client: "redis.Redis") -> None:
        pid = stack.child("serve").pid
        assert pid is not None
        self._process = psutil.Process(pid)
        self._stack = stack
        self._redis = client
        self._started = time.monotonic()
        self.samples: list[Sample] = []

    def start(self) -> None:
        """The load begins now."""
        self._started = time.monotonic()

    def sample(self, requests: int) -> Sample:
        """What is now; not kept."""
        memory = self._process.memory_full_info()
        streams, tasks, blocks = self.gauges()
        info: Any = self._redis.info("memory")
        clients: Any = self._redis.client_list()
        return Sample(
            seconds=round(time.monotonic() - self._started, 1),
            requests=requests,
            rss_mb=round(memory.rss / _MB, 2),
            pss_mb=round(memory.pss / _MB, 2),
            fds=self._process.num_fds(),
            threads=self._process.num_threads(),
            streams=streams,
            tasks=tasks,
            blocks=blocks,
            redis_clients=len(clients),
            redis_mb=round(info["used_memory"] / _MB, 2),
            redis_keys=int(self._redis.dbsize()),
            pending=self.pending(),
        )

    def take(self, requests: int) -> None:
        """Keep a sample."""
        self.samples.append(self.sample(requests))

    def gauges(self) -> tuple[int, int, int]:
        """Open streams, tasks, memory blocks; -1 for what the endpoint does not show."""
        _, text = http_get(self._stack.metrics_url)
        found = dict.fromkeys(_GAUGES, -1)
        for line in text.splitlines():
            name, _, value = line.partition(" ")
            if name in found:
                found[name] = int(float(value))
        streams, tasks, blocks = (found[name] for name in _GAUGES)
        return streams, tasks, blocks

    def pending(self) -> int:
        """Open reservations of all services."""
        roots: Any = self._redis.smembers(keys.ROOTS)
        pipe = self._redis.pipeline(transaction=False)
        for root in roots:
            pipe.zcard(keys.pending(root))
        return sum(map(int, pipe.execute()))

    def leases(self) -> int:
        """Places of concurrency limits that somebody holds."""
        names = self._redis.scan_iter("slots:*", count=1000)
        return sum(int(self._redis.zcard(name)) for name in names)

    def immortal(self) -> list[str]:
        """Keys that Redis would keep for ever, beside those few that are meant to stay."""
        names = list(self._redis.scan_iter("*", count=1000))
        pipe = self._redis.pipeline(transaction=False)
        for name in names:
            pipe.pttl(name)
        ttls = pipe.execute()
        return sorted(
            name for name, ttl in zip(names, ttls, strict=True) if ttl == -1 and name not in _KEPT
        )
