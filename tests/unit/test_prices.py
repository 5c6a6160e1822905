"""Costs by class: exact, rounded up, nothing twice, nothing free by mistake."""

from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.prices import MILLION, PriceClass, Rate, RatePlan, plan_from_text
from extproc.core.pricing import class_micros, cost, quantities, reserve_prices
from extproc.core.usage import Usage

C = PriceClass
QUICK = settings(max_examples=40, deadline=None, derandomize=True)
TOKENS = st.integers(0, 2**53 + 10) | st.integers(0, 5000) | st.integers(2**53 - 3, 2**53 + 3)
MICROS = st.integers(0, 2**32) | st.integers(0, 30_000_000)
PERMILLE = st.sampled_from([1000, 500, 1, 2500, 333])
KINDS = (C.CACHED_INPUT, C.CACHE_WRITE_5M, C.CACHE_WRITE_1H, C.REASONING, C.AUDIO_INPUT)
OTHERS = (*KINDS, C.AUDIO_OUTPUT, C.IMAGE_INPUT, C.IMAGE_OUTPUT, C.OUTPUT, C.SERVER_TOOL_CALL)
FIELDS = [name for name in Usage.__dataclass_fields__ if name != "other_input_tokens"]
USAGES = st.builds(Usage, **{name: st.none() | TOKENS for name in FIELDS})
KNOWN = st.builds(
    Usage,
    **{name: st.none() | TOKENS for name in FIELDS}
    | {"input_tokens": TOKENS, "output_tokens": TOKENS},
)


def rate(price_class: PriceClass, micros: int, **more: Any) -> Rate:
    return Rate(price_class=price_class, micros_per_million=micros, **more)


def plan(**micros: int) -> RatePlan:
    return RatePlan(tuple(rate(PriceClass(name), each) for name, each in micros.items()))


@st.composite
def plans(draw: st.DrawFn) -> RatePlan:
    classes = {C.INPUT} | draw(st.sets(st.sampled_from([*OTHERS, C.REQUEST, C.RERANK_SEARCH])))
    rates = [rate(each, draw(MICROS), permille=draw(PERMILLE)) for each in sorted(classes)]
    tokens = [each for each in sorted(classes) if not each.is_call]
    for above in draw(st.sets(st.sampled_from([128, 200_000, 2**52]))):
        for each in draw(st.sets(st.sampled_from(tokens))):
            rates.append(rate(each, draw(MICROS), above_input_tokens=above))
    for each in draw(st.sets(st.sampled_from(tokens))):
        rates.append(rate(each, draw(MICROS), service_tier="batch", permille=draw(PERMILLE)))
    return RatePlan(tuple(rates), draw(st.sampled_from(["", "0123456789abcdef"])))


@QUICK
@given(quantity=st.integers(0, 2**59), micros=MICROS, permille=PERMILLE)
def test_a_class_costs_the_exact_product_rounded_up(
    quantity: int, micros: int, permille: int
) -> None:
    exact = Fraction(quantity) * micros * permille / (1000 * MILLION)
    found = class_micros(quantity, rate(C.INPUT, micros, permille=permille))
    assert found == ceil(exact)
    assert type(found) is int


def test_a_micro_dollar_beyond_what_a_double_holds_is_not_lost() -> None:
    # As a double, 2^53 + 1 tokens are 2^53.
    assert class_micros(2**53 + 1, rate(C.INPUT, MILLION)) == 2**53 + 1
    assert class_micros(2**53 - 1, rate(C.INPUT, MILLION - 1)) == ceil(
        Fraction((2**53 - 1) * (MILLION - 1), MILLION)
    )


@QUICK
@given(usage=KNOWN, of=plans(), tier=st.sampled_from(["", "batch", "flex"]))
def test_the_sum_is_what_fractions_say_class_by_class(
    usage: Usage, of: RatePlan, tier: str
) -> None:
    assert usage.input_tokens is not None
    expected = 0
    for price_class, quantity in quantities(usage, of).items():
        found = of.rate(price_class, input_tokens=usage.input_tokens, service_tier=tier)
        if found is not None:
            exact = Fraction(quantity * found.micros_per_million, MILLION)
            expected += ceil(exact * Fraction(found.permille, 1000))
    assert cost(usage, of, service_tier=tier).micros == expected


