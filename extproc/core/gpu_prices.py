"""What a token costs on a GPU that one pays by the hour.

    price of a million = cost of an hour x GPUs x 1,000,000
                         / (tokens per second x 3600 x utilisation)

Input is read (prefill) at one speed and output is written (decode) at another, so each has its
price. Speeds are those of all GPUs of the model together, measured while they do nothing else.
"""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from extproc.core.prices import MILLION
from extproc.core.reservations import MAX_PRICE

_SECONDS = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCost:
    """What was paid and what was measured. ``utilisation_percent`` is how much of the hour is spent
    on tokens that somebody asked for. Raises ValueError for what is not more than zero."""

    gpu_hour_usd: Decimal
    gpus: int
    utilisation_percent: Decimal
    prefill_tokens_per_second: Decimal
    decode_tokens_per_second: Decimal

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if type(value) is not int and not isinstance(value, Decimal):
                raise TypeError(f"{name} must be a whole number or a Decimal")
            if not Decimal(value).is_finite() or value <= 0:
                raise ValueError(f"{name} must be more than 0")
        if self.utilisation_percent > 100:
            raise ValueError("utilisation_percent must be at most 100")

    @property
    def input_micros_per_million(self) -> int:
        """Micro-USD for a million tokens of input, rounded up. Raises ValueError above the most."""
        return self._micros(self.prefill_tokens_per_second)

    @property
    def output_micros_per_million(self) -> int:
        """The same of output."""
        return self._micros(self.decode_tokens_per_second)

    def _micros(self, tokens_per_second: Decimal) -> int:
        an_hour = Fraction(self.gpu_hour_usd) * self.gpus * MILLION
        tokens = Fraction(tokens_per_second) * _SECONDS * Fraction(self.utilisation_percent) / 100
        price = an_hour * MILLION / tokens
        micros = -(-price.numerator // price.denominator)
        if micros > MAX_PRICE:
            raise ValueError(f"a price may be {MAX_PRICE} micro-USD for a million tokens")
        return micros
