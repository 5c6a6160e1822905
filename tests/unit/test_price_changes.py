"""A file of prices: what it may say, and what becomes of the rows that are there."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from extproc.core.price_book import PriceBook, PriceRow
from extproc.core.price_changes import PriceChangeError, PriceEntry, applied, plan_changes
from extproc.core.prices import PriceClass, Rate
from extproc.stores.price_file import PriceFileError, micros_per_million, read_price_file

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def entry(micros: int, *, start: datetime | None = None, cached: int | None = None) -> PriceEntry:
    rates = [Rate(price_class=PriceClass.INPUT, micros_per_million=micros)]
    if cached is not None:
        rates.append(Rate(price_class=PriceClass.CACHED_INPUT, micros_per_million=cached))
    return PriceEntry(provider="p", model="m", rates=tuple(rates), effective_from=start)


def load(rows: list[PriceRow], wanted: PriceEntry, now: datetime = NOW) -> list[PriceRow]:
    return applied(rows, plan_changes([wanted], rows, now))


def price(rows: list[PriceRow], at: datetime) -> int | None:
    plan = PriceBook(rows).plan("p", "m", at)
    return None if plan is None else plan.rates[0].micros_per_million


def test_a_new_price_ends_the_old_one_and_changes_nothing_before_it() -> None:
    rows = load([], entry(1), NOW - DAY)
    before = PriceBook(rows).plan("p", "m", NOW - DAY)
    rows = load(rows, entry(2))
    second = timedelta(seconds=1)
    assert [price(rows, NOW + each) for each in (-DAY, -second, 0 * DAY, DAY)] == [1, 1, 2, 2]
    assert len(rows) == 2
    assert PriceBook(rows).plan("p", "m", NOW - second) == before


def test_the_same_file_again_changes_nothing() -> None:
    rows = load([], entry(1, cached=5), NOW - DAY)
    assert plan_changes([entry(1, cached=5)], rows, NOW) == ()
    since = entry(1, start=NOW - 30 * DAY)
    rows = load([], since)
    assert plan_changes([since], rows, NOW + DAY) == ()


def test_a_class_that_the_file_no_longer_names_ends() -> None:
    rows = load(load([], entry(1, cached=5), NOW - DAY), entry(1))
    assert PriceBook(rows).plan("p", "m", NOW) == PriceBook(rows[:1]).plan("p", "m", NOW)


def test_a_price_that_was_to_begin_later_never_does() -> None:
    rows = load(load([], entry(1), NOW - DAY), entry(2, start=NOW + DAY))
    assert [price(rows, NOW), price(rows, NOW + DAY)] == [1, 2]
    rows = load(rows, entry(3))
    assert [price(rows, NOW - DAY), price(rows, NOW), price(rows, NOW + 2 * DAY)] == [1, 3, 3]
    assert len(rows) == 3


def test_what_has_been_is_never_changed() -> None:
    rows = load([], entry(1), NOW - DAY)
    for wanted in (entry(2, start=NOW - DAY / 2), entry(2, start=NOW - 2 * DAY)):
        with pytest.raises(PriceChangeError, match="never changed"):
            plan_changes([wanted], rows, NOW)
    # Another class in the past would change what its tokens cost then.
    with pytest.raises(PriceChangeError):
        plan_changes([entry(1, cached=5, start=NOW - DAY / 2)], rows, NOW)


def test_a_price_may_begin_in_the_past_where_none_was() -> None:
    rows = load([], entry(1, start=NOW - DAY))
    assert price(rows, NOW - DAY) == 1


FILE = """
source: https://example.com/prices
effective_from: 2026-01-01
prices:
  - provider: anthropic
    model: claude-sonnet-*
    usd: {input: 3, cached_input: 0.30, cache_write_5m: 3.75, output: 15, server_tool_call: 0.01}
    above:
      - input_tokens: 200_000
        usd: {input: 6, output: 22.5}
    service_tiers:
      - {name: batch, permille: 500}
      - {name: priority, usd: {output: 30}}
"""


def test_a_file_is_read_to_the_micro_dollar() -> None:
    (found,) = read_price_file(FILE)
    assert found.effective_from == datetime(2026, 1, 1, tzinfo=UTC)
    assert found.source == "https://example.com/prices"
    rates = {
        (rate.service_tier, rate.above_input_tokens, rate.price_class.value): (
            rate.micros_per_million,
            rate.permille,
        )
        for rate in found.rates
    }
    assert rates["", 0, "cached_input"] == (300_000, 1000)
    assert rates["", 0, "server_tool_call"] == (10_000_000_000, 1000)
    assert rates["", 200_000, "output"] == (22_500_000, 1000)
    assert rates["batch", 200_000, "input"] == (6_000_000, 500)
    assert rates["priority", 0, "output"] == (30_000_000, 1000)
    assert ("batch", 0, "server_tool_call") not in rates


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("{input: 0.0000001}", "prices[0].usd.input: must be 0 or more, with at most 6 digits"),
        ("{input: -1}", "prices[0].usd.input: must be 0 or more"),
        ("{input: .5}", "line 5: .5: write a number in decimal digits"),
        ("{input: .inf}", "line 5: .inf: write a number in decimal digits"),
        ('{input: "3"}', "prices[0].usd.input: must be a number"),
        ("{input: 99999}", "prices[0].usd.input: micros_per_million must be 0 to"),
        ("{inptu: 3}", "prices[0].usd.inptu: there is no such class"),
        ("{output: 3}", "prices[0]: there is no price of input"),
        ("{input: 3, input: 4}", "line 5: input stands twice"),
        ("{}", "prices[0].usd: "),
        ("{input: 3}\n    extra: 1", "prices[0].extra: there is no such key"),
    ],
)
def test_an_error_names_its_place(line: str, place: str) -> None:
    text = f"prices:\n  - provider: p\n    model: m\n    source: s\n    usd: {line}\n"
    with pytest.raises(PriceFileError) as error:
        read_price_file(text)
    assert place in str(error.value)


def test_an_entry_stands_once() -> None:
    each = "  - {provider: p, model: m, usd: {input: 1}}\n"
    with pytest.raises(PriceFileError, match=r"prices\[1\]: m stands already in prices\[0\]"):
        read_price_file(f"prices:\n{each}{each}")


def test_decimals_become_whole_numbers_exactly() -> None:
    # As a double, 2147.483647 USD and 0.000001 more cannot be told apart after a few sums.
    assert micros_per_million(Decimal("2147.483647"), PriceClass.INPUT) == 2_147_483_647
    assert micros_per_million(Decimal("0.000000000001"), PriceClass.REQUEST) == 1
    with pytest.raises(ValueError, match="12 digits"):
        micros_per_million(Decimal("0.0000000000001"), PriceClass.REQUEST)
