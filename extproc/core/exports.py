"""What a provider says that we used: rows of an export of its usage or its bill, normalised."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from extproc.core.errors import TokenweirError


class ExportError(TokenweirError):
    """An export cannot be read. ``file``, ``row`` and ``field`` say where; "" means the whole."""

    def __init__(self, file: str, row: str, field: str, message: str) -> None:
        where = ", ".join(part for part in (file, row, field) if part)
        super().__init__(f"{where}: {message}")
        self.file = file
        self.row = row
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRow:
    """What one group of an export used and cost.

    ``day`` is in UTC, as providers count. ``model`` and ``key`` are "" where the export does not
    tell them, ``request_id`` is None. ``tokens`` are by ``ledger_rows.CLASSES``, none of which is a
    part of another. ``cost_micros`` in micro-USD is negative for a credit. None: not told.
    """

    day: date
    provider: str
    model: str
    key: str
    request_id: str | None
    tokens: Mapping[str, int]
    cost_micros: int | None
    requests: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """One export. ``classes`` are the token classes that its format tells apart (empty: no tokens),
    so that zero differs from "not told"; so do ``tells_cost`` and ``tells_requests``.
    ``warnings`` are for people: a page of many, rows that stand twice, rows left out."""

    provider: str
    rows: tuple[ExportRow, ...]
    classes: frozenset[str]
    tells_cost: bool
    tells_requests: bool
    warnings: tuple[str, ...] = ()