@QUICK
@given(usage=KNOWN, of=plans())
def test_classes_divide_the_totals_and_count_nothing_twice(usage: Usage, of: RatePlan) -> None:
    found = quantities(usage, of)
    outputs = {C.OUTPUT, C.REASONING, C.AUDIO_OUTPUT, C.IMAGE_OUTPUT}
    inputs = [each for each in found if not each.is_call and each not in outputs]
    assert sum(found[each] for each in inputs) == usage.input_tokens
    assert sum(found[each] for each in outputs) == usage.output_tokens
    assert all(quantity >= 0 for quantity in found.values())


@QUICK
@given(usage=USAGES, of=plans(), tier=st.sampled_from(["", "batch", "flex"]))
def test_no_reserve_is_below_the_cost_of_the_same_tokens(
    usage: Usage, of: RatePlan, tier: str
) -> None:
    found = cost(usage, of, service_tier=tier)
    calls = (C.SERVER_TOOL_CALL, C.RERANK_SEARCH)
    micros = sum(line.micros for line in found.lines if line.price_class not in calls)
    parts = quantities(usage, of)
    outputs = {C.OUTPUT, C.REASONING, C.AUDIO_OUTPUT, C.IMAGE_OUTPUT}
    output = sum(parts[each] for each in outputs)
    given_ = sum(parts[each] for each in parts if not each.is_call and each not in outputs)
    for which in (tier, None):
        most = reserve_prices(of, service_tier=which, most_input_tokens=given_)
        held = Fraction(given_ * most.input_micros + output * most.output_micros, MILLION)
        # Each class is rounded up by itself: less than one micro-dollar for each.
        assert micros <= ceil(held) + most.request_micros + len(parts)


@QUICK
@given(usage=USAGES, of=plans())
def test_tokens_always_have_a_price_and_calls_without_one_are_named(
    usage: Usage, of: RatePlan
) -> None:
    for line in cost(usage, of).lines:
        if line.rate is None:
            assert line.price_class in (C.SERVER_TOOL_CALL, C.RERANK_SEARCH)
    has_calls = bool(usage.server_tool_calls)
    priced = {each.price_class for each in of.rates} & {C.SERVER_TOOL_CALL, C.RERANK_SEARCH}
    assert bool(cost(usage, of).unpriced) == (has_calls and not priced)


@QUICK
@given(of=plans())
def test_a_plan_survives_its_text(of: RatePlan) -> None:
    text = of.to_text()
    assert plan_from_text(text) == of
    assert plan_from_text(text).to_text() == text
    assert "|" not in text


@QUICK
@given(text=st.text(max_size=80) | st.text("p1;=*>io0123456789ach", max_size=60))
def test_any_text_is_a_plan_or_a_value_error(text: str) -> None:
    try:
        found = plan_from_text(text)
    except ValueError:
        return
    assert plan_from_text(found.to_text()) == found


CACHED = Usage(
    input_tokens=10_000,
    output_tokens=500,
    cached_input_tokens=6000,
    cache_write_tokens=1000,
    cache_write_5m_tokens=600,
    cache_write_1h_tokens=300,
    reasoning_tokens=200,
)


def test_cached_input_is_taken_out_of_input() -> None:
    of = plan(
        input=3_000_000,
        cached_input=300_000,
        cache_write_5m=3_750_000,
        cache_write_1h=6_000_000,
        output=15_000_000,
    )
    found = {line.price_class: (line.quantity, line.micros) for line in cost(CACHED, of).lines}
    assert found == {
        C.INPUT: (3000, 9000),
        C.CACHED_INPUT: (6000, 1800),
        C.CACHE_WRITE_5M: (700, 2625),  # 600, and 100 of which nobody says how long they live
        C.CACHE_WRITE_1H: (300, 1800),
        C.OUTPUT: (300, 4500),
        C.REASONING: (200, 3000),  # at the price of output, which it is a part of
    }


def test_a_class_without_a_price_costs_what_it_is_a_part_of() -> None:
    of = plan(input=3_000_000, output=15_000_000)
    whole = Usage(input_tokens=10_000, output_tokens=500)
    assert cost(CACHED, of).micros == cost(whole, of).micros == 37_500
    # An embedding model says nothing of output.
    assert cost(whole, plan(input=3_000_000)).micros == 31_500


