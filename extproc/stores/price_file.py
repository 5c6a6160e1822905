"""A price book as a YAML file, for people who keep configuration in git; see docs/prices.md.

Prices are in USD: for a million tokens, or for one call. A number is read as it is written, digit
by digit, and becomes whole micro-USD exactly or is refused. An error names its place in the file:
``prices[2].usd.input``.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from extproc.core.price_book import CURRENCY, MAX_MODEL, MAX_PROVIDER, MAX_SOURCE
from extproc.core.price_changes import PriceEntry
from extproc.core.prices import MILLION, PriceClass, Rate
from extproc.stores.policy_file import parse_moment
from extproc.stores.policy_yaml import PolicyFileError, read_yaml, shown

MAX_FILE_BYTES = 4 * 1024 * 1024
_MAX_PROBLEMS = 50


class PriceFileError(ValueError):
    """The file is wrong; a line for each mistake."""


def micros_per_million(usd: Decimal | int, price_class: PriceClass) -> int:
    """Micro-USD for a million, of USD for a million tokens or for one call, exactly.

    Raises ValueError where that is no whole number, or is below zero.
    """
    per = MILLION * MILLION if price_class.is_call else MILLION
    numerator, denominator = Decimal(usd).as_integer_ratio()
    micros, rest = divmod(numerator * per, denominator)
    if rest or micros < 0:
        most = 12 if price_class.is_call else 6
        raise ValueError(f"must be 0 or more, with at most {most} digits after the point")
    return micros


def _text(value: object) -> object:
    if value is not None and not isinstance(value, str):
        raise ValueError("must be text: put it in quotes")
    return value


def _whole(value: object) -> object:
    if type(value) is not int:
        raise ValueError("must be a whole number in digits, as 1000 or 1_000")
    return value


def _number(value: object) -> Decimal:
    if type(value) is not int and not isinstance(value, Decimal):
        raise ValueError("must be a number in decimal digits, as 3 or 0.25")
    return Decimal(value)


_Text = BeforeValidator(_text)
_Whole = BeforeValidator(_whole)
_Moment = Annotated[datetime, BeforeValidator(parse_moment)]
_Prices = Annotated[dict[PriceClass, Annotated[Any, BeforeValidator(_number)]], Field(min_length=1)]
_Source = Annotated[str, _Text, Field(max_length=MAX_SOURCE)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Above(_Strict):
    input_tokens: Annotated[int, _Whole, Field(ge=1)]
    usd: _Prices


class _Tier(_Strict):
    name: Annotated[str, _Text, Field(min_length=1)]
    permille: Annotated[int, _Whole, Field(ge=0)] | None = None
    usd: _Prices | None = None


class _Entry(_Strict):
    provider: Annotated[str, _Text, Field(min_length=1, max_length=MAX_PROVIDER)]
    model: Annotated[str, _Text, Field(min_length=1, max_length=MAX_MODEL)]
    effective_from: _Moment | None = None
    source: _Source | None = None
    usd: _Prices
    above: list[_Above] = []
    service_tiers: list[_Tier] = []


class _File(_Strict):
    currency: Literal["USD"] = CURRENCY  # type: ignore[assignment]
    effective_from: _Moment | None = None
    source: _Source = ""
    prices: list[_Entry]


def read_price_path(path: Path) -> tuple[PriceEntry, ...]:
    """The entries in a file. Raises PriceFileError, and OSError when it cannot be read."""
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise PriceFileError(f"a file may hold {MAX_FILE_BYTES} bytes")
    try:
        return read_price_file(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise PriceFileError(f"byte {error.start + 1}: not UTF-8") from error


def read_price_file(text: str) -> tuple[PriceEntry, ...]:
    """The entries in ``text``. Raises PriceFileError that names every mistake by its place."""
    try:
        plain = read_yaml(text, exact_fractions=True)
    except PolicyFileError as error:
        raise PriceFileError(str(error)) from error
    if not isinstance(plain, dict):
        raise PriceFileError("a file begins with `prices:`")
    try:
        file = _File.model_validate(plain)
    except ValidationError as error:
        raise _all_of([_problem(each) for each in error.errors(include_url=False)]) from error
    entries: list[PriceEntry] = []
    problems: list[str] = []
    places: dict[tuple[str, str], int] = {}
    for index, entry in enumerate(file.prices):
        place, key = f"prices[{index}]", (entry.provider, entry.model)
        if key in places:
            problems.append(
                f"{place}: {shown(entry.model)} stands already in prices[{places[key]}]"
            )
        places.setdefault(key, index)
        rates = _rates(entry, place, problems)
        if rates is None:
            continue
        try:
            made = PriceEntry(
                provider=entry.provider,
                model=entry.model,
                rates=tuple(rates),
                effective_from=entry.effective_from or file.effective_from,
                source=file.source if entry.source is None else entry.source,
            )
            made.rows(datetime.min.replace(tzinfo=UTC))
        except ValueError as error:
            problems.append(f"{place}: {error}")
            continue
        entries.append(made)
    if problems:
        raise _all_of(problems)
    return tuple(entries)


def _rates(entry: _Entry, place: str, problems: list[str]) -> list[Rate] | None:
    """All prices of an entry; None where one is wrong, which is then in ``problems``."""
    before = len(problems)
    rates = _priced(entry.usd, f"{place}.usd", problems)
    for index, above in enumerate(entry.above):
        at = f"{place}.above[{index}].usd"
        rates += _priced(above.usd, at, problems, above_input_tokens=above.input_tokens)
    standard = list(rates)
    for index, tier in enumerate(entry.service_tiers):
        at = f"{place}.service_tiers[{index}]"
        if (tier.permille is None) == (tier.usd is None):
            problems.append(f"{at}: needs either permille or usd")
        elif tier.usd is not None:
            rates += _priced(tier.usd, f"{at}.usd", problems, service_tier=tier.name)
        else:
            # A discount is for tokens: searches and the like cost what they cost.
            for rate in standard:
                if not rate.price_class.is_call:
                    rates += _made(
                        at,
                        problems,
                        service_tier=tier.name,
                        above_input_tokens=rate.above_input_tokens,
                        price_class=rate.price_class,
                        micros_per_million=rate.micros_per_million,
                        permille=tier.permille,
                    )
    return rates if len(problems) == before else None


def _priced(
    prices: Mapping[PriceClass, Decimal], place: str, problems: list[str], **about: Any
) -> list[Rate]:
    rates: list[Rate] = []
    for price_class, usd in prices.items():
        at = f"{place}.{price_class}"
        try:
            micros = micros_per_million(usd, price_class)
        except ValueError as error:
            problems.append(f"{at}: {error}")
            continue
        given = about | {"price_class": price_class, "micros_per_million": micros}
        rates += _made(at, problems, **given)
    return rates


def _made(place: str, problems: list[str], **given: Any) -> list[Rate]:
    try:
        return [Rate(**given)]
    except ValueError as error:
        problems.append(f"{place}: {error}")
        return []


def _all_of(problems: list[str]) -> PriceFileError:
    left = len(problems) - _MAX_PROBLEMS
    more = [f"and {left} more"] if left > 0 else []
    return PriceFileError("\n".join([*problems[:_MAX_PROBLEMS], *more]))


def _problem(error: Any) -> str:
    place = ""
    for part in error["loc"]:
        if part != "[key]":
            place += f"[{part}]" if isinstance(part, int) else f".{shown(str(part))}"
    texts = {"extra_forbidden": "there is no such key", "missing": "is missing"}
    if "[key]" in error["loc"]:
        texts["enum"] = "there is no such class of prices"
    text = texts.get(error["type"]) or error["msg"].removeprefix("Value error, ")
    return f"{place.removeprefix('.')}: {text}"
