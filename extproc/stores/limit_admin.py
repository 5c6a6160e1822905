"""What an administrator does to limits: SQL first, and only then the cache."""

from extproc.core.errors import StoreUnavailableError
from extproc.core.limits import ServiceLimit
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.limit_table import LimitTable

# DEL can be repeated without harm, and much depends on it.
_ATTEMPTS = 3


class LimitAdmin:
    """Changes are committed in SQL, then the cache key is deleted: the next request sees them.

    A failed commit deletes nothing. When the commit succeeded and the cache could not be cleared,
    StoreUnavailableError("redis") says so: old limits may apply until the cached entry expires.
    """

    def __init__(self, batcher: RedisBatcher, table: LimitTable) -> None:
        self._redis = batcher
        self._table = table

    async def set(
        self,
        service_id: str,
        *,
        rpm: int | None = None,
        tpm: int | None = None,
        enabled: bool | None = None,
    ) -> ServiceLimit:
        """Create a service, or change what is given. Raises ValueError for a wrong value."""
        limit = await self._table.put(service_id, rpm=rpm, tpm=tpm, enabled=enabled)
        await self._forget(service_id)
        return limit

    async def disable(self, service_id: str) -> ServiceLimit:
        """Refuse every request of the service. Raises ValueError when there is none."""
        return await self.set(service_id, enabled=False)

    async def get(self, service_id: str) -> ServiceLimit | None:
        """The limits as in SQL."""
        return await self._table.find(service_id)

    async def list(self) -> list[ServiceLimit]:
        """All services as in SQL, sorted by id."""
        return await self._table.all()

    async def _forget(self, service_id: str) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await self._redis.command("DEL", keys.config(service_id))
            except StoreUnavailableError as error:
                if attempt == _ATTEMPTS or not error.transient:
                    raise StoreUnavailableError(
                        "redis",
                        f"the limits of {service_id} are saved, but the cache was not cleared: "
                        f"old ones may apply until it expires; run it again ({error})",
                        transient=error.transient,
                    ) from error
            else:
                return
