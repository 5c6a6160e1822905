"""What one model costs at one moment: a price for every class of tokens and of calls.

Whole micro-USD for a million (of tokens, or of calls), never a float. A price may be a part of that
in thousandths, which is how a discount for batches is kept exact. Made once when a request is
admitted, a ``RatePlan`` is what its charge is computed with at its end, whatever changed meanwhile.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from extproc.core.limits import MAX_COUNT
from extproc.core.reservations import MAX_PRICE

MILLION = 1_000_000
WHOLE_PERMILLE = 1000
MAX_PERMILLE = 1_000_000
MAX_TEXT = 4096
# A class of calls: a million USD for one call and less.
MAX_CALL_PRICE = 10**18
# Names of service tiers as providers spell them; "" is the standard one.
_TIER = re.compile(r"[a-z0-9_-]{0,32}", re.ASCII)
_VERSION = re.compile(r"[0-9A-Za-z._-]{0,64}", re.ASCII)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_FORM = "p1"


class PriceClass(StrEnum):
    """What is priced apart. The parts of input and of output never overlap (``core.pricing``)."""

    INPUT = "input"
    OUTPUT = "output"
    CACHED_INPUT = "cached_input"
    CACHE_WRITE_5M = "cache_write_5m"  # and those of which nobody says how long they live
    CACHE_WRITE_1H = "cache_write_1h"
    REASONING = "reasoning"
    AUDIO_INPUT = "audio_input"
    AUDIO_OUTPUT = "audio_output"
    IMAGE_INPUT = "image_input"
    IMAGE_OUTPUT = "image_output"
    SERVER_TOOL_CALL = "server_tool_call"  # a web search, say
    RERANK_SEARCH = "rerank_search"
    REQUEST = "request"

    @property
    def is_call(self) -> bool:
        """Counted by the call, not by the token."""
        return self in _CALLS

    @property
    def parent(self) -> "PriceClass | None":
        """Whose price counts where this class has none of its own; None: there is no such."""
        return None if self in _CALLS else _PARENTS[self]


_CALLS = frozenset({PriceClass.SERVER_TOOL_CALL, PriceClass.RERANK_SEARCH, PriceClass.REQUEST})
_PARENTS: dict[PriceClass, PriceClass | None] = {
    PriceClass.INPUT: None,
    PriceClass.OUTPUT: PriceClass.INPUT,
    PriceClass.CACHED_INPUT: PriceClass.INPUT,
    PriceClass.CACHE_WRITE_5M: PriceClass.INPUT,
    PriceClass.CACHE_WRITE_1H: PriceClass.CACHE_WRITE_5M,
    PriceClass.REASONING: PriceClass.OUTPUT,
    PriceClass.AUDIO_INPUT: PriceClass.INPUT,
    PriceClass.AUDIO_OUTPUT: PriceClass.OUTPUT,
    PriceClass.IMAGE_INPUT: PriceClass.INPUT,
    PriceClass.IMAGE_OUTPUT: PriceClass.OUTPUT,
}
# Short, because a plan travels with its request.
_CODES = {
    PriceClass.INPUT: "i",
    PriceClass.OUTPUT: "o",
    PriceClass.CACHED_INPUT: "c",
    PriceClass.CACHE_WRITE_5M: "w",
    PriceClass.CACHE_WRITE_1H: "h",
    PriceClass.REASONING: "r",
    PriceClass.AUDIO_INPUT: "ai",
    PriceClass.AUDIO_OUTPUT: "ao",
    PriceClass.IMAGE_INPUT: "ii",
    PriceClass.IMAGE_OUTPUT: "io",
    PriceClass.SERVER_TOOL_CALL: "t",
    PriceClass.RERANK_SEARCH: "s",
    PriceClass.REQUEST: "q",
}
_CLASSES = {code: each for each, code in _CODES.items()}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Rate:
    """One price: ``micros_per_million`` times ``permille`` / 1000.

    It counts for requests of ``service_tier`` ("" is the standard one) with more than
    ``above_input_tokens`` of input. Raises TypeError for what is not a whole number, ValueError for
    what is out of bounds.
    """

    service_tier: str = ""
    above_input_tokens: int = 0
    price_class: PriceClass
    micros_per_million: int
    permille: int = WHOLE_PERMILLE

    def __post_init__(self) -> None:
        most = MAX_CALL_PRICE if self.price_class.is_call else MAX_PRICE
        check_number("above_input_tokens", self.above_input_tokens, most=MAX_COUNT)
        check_number("micros_per_million", self.micros_per_million, most=most)
        check_number("permille", self.permille, most=MAX_PERMILLE)
        if not _TIER.fullmatch(self.service_tier):
            raise ValueError("service_tier must be up to 32 small letters, digits, '_' or '-'")
        if self.price_class.is_call and self.above_input_tokens:
            raise ValueError(f"{self.price_class} is a call: its price has no threshold of input")

    @property
    def micros_rounded_up(self) -> int:
        """Micro-USD for a million, with the part in thousandths, rounded up."""
        return -(-self.micros_per_million * self.permille // WHOLE_PERMILLE)


@dataclass(frozen=True, slots=True)
class RatePlan:
    """All prices of one model at one moment. ``version`` names them ("" for those of settings).

    Raises ValueError unless there is a standard price of input, by which all tokens that have no
    price of their own are charged. It may be 0, but somebody must have said so.
    """

    rates: tuple[Rate, ...]
    version: str = ""
    _table: dict[tuple[str, PriceClass], tuple[Rate, ...]] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not _VERSION.fullmatch(self.version):
            raise ValueError("a version is up to 64 letters, digits, '.', '_' or '-'")
        table: dict[tuple[str, PriceClass], tuple[Rate, ...]] = {}
        # The highest threshold first.
        for rate in sorted(self.rates, reverse=True):
            key = rate.service_tier, rate.price_class
            before = table.get(key, ())
            if before and before[-1].above_input_tokens == rate.above_input_tokens:
                raise ValueError(f"{rate.price_class} has two prices")
            table[key] = (*before, rate)
        standard = table.get(("", PriceClass.INPUT), ())
        if not standard or standard[-1].above_input_tokens:
            raise ValueError("there is no price of input")
        object.__setattr__(self, "rates", tuple(sorted(self.rates)))
        object.__setattr__(self, "_table", table)

    @property
    def is_plain(self) -> bool:
        """Only input and output, at one price each: nothing that a record in Redis cannot say."""
        plain = {PriceClass.INPUT, PriceClass.OUTPUT}
        return (
            all(
                rate.price_class in plain
                and not rate.service_tier
                and not rate.above_input_tokens
                and rate.permille == WHOLE_PERMILLE
                for rate in self.rates
            )
            and {rate.price_class for rate in self.rates} == plain
        )

    @property
    def thresholds(self) -> tuple[int, ...]:
        """Above how many tokens of input other prices count, in order; 0 is the first."""
        return tuple(sorted({rate.above_input_tokens for rate in self.rates} | {0}))

    def own_rate(
        self, price_class: PriceClass, *, input_tokens: int, service_tier: str = ""
    ) -> Rate | None:
        """The price of exactly this class. What a service tier does not price is as in the standard
        one, what a threshold does not change as below it."""
        for tier in (service_tier, "") if service_tier else ("",):
            for rate in self._table.get((tier, price_class), ()):
                if not rate.above_input_tokens or input_tokens > rate.above_input_tokens:
                    return rate
        return None

    def rate(
        self, price_class: PriceClass, *, input_tokens: int, service_tier: str = ""
    ) -> Rate | None:
        """The price that counts for a class: its own, or that of what it is a part of. Never None
        for tokens; None for calls that have no price."""
        each: PriceClass | None = price_class
        while each is not None:
            found = self.own_rate(each, input_tokens=input_tokens, service_tier=service_tier)
            if found is not None:
                return found
            each = each.parent
        return None

    def to_text(self) -> str:
        """A short text without "|" that ``plan_from_text`` reads; equal plans give equal texts."""
        parts = [_FORM, self.version]
        place = None
        for rate in self.rates:
            if place != (rate.service_tier, rate.above_input_tokens):
                place = rate.service_tier, rate.above_input_tokens
                parts.append(f"{rate.service_tier}>{rate.above_input_tokens}")
            part = "" if rate.permille == WHOLE_PERMILLE else f"*{rate.permille}"
            parts.append(f"{_CODES[rate.price_class]}={rate.micros_per_million}{part}")
        return ";".join(parts)


def plan_from_text(text: str) -> RatePlan:
    """The plan that ``RatePlan.to_text`` wrote. Raises ValueError for anything else."""
    form, *rest = text[: MAX_TEXT + 1].split(";")
    if form != _FORM or not rest or len(text) > MAX_TEXT:
        raise ValueError("not a plan of prices")
    version, *parts = rest
    return RatePlan(tuple(_rates(parts)), version)


def _rates(parts: Iterable[str]) -> Iterable[Rate]:
    tier, above = "", 0
    for part in parts:
        if ">" in part:
            tier, _, threshold = part.partition(">")
            above = _number(threshold)
            continue
        code, _, price = part.partition("=")
        micros, star, permille = price.partition("*")
        if code not in _CLASSES:
            raise ValueError("not a plan of prices")
        yield Rate(
            service_tier=tier,
            above_input_tokens=above,
            price_class=_CLASSES[code],
            micros_per_million=_number(micros),
            permille=_number(permille) if star else WHOLE_PERMILLE,
        )


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError("not a plan of prices")
    return int(text)


def check_number(name: str, value: int, *, most: int) -> None:
    """Raises TypeError for what is no whole number, ValueError outside of 0 to ``most``."""
    if type(value) is not int:
        raise TypeError(f"{name} must be a whole number, got {type(value).__name__}")
    if not 0 <= value <= most:
        raise ValueError(f"{name} must be 0 to {most}, got {value}")
