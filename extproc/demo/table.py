"""The tour's table: one line a request, aligned, written as the requests happen."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one request of the tour came to. Numbers are tokens; None where there is none.

    ``estimated`` is the input as counted at admission, ``reserved`` input and expected output.
    ``used`` is the provider's truth, ``charged`` what stands in the books after settling, and
    ``remaining`` what the minute's limit still has.
    """

    step: str
    service: str
    status: str
    outcome: str = ""
    estimated: int | None = None
    reserved: int | None = None
    used: int | None = None
    charged: int | None = None
    remaining: int | None = None


_HEADINGS = (
    ("step", 38),
    ("service", 12),
    ("status", 24),
    ("outcome", 18),
    ("estimated", 9),
    ("reserved", 8),
    ("used", 5),
    ("charged", 7),
    ("remaining", 9),
)
_TEXT_COLUMNS = 4


def _line(cells: Sequence[str]) -> str:
    parts = [
        cell.ljust(width) if column < _TEXT_COLUMNS else cell.rjust(width)
        for column, (cell, (_, width)) in enumerate(zip(cells, _HEADINGS, strict=True))
    ]
    return "  ".join(parts).rstrip()


LEGEND = """\
Numbers are tokens. estimated: the input as counted before the call; reserved: that and the
expected output, taken out of the limit at once; used: what the provider produced; charged: what the
limit was charged in the end; remaining: what is left in this minute."""


def header() -> str:
    """What the columns mean, the headings and the line under them."""
    rule = ["-" * width for _, width in _HEADINGS]
    return f"{LEGEND}\n\n{_line([name for name, _ in _HEADINGS])}\n{_line(rule)}"


def line(row: Row) -> str:
    """One row."""
    numbers = (row.estimated, row.reserved, row.used, row.charged, row.remaining)
    cells = ["-" if number is None else str(number) for number in numbers]
    return _line([row.step, row.service, row.status, row.outcome, *cells])
