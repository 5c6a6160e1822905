"""The cost of one answer by its plan of prices: whole micro-USD, each class rounded up by itself.

``ceil(tokens x price / 1,000,000)`` for every class, and the sum of these. Python's integers have
no end, so nothing is lost on the way however large the numbers are.
"""

from dataclasses import dataclass, replace

from extproc.core.prices import (
    MAX_CALL_PRICE,
    MILLION,
    WHOLE_PERMILLE,
    PriceClass,
    Rate,
    RatePlan,
    check_number,
)
from extproc.core.usage import Usage

_PER_PERMILLE = MILLION * WHOLE_PERMILLE
_INPUT_CLASSES = (
    PriceClass.INPUT,
    PriceClass.CACHED_INPUT,
    PriceClass.CACHE_WRITE_5M,
    PriceClass.CACHE_WRITE_1H,
    PriceClass.AUDIO_INPUT,
    PriceClass.IMAGE_INPUT,
)
_OUTPUT_CLASSES = (
    PriceClass.OUTPUT,
    PriceClass.REASONING,
    PriceClass.AUDIO_OUTPUT,
    PriceClass.IMAGE_OUTPUT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """What one class cost: ``quantity`` tokens or calls. ``rate`` is None where nobody says what it
    costs; then ``micros`` is 0 and ``Cost.unpriced`` names it."""

    price_class: PriceClass
    quantity: int
    rate: Rate | None
    micros: int


@dataclass(frozen=True, slots=True)
class Cost:
    """A line for every class that was used."""

    lines: tuple[CostLine, ...]

    @property
    def micros(self) -> int:
        return sum(line.micros for line in self.lines)

    @property
    def unpriced(self) -> tuple[PriceClass, ...]:
        """Classes of calls that were used and have no price: not free, but not known."""
        return tuple(line.price_class for line in self.lines if line.rate is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservePrices:
    """The most that any class can cost: micro-USD for a million tokens of input and of output, and
    micro-USD for the request itself."""

    input_micros: int
    output_micros: int
    request_micros: int


def cost(usage: Usage, plan: RatePlan, *, service_tier: str = "", requests: int = 1) -> Cost:
    """What ``usage`` costs by ``plan``. A total that was not reported is the sum of its parts.

    Raises TypeError for a number that is no whole one, ValueError for one below zero.
    """
    input_tokens = _total(usage.input_tokens, _input_parts(usage))
    lines = [
        _line(price_class, quantity, plan, input_tokens, service_tier)
        for price_class, quantity in quantities(usage, plan, requests=requests).items()
    ]
    return Cost(tuple(line for line in lines if line is not None))


def quantities(usage: Usage, plan: RatePlan, *, requests: int = 1) -> dict[PriceClass, int]:
    """How much there is of every class, none of it twice: the classes of input add up to all input,
    those of output to all output.

    A provider may say that a token is of two kinds (a cached one of sound). What would be more than
    the total is taken from cached input first, so that no doubt makes an answer cheaper.
    """
    parts = _input_parts(usage)
    found = _divided(_total(usage.input_tokens, parts), parts, PriceClass.INPUT)
    parts = {
        PriceClass.AUDIO_OUTPUT: _known(usage.audio_output_tokens),
        PriceClass.IMAGE_OUTPUT: _known(usage.image_output_tokens),
        PriceClass.REASONING: _known(usage.reasoning_tokens),
    }
    found |= _divided(_total(usage.output_tokens, parts), parts, PriceClass.OUTPUT)
    # Cohere's search units and the searches of a chat are one number of usage; no model has both.
    reranks = plan.own_rate(PriceClass.RERANK_SEARCH, input_tokens=0) is not None
    calls = PriceClass.RERANK_SEARCH if reranks else PriceClass.SERVER_TOOL_CALL
    found[calls] = _known(usage.server_tool_calls)
    if plan.own_rate(PriceClass.REQUEST, input_tokens=0) is not None:
        found[PriceClass.REQUEST] = _known(requests)
    return found


def reserve_prices(
    plan: RatePlan, *, most_input_tokens: int | None = None, service_tier: str | None = None
) -> ReservePrices:
    """Prices with which no reserve is too small for its tokens, whatever class they turn out to be.

    ``most_input_tokens``: more input than this need not be thought of, so dearer prices above it
    do not count; None: any. ``service_tier`` None: whichever is the dearest. Searches that an
    answer may cause are not in it, because nobody knows their number.
    """
    tiers = {rate.service_tier for rate in plan.rates} | {""}
    wanted = sorted(tiers) if service_tier is None else [service_tier]
    reached = [
        threshold + 1
        for threshold in plan.thresholds
        if most_input_tokens is None or threshold < most_input_tokens or not threshold
    ]

    def dearest(classes: tuple[PriceClass, ...]) -> int:
        rates = (
            plan.rate(each, input_tokens=tokens, service_tier=tier)
            for each in classes
            for tokens in reached
            for tier in wanted
        )
        return max((rate.micros_rounded_up for rate in rates if rate is not None), default=0)

    for_a_request = dearest((PriceClass.REQUEST,))
    return ReservePrices(
        input_micros=dearest(_INPUT_CLASSES),
        output_micros=dearest(_OUTPUT_CLASSES),
        request_micros=-(-for_a_request // MILLION),
    )


def class_micros(quantity: int, rate: Rate) -> int:
    """Micro-USD of so many tokens or calls, rounded up. Raises TypeError, ValueError."""
    check_number("quantity", quantity, most=MAX_CALL_PRICE)
    return -(-quantity * rate.micros_per_million * rate.permille // _PER_PERMILLE)


def charged(usage: Usage, *, input_tokens: int, output_tokens: int) -> Usage:
    """``usage`` with the totals that are charged. Where output was counted and not reported, the
    kinds that were reported of it stand."""
    return replace(usage, input_tokens=input_tokens, output_tokens=output_tokens)


def _line(
    price_class: PriceClass, quantity: int, plan: RatePlan, input_tokens: int, service_tier: str
) -> CostLine | None:
    if not quantity:
        return None
    rate = plan.rate(price_class, input_tokens=input_tokens, service_tier=service_tier)
    return CostLine(
        price_class=price_class,
        quantity=quantity,
        rate=rate,
        micros=0 if rate is None else class_micros(quantity, rate),
    )


def _input_parts(usage: Usage) -> dict[PriceClass, int]:
    for_an_hour = _known(usage.cache_write_1h_tokens)
    for_minutes = _known(usage.cache_write_5m_tokens)
    unsaid = max(0, _known(usage.cache_write_tokens) - for_an_hour - for_minutes)
    return {
        PriceClass.CACHE_WRITE_1H: for_an_hour,
        PriceClass.CACHE_WRITE_5M: for_minutes + unsaid,
        PriceClass.AUDIO_INPUT: _known(usage.audio_input_tokens),
        PriceClass.IMAGE_INPUT: _known(usage.image_input_tokens),
        PriceClass.CACHED_INPUT: _known(usage.cached_input_tokens),
    }


def _divided(total: int, parts: dict[PriceClass, int], rest: PriceClass) -> dict[PriceClass, int]:
    """The parts, the first ones first, as long as there is something left of ``total``."""
    found: dict[PriceClass, int] = {}
    left = total
    for price_class, tokens in parts.items():
        found[price_class] = min(tokens, left)
        left -= found[price_class]
    return {rest: left, **found}


def _total(reported: int | None, parts: dict[PriceClass, int]) -> int:
    return sum(parts.values()) if reported is None else _known(reported)


def _known(value: int | None) -> int:
    if value is None:
        return 0
    check_number("usage", value, most=MAX_CALL_PRICE)
    return value
