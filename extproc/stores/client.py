"""What stores need of Redis, be it one server or a cluster, and how it is opened."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Protocol

from extproc.stores.batcher import RedisBatcher
from extproc.stores.cluster import RedisCluster
from extproc.stores.redis_link import Word
from extproc.stores.scripts import Script


class RedisClient(Protocol):
    """Commands and scripts; every failure is a StoreUnavailableError. See RedisBatcher."""

    async def command(self, *command: Word) -> Any: ...

    async def run(
        self, script: Script, keys: Sequence[str], args: Iterable[Word], *, lazily: bool = False
    ) -> Any: ...

    def scan(self, pattern: str) -> AsyncIterator[list[str]]: ...

    async def ping(self) -> None: ...

    async def load(self, scripts: Iterable[Script]) -> None: ...

    async def close(self) -> None: ...


def open_client(
    *, url: str, cluster: bool, timeout_ms: int = 50, max_connections: int = 8
) -> RedisClient:
    """Nothing is connected yet. Raises SettingsError for a URL that cannot be understood."""
    kind = RedisCluster if cluster else RedisBatcher
    return kind(url=url, timeout_ms=timeout_ms, max_connections=max_connections)
