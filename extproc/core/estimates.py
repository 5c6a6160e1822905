"""How many output tokens to reserve for a request whose answer is not there yet."""

from dataclasses import dataclass
from enum import StrEnum


class EstimateMode(StrEnum):
    """Where the number comes from. Without any history it is the default."""

    MEAN = "mean"  # mean of the answers of the last ten full minutes, rounded up
    QUANTILE = "quantile"  # a quantile of them, from a histogram, with a margin
    STRICT = "strict"  # the cap itself: an answer can never be longer
    GIVEN = "given"  # the default: another root, or the request itself, tells what to expect


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatePlan:
    """How one request is estimated.

    The estimate never passes the request's own cap nor ``platform_cap_tokens``. Strict mode without
    either falls back to the default. Only policy roots have a histogram: for others a quantile is
    the mean.
    """

    mode: EstimateMode = EstimateMode.MEAN
    quantile_permille: int = 950
    margin_percent: int = 110
    platform_cap_tokens: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.quantile_permille <= 1000:
            raise ValueError("quantile_permille must be 1 to 1000")
        if not 1 <= self.margin_percent <= 10_000:
            raise ValueError("margin_percent must be 1 to 10000")
        if self.platform_cap_tokens is not None and self.platform_cap_tokens < 0:
            raise ValueError("platform_cap_tokens must not be negative")
