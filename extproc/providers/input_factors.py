"""By how much a provider's tokens differ from ours where its tokenizer is not public.

``input_factors.json``: dated starts by provider and model. What reported usage teaches later
(core/learned_factors.py) comes on top of them.
"""

import json
import re
from functools import lru_cache
from importlib.resources import files
from typing import Any

Rules = list[tuple[re.Pattern[str], int]]


@lru_cache(maxsize=1)
def _rules() -> dict[str, Rules]:
    raw: dict[str, Any] = json.loads(
        files("extproc.providers").joinpath("input_factors.json").read_text("utf-8")
    )
    return {
        provider: [(re.compile(rule["models"]), int(rule["percent"])) for rule in table["rules"]]
        for provider, table in raw.items()
    }


@lru_cache(maxsize=512)
def factor_percent(provider: str, model: str) -> int:
    """Percent by which counts in our encoding are multiplied; ``provider`` as in the data file."""
    name = model.lower()
    return next(percent for pattern, percent in _rules()[provider] if pattern.search(name))
