"""Which price a model has, if any."""

import pytest

from extproc.core.known_models import KnownModels
from extproc.core.price_list import FREE, Price, PriceList


def price(model: str, micros: int) -> Price:
    return Price(model=model, input_micros=micros, output_micros=micros)


@pytest.mark.parametrize(
    ("model", "micros"),
    [
        ("gpt-4o", 1),
        ("gpt-4o-mini", 2),  # the first that matches
        ("GPT-4O", 1),  # in another case: as if it were the same
        ("claude-3", 3),  # the glob is in another case
        ("exact", 5),  # an exact match later in the list counts before a folded one
        ("llama", None),
        ("", None),
    ],
)
def test_the_first_glob_that_matches_counts_and_then_regardless_of_case(
    model: str, micros: int | None
) -> None:
    prices = PriceList(
        (
            price("gpt-4o", 1),
            price("gpt-*", 2),
            price("Claude-*", 3),
            price("EXACT", 4),
            price("exact", 5),
        )
    )
    found = prices.of(model)
    assert (found and found.input_micros) == micros


def test_a_model_without_a_price_is_not_free() -> None:
    assert PriceList().of("gpt-4o") is None
    assert (FREE.input_micros, FREE.output_micros) == (0, 0)


@pytest.mark.parametrize(
    ("prices", "globs", "model", "known"),
    [
        ((), (), "anything", True),  # nothing is defined
        (("gpt-4o*",), (), "gpt-4o-mini", True),
        (("gpt-4o*",), (), "gpt-5", False),
        (("gpt-4o*",), ("gpt-5*",), "GPT-5", True),
        ((), ("claude-*",), "gpt-5", False),
        ((), ("claude-*",), "", False),
    ],
)
def test_a_model_is_known_by_a_price_or_a_name(
    prices: tuple[str, ...], globs: tuple[str, ...], model: str, known: bool
) -> None:
    listed = PriceList(tuple(price(glob, 1) for glob in prices))
    assert KnownModels(listed, globs).has(model) is known
