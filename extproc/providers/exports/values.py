"""Single values of exports: money without floats, counts, days, texts. Errors name their place."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import NoReturn

from extproc.core.exports import ExportError

# Sums of what ``Place.decimal`` lets through are exact with so many digits.
EXACT = Context(prec=120, rounding=ROUND_HALF_EVEN)
MICROS = 1_000_000
_MAX_TEXT = 512
_MAX_NUMBER = 80
_MAX_ADJUSTED = 15
_MIN_EXPONENT = -64
_MAX_COUNT = 10**15
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,6})?", re.ASCII)
_YEARS = (2000, 2999)
_AMERICAN = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})", re.ASCII)
_COMPACT = re.compile(r"\d{8}", re.ASCII)


class Number(str):
    """A number of JSON with a fraction or an exponent, as it was written."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where in an export a value stands, and how to read it. Every method raises ExportError."""

    file: str
    row: str = ""

    def wrong(self, field: str, message: str) -> NoReturn:
        """Raise the error for this place."""
        raise ExportError(self.file, self.row, field, message)

    def text(self, field: str, value: object) -> str:
        """A text; "" for null. What cannot be printed becomes a question mark."""
        if value is None:
            return ""
        if not isinstance(value, str):
            self.wrong(field, "must be text")
        if len(value) > _MAX_TEXT:
            self.wrong(field, f"is longer than {_MAX_TEXT} characters")
        return clean(value)

    def count(self, field: str, value: object) -> int:
        """A whole number of at least 0; 0 for null."""
        if value is None:
            return 0
        if type(value) is not int:
            self.wrong(field, "must be a whole number")
        if not 0 <= value <= _MAX_COUNT:
            self.wrong(field, f"must be 0 to {_MAX_COUNT}")
        return value

    def decimal(self, field: str, value: object) -> Decimal:
        """An exact number, of JSON or as text, with a point for its fraction."""
        if type(value) is int:
            value = str(value) if abs(value) <= 10**_MAX_ADJUSTED else "too long" * _MAX_NUMBER
        if not isinstance(value, str):
            self.wrong(field, "must be a number")
        written = value.strip()
        if len(written) > _MAX_NUMBER or _NUMBER.fullmatch(written) is None:
            self.wrong(field, f"must be a number as 12.5, got {clean(written[:40])!r}")
        number = Decimal(written)
        if not number:
            return Decimal(0)
        exponent = number.as_tuple().exponent
        assert isinstance(exponent, int)
        if number.adjusted() > _MAX_ADJUSTED or exponent < _MIN_EXPONENT:
            self.wrong(field, "is too large or has too many digits")
        return number

    def dollars(self, field: str, value: object, currency: object, currency_field: str) -> Decimal:
        """An amount that must be in US dollars."""
        name = self.text(currency_field, currency).strip()
        if name.upper() != "USD":
            text = f"is {name!r}; only USD can be compared: export it in US dollars"
            self.wrong(currency_field, text)
        return self.decimal(field, value)

    def unix_day(self, field: str, value: object) -> date:
        """The day in UTC of Unix seconds."""
        if type(value) is not int:
            self.wrong(field, "must be a time in whole seconds")
        try:
            return self._checked(field, datetime.fromtimestamp(value, UTC).date())
        except (OverflowError, ValueError, OSError):
            self.wrong(field, f"must be in the years {_YEARS[0]} to {_YEARS[1]}")

    def day(self, field: str, value: object) -> date:
        """The day in UTC of ISO 8601 text; also MM/DD/YYYY and YYYYMMDD, as Azure writes them."""
        if type(value) is int:
            value = str(value) if 0 <= value <= 99_999_999 else ""
        written = self.text(field, value).strip()
        try:
            american = _AMERICAN.fullmatch(written)
            if american is not None:
                month, day, year = map(int, american.groups())
                return self._checked(field, date(year, month, day))
            if _COMPACT.fullmatch(written) is not None:
                parts = int(written[:4]), int(written[4:6]), int(written[6:])
                return self._checked(field, date(*parts))
            moment = datetime.fromisoformat(written)
            zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            return self._checked(field, zoned.astimezone(UTC).date())
        except (ValueError, OverflowError):
            self.wrong(field, f"must be a day as 2026-12-01, got {clean(written[:40])!r}")

    def _checked(self, field: str, day: date) -> date:
        if not _YEARS[0] <= day.year <= _YEARS[1]:
            self.wrong(field, f"must be in the years {_YEARS[0]} to {_YEARS[1]}")
        return day


def clean(text: str) -> str:
    """``text`` with a question mark for what cannot be printed, lone surrogates included."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def whole(number: Decimal) -> int:
    """The nearest whole number; of two as near, the even one."""
    return int(number.to_integral_value(rounding=ROUND_HALF_EVEN, context=EXACT))
