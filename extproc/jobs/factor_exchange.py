"""Exchanges learned factors with the other workers, in the background, once a minute."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from extproc.core.errors import StoreUnavailableError
from extproc.core.learned_factors import PLAIN, LearnedFactors, Model, merged

log = logging.getLogger("tokenweir.factors")

INTERVAL_SECONDS = 60.0
# Provider, model, factor.
Report = Callable[[str, str, float], None]


class FactorStore(Protocol):
    async def load(self) -> dict[Model, float]: ...

    async def save(self, factors: dict[Model, float]) -> None: ...


class FactorExchange:
    """Owns one task. A Redis that is away costs nothing: what was learned waits for it."""

    def __init__(
        self,
        factors: LearnedFactors,
        store: FactorStore,
        report: Report,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._factors = factors
        self._store = store
        self._report = report
        self._interval_seconds = interval_seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Hand over what was learned last; the stores are about to close."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        await self.exchange()

    async def _run(self) -> None:
        while True:
            await self.exchange()
            await asyncio.sleep(self._interval_seconds)

    async def exchange(self) -> None:
        """Once: read, merge, write, report. Never raises for a store that does not answer."""
        try:
            others = await self._store.load()
            fresh = self._factors.fresh()
            both = {
                model: merged(permille, answers, others.get(model))
                for model, (permille, answers) in fresh.items()
            }
            await self._store.save(both)
        except StoreUnavailableError as error:
            log.info("factors not exchanged", extra={"reason": str(error)})
            return
        for model, permille in {**others, **both}.items():
            answers = fresh[model][1] if model in fresh else 0
            self._factors.exchanged(model, permille, answers=answers)
        for (provider, model_name), permille in self._factors.all().items():
            self._report(provider, model_name, permille / PLAIN)
