"""Learned factors in Redis: one small hash that all workers share, exchanged every minute."""

import time

from extproc.core.learned_factors import LEAST, MAX_MODELS, MOST, Model
from extproc.stores import keys
from extproc.stores.client import RedisClient

_KEPT_SECONDS = 30 * 86_400
_BETWEEN = "|"


class RedisFactorStore:
    """Every method raises StoreUnavailableError on failure and nothing else."""

    def __init__(self, redis: RedisClient) -> None:
        self._redis = redis

    async def load(self) -> dict[Model, float]:
        """Permille by model. What is not ours is skipped; the oldest beyond the bound go."""
        raw = await self._redis.command("HGETALL", keys.INPUT_FACTORS)
        flat = [_text(word) for word in _flat(raw)]
        found: list[tuple[int, str, Model, float]] = []
        for field, value in zip(flat[::2], flat[1::2], strict=False):
            provider, between, model = field.partition(_BETWEEN)
            permille, _, stamp = value.partition(":")
            if not between or not permille.isdecimal() or not stamp.isdecimal():
                continue
            if len(permille) > 5 or not LEAST <= int(permille) <= MOST:
                continue
            found.append((int(stamp[:12]), field, (provider, model), float(permille)))
        found.sort(reverse=True)
        old = [field for _, field, _, _ in found[MAX_MODELS:]]
        if old:
            await self._redis.command("HDEL", keys.INPUT_FACTORS, *old)
        return {model: permille for _, _, model, permille in found[:MAX_MODELS]}

    async def save(self, factors: dict[Model, float]) -> None:
        """Write these; the last worker's word stands, which is as good as any."""
        if not factors:
            return
        now = int(time.time())
        words: list[str | int] = []
        for (provider, model), permille in factors.items():
            words += [f"{provider}{_BETWEEN}{model}", f"{round(permille)}:{now}"]
        await self._redis.command("HSET", keys.INPUT_FACTORS, *words)
        await self._redis.command("EXPIRE", keys.INPUT_FACTORS, _KEPT_SECONDS)


def _flat(raw: object) -> list[object]:
    if isinstance(raw, dict):
        return [word for pair in raw.items() for word in pair]
    return list(raw) if isinstance(raw, list | tuple) else []


def _text(word: object) -> str:
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)