def test_reasoning_is_priced_apart_where_the_plan_says_so() -> None:
    of = plan(input=0, output=1_000_000, reasoning=3_000_000)
    assert cost(CACHED, of).micros == 300 + 600


def test_more_cached_than_input_is_never_below_zero() -> None:
    usage = Usage(input_tokens=10, output_tokens=0, cached_input_tokens=25, audio_input_tokens=4)
    of = plan(input=1_000_000, cached_input=0, audio_input=2_000_000)
    assert cost(usage, of).micros == 8  # 4 of sound; the other 6 are cached


@pytest.mark.parametrize(("tokens", "micros"), [(200_000, 200_000), (200_001, 400_002)])
def test_above_a_threshold_the_whole_request_costs_more(tokens: int, micros: int) -> None:
    of = RatePlan((rate(C.INPUT, 1_000_000), rate(C.INPUT, 2_000_000, above_input_tokens=200_000)))
    assert cost(Usage(input_tokens=tokens, output_tokens=0), of).micros == micros


def test_a_batch_costs_a_part_and_is_rounded_after_it() -> None:
    of = RatePlan((rate(C.INPUT, 3), rate(C.INPUT, 3, service_tier="batch", permille=500)))
    usage = Usage(input_tokens=1_000_000, output_tokens=0)
    assert cost(usage, of).micros == 3
    assert cost(usage, of, service_tier="batch").micros == 2
    assert cost(usage, of, service_tier="unheard-of").micros == 3


def test_calls_and_the_request_itself() -> None:
    of = plan(input=0, server_tool_call=10_000 * MILLION, request=5000 * MILLION)
    usage = Usage(input_tokens=1, output_tokens=1, server_tool_calls=3)
    assert cost(usage, of).micros == 35_000
    assert reserve_prices(of).request_micros == 5000
    reranks = plan(input=0, rerank_search=2000 * MILLION)
    assert cost(Usage(input_tokens=9, server_tool_calls=2), reranks).micros == 4000


@pytest.mark.parametrize("bad", [1.0, 2.0**53, True, "1", Decimal(1), Fraction(1)])
def test_only_whole_numbers_are_taken(bad: Any) -> None:
    of = plan(input=1)
    with pytest.raises(TypeError):
        rate(C.INPUT, bad)
    with pytest.raises(TypeError):
        rate(C.INPUT, 1, permille=bad)
    with pytest.raises(TypeError):
        class_micros(bad, of.rates[0])
    for name in FIELDS:
        if name != "server_tool_calls":
            with pytest.raises(TypeError):
                cost(Usage(**{name: bad}), of)
    with pytest.raises(TypeError):
        cost(Usage(server_tool_calls=bad), of)


@pytest.mark.parametrize(
    "rates",
    [
        (),
        (rate(C.OUTPUT, 1),),
        (rate(C.INPUT, 1, above_input_tokens=5),),
        (rate(C.INPUT, 1, service_tier="batch"),),
        (rate(C.INPUT, 1), rate(C.INPUT, 2)),
    ],
)
def test_a_plan_needs_one_price_of_input(rates: tuple[Rate, ...]) -> None:
    with pytest.raises(ValueError, match="price"):
        RatePlan(rates)


def test_reserve_prices_leave_out_what_cannot_be_reached() -> None:
    of = RatePlan(
        (
            rate(C.INPUT, 3_000_000),
            rate(C.CACHE_WRITE_1H, 6_000_000),
            rate(C.OUTPUT, 15_000_000),
            rate(C.OUTPUT, 40_000_000, above_input_tokens=200_000),
            rate(C.OUTPUT, 60_000_000, service_tier="priority"),
        )
    )
    found = reserve_prices(of, most_input_tokens=200_000, service_tier="")
    assert (found.input_micros, found.output_micros) == (6_000_000, 15_000_000)
    assert reserve_prices(of, service_tier="").output_micros == 40_000_000
    assert reserve_prices(of).output_micros == 60_000_000


def test_plain_is_input_and_output_alone() -> None:
    assert plan(input=1, output=2).is_plain
    assert not plan(input=1).is_plain
    assert not plan(input=1, output=2, cached_input=1).is_plain
    assert not RatePlan((rate(C.INPUT, 1, permille=500), rate(C.OUTPUT, 2))).is_plain
