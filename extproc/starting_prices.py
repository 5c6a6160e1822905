"""A book to begin with, from the public prices that the package `genai-prices` carries.

It is a draft for people to read: what somebody pays is in their contract. What the package knows
and the book cannot say (prices by the hour, the page, the time of day) is left out, and counted in
a comment at the end.
"""

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from extproc.core.prices import PriceClass
from extproc.stores.price_file import micros_per_million

# Keys of the package, and how many calls its price is for (None: a million tokens).
_KEYS: dict[str, tuple[PriceClass, int | None]] = {
    "input_mtok": (PriceClass.INPUT, None),
    "output_mtok": (PriceClass.OUTPUT, None),
    "cache_read_mtok": (PriceClass.CACHED_INPUT, None),
    "cache_write_mtok": (PriceClass.CACHE_WRITE_5M, None),
    "cache_write_5m_mtok": (PriceClass.CACHE_WRITE_5M, None),
    "cache_write_1h_mtok": (PriceClass.CACHE_WRITE_1H, None),
    "output_reasoning_mtok": (PriceClass.REASONING, None),
    "input_audio_mtok": (PriceClass.AUDIO_INPUT, None),
    "output_audio_mtok": (PriceClass.AUDIO_OUTPUT, None),
    "input_image_mtok": (PriceClass.IMAGE_INPUT, None),
    "output_image_mtok": (PriceClass.IMAGE_OUTPUT, None),
    "web_searches_kcount": (PriceClass.SERVER_TOOL_CALL, 1000),
    "rerank_searches_kcount": (PriceClass.RERANK_SEARCH, 1000),
    "requests_kcount": (PriceClass.REQUEST, 1000),
}
_GLOB = frozenset("*?[")


def starting_book(only: Iterable[str] = ()) -> Iterator[str]:
    """Lines of a price file with the models of these providers (all, without any).

    Raises ValueError for a provider that the package does not know, ModuleNotFoundError without the
    package.
    """
    # Only here, because it is an extra.
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415

    providers = {each.id: each for each in get_snapshot().providers}
    wanted = list(only) or sorted(providers)
    if unknown := [name for name in wanted if name not in providers]:
        raise ValueError(
            f"no such provider: {', '.join(unknown)}; there are {', '.join(providers)}"
        )
    left_out: list[str] = []
    yield "# Public prices, from the package genai-prices. Read it before you load it: what you pay"
    yield "# is in your contract."
    yield "source: genai-prices"
    yield "prices:"
    for name in wanted:
        seen: set[str] = set()
        for model in providers[name].models:
            usd = _usd(model)
            if usd is None:
                left_out.append(f"{name} {model.id}")
                continue
            for glob in _globs(model.match):
                if glob not in seen:
                    seen.add(glob)
                    yield f"  - provider: {json.dumps(name)}"
                    yield f"    model: {json.dumps(glob)}"
                    yield from usd
    if left_out:
        yield f"# Left out, because a book cannot say what they cost ({len(left_out)}):"
        yield from (f"#   {each}" for each in left_out)


def _usd(model: Any) -> list[str] | None:
    """The lines with its prices; None where it has no price of input, or one that we cannot say."""
    prices = model.prices
    if isinstance(prices, list):
        # The last one that has begun and is for the whole day; before it are those of the past.
        today = datetime.now(UTC).date()
        begun = [
            each.prices
            for each in prices
            if not hasattr(each.constraint, "start_time")
            and getattr(each.constraint, "start_date", today) <= today
        ]
        prices = begun[-1] if begun else None
    base: dict[str, str] = {}
    above: dict[int, dict[str, str]] = {}
    for key, value in vars(prices).items() if prices is not None else ():
        if value is None or key not in _KEYS:
            continue
        price_class, calls = _KEYS[key]
        try:
            base[price_class] = _amount(getattr(value, "base", value), price_class, calls)
            for tier in getattr(value, "tiers", ()):
                above.setdefault(tier.start, {})[price_class] = _amount(
                    tier.price, price_class, calls
                )
        except ValueError:
            return None
    if PriceClass.INPUT not in base:
        return None
    lines = [f"    usd: {_flow(base)}"]
    if above:
        lines.append("    above:")
        for start, usd in sorted(above.items()):
            lines.append(f"      - {{input_tokens: {start}, usd: {_flow(usd)}}}")
    return lines


def _amount(usd: Decimal, price_class: PriceClass, calls: int | None) -> str:
    exact = usd if calls is None else usd / calls
    micros_per_million(exact, price_class)  # raises where it would have to be rounded
    return f"{exact:f}"


def _flow(usd: dict[str, str]) -> str:
    return "{" + ", ".join(f"{name}: {amount}" for name, amount in usd.items()) + "}"


def _globs(match: Any) -> Iterator[str]:
    """Globs that match no more than the package's own rule; nothing for regular expressions."""
    if (any_of := getattr(match, "or_", None)) is not None:
        for each in any_of:
            yield from _globs(each)
        return
    for name, form in (("equals", "{}"), ("starts_with", "{}*"), ("ends_with", "*{}")):
        text = getattr(match, name, None)
        if isinstance(text, str) and not _GLOB & set(text):
            yield form.format(text)
    text = getattr(match, "contains", None)
    if isinstance(text, str) and not _GLOB & set(text):
        yield f"*{text}*"
