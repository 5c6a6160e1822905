"""Which prices a model has at a moment."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from extproc.core.price_book import PriceBook, PriceRow
from extproc.core.prices import PriceClass, Rate

START = datetime(2026, 1, 1, tzinfo=UTC)
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def row(model: str, micros: int, *, provider: str = "openai", **more: Any) -> PriceRow:
    given: dict[str, Any] = {"effective_from": START} | more
    kind = given.pop("price_class", PriceClass.INPUT)
    rate = Rate(price_class=kind, micros_per_million=micros)
    return PriceRow(provider=provider, model=model, rate=rate, **given)


def micros(book: PriceBook, provider: str, model: str, at: datetime = NOON) -> int | None:
    plan = book.plan(provider, model, at)
    return None if plan is None else plan.rates[0].micros_per_million


BOOK = PriceBook(
    (
        row("gpt-*", 1),
        row("gpt-4*", 2),
        row("gpt-4o", 3),
        row("gpt-4*", 4, provider="azure"),
        row("*", 5, provider="*"),
        row("GPT-4O-MINI", 6),
        row("gpt-[45]*", 7),
    )
)


@pytest.mark.parametrize(
    ("provider", "model", "expected"),
    [
        ("openai", "gpt-4o", 3),  # a name before a glob
        ("openai", "gpt-4.1", 7),  # the longer glob
        ("openai", "gpt-3.5", 1),
        ("azure", "gpt-4o", 4),  # a provider's own before another's
        ("azure", "mistral", 5),
        ("cohere", "gpt-4o", 5),
        ("", "gpt-4o", 3),  # whose it is, is not known
        ("openai", "gpt-4o-mini", 7),  # another case only where nothing matches exactly
        ("openai", "GPT-3.5", 5),
    ],
)
def test_the_most_exact_entry_counts(provider: str, model: str, expected: int) -> None:
    assert micros(BOOK, provider, model) == expected
    assert micros(PriceBook(reversed(BOOK.rows)), provider, model) == expected


def test_case_matters_less_than_having_a_price() -> None:
    book = PriceBook((row("GPT-4o", 1),))
    assert micros(book, "openai", "gpt-4O") == 1
    assert micros(book, "openai", "gpt-5") is None


def test_a_price_counts_from_its_beginning_to_before_its_end() -> None:
    second = timedelta(seconds=1)
    book = PriceBook((row("m", 1, effective_to=NOON), row("m", 2, effective_from=NOON)))
    assert micros(book, "openai", "m", NOON - second) == 1
    assert micros(book, "openai", "m", NOON) == 2
    assert micros(book, "openai", "m", START - second) is None
    assert book.next_change(START) == NOON
    assert book.next_change(NOON) is None


def test_a_version_names_prices_and_not_what_happened_to_them_later() -> None:
    before = PriceBook((row("m", 1),))
    after = PriceBook((row("m", 1, effective_to=NOON), row("m", 2, effective_from=NOON)))
    moment = NOON - timedelta(days=1)
    first, second = before.plan("openai", "m", moment), after.plan("openai", "m", moment)
    assert first is not None
    assert second is not None
    assert first == second
    assert before.version != after.version
    later = after.plan("openai", "m", NOON)
    assert later is not None
    assert later.version != first.version
    assert PriceBook().version == ""


def test_an_entry_without_a_price_of_input_is_no_price() -> None:
    book = PriceBook((row("m", 1, price_class=PriceClass.OUTPUT), row("*", 9, provider="*")))
    assert book.plan("openai", "m", NOON) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"provider": ""},
        {"model": "x" * 257},
        {"source": "a\nb"},
        {"currency": "EUR"},
        {"effective_from": datetime(2026, 1, 1)},
        {"effective_from": START.replace(microsecond=1)},
    ],
)
def test_what_cannot_be_stored_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|whole"):
        row(**{"model": "m", "micros": 1, **wrong})
