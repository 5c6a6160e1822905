"""Rows with named columns, of CSV or JSON, for exports of costs.

Names of columns are compared without case and signs: ``lineItem/UsageType`` and
``line_item_usage_type`` are the same column.
"""

import csv
import io
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from extproc.providers.exports.collect import Collector
from extproc.providers.exports.documents import a_list, an_object, decoded, documents, is_json
from extproc.providers.exports.values import Place

MAX_COLUMNS = 1000
_SIGNS = re.compile(r"[^0-9a-z]+", re.ASCII)
# A column of which there are two under names that are the same to us.
_TWICE = object()


@dataclass(frozen=True, slots=True)
class Row:
    """One row. Methods take names of columns; the first that is there and not empty counts."""

    place: Place
    cells: Mapping[str, object]

    def text(self, *names: str) -> str:
        """Its text, "" where no column has any."""
        found = self._find(names)
        return "" if found is None else self.place.text(found[0], _as_text(found[1])).strip()

    def decimal(self, *names: str) -> Decimal | None:
        """A number; None where no column has any."""
        found = self._find(names)
        return None if found is None else self.place.decimal(*found)

    def day(self, *names: str) -> date:
        """A day, which must be there."""
        found = self._find(names)
        if found is None:
            self.place.wrong(names[0], "is missing or empty")
        return self.place.day(*found)

    def dollars(self, names: tuple[str, ...], currency: tuple[str, ...]) -> Decimal:
        """A cost in US dollars, which must be there."""
        found = self._find(names)
        if found is None:
            self.place.wrong(names[0], "is missing or empty")
        return self.place.dollars(*found, self.text(*currency), currency[0])

    def content(self) -> Hashable:
        """What two equal rows have in common."""
        return repr(sorted(self.cells.items(), key=lambda item: item[0]))

    def _find(self, names: tuple[str, ...]) -> tuple[str, object] | None:
        for name in names:
            value = self.cells.get(column(name))
            if value is _TWICE:
                self.place.wrong(name, "there are two such columns")
            if value is not None and value != "":
                return name, value
        return None


def table(data: bytes, file: str, into: Collector) -> Iterator[Row]:
    """The rows of a file: CSV with a header; JSON as a list of objects, one a line, under
    ``value``, or as columns and rows of Azure's query answers."""
    text = decoded(data, file)
    return _json_rows(text, file, into) if is_json(text) else _csv_rows(text, file)


def column(name: str) -> str:
    """The name by which a column is known."""
    return _SIGNS.sub("", name.lower())


def _as_text(value: object) -> object:
    return str(value) if type(value) is int and abs(value) < 10**18 else value


def _csv_rows(text: str, file: str) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    places: dict[str, int] = {}
    twice: set[str] = set()
    while True:
        place = Place(file, f"line {reader.line_num + 1}")
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            place.wrong("", f"is not CSV: {error}")
        if not any(cell.strip() for cell in cells):
            continue
        if header is None:
            header = cells
            if len(header) > MAX_COLUMNS:
                place.wrong("", f"a table may have {MAX_COLUMNS} columns")
            for number, name in enumerate(header):
                known = column(name)
                if known in places:
                    twice.add(known)
                places[known] = number
            continue
        if len(cells) != len(header):
            place.wrong("", f"has {len(cells)} cells, and the header {len(header)}")
        found: dict[str, object] = {name: cells[number] for name, number in places.items()}
        found.update(dict.fromkeys(twice, _TWICE))
        yield Row(place, found)
    if header is None:
        Place(file).wrong("", "is empty")


def _json_rows(text: str, file: str, into: Collector) -> Iterator[Row]:
    for name, document in documents(text, file):
        place = Place(file, name)
        whole = an_object(document, place, "")
        if "error" in whole:
            place.wrong("error", "the provider answered with an error, this is no report")
        inner = whole.get("properties")
        if isinstance(inner, dict) and "rows" in inner:
            whole = inner
        if whole.get("nextLink"):
            into.warnings.append("nextLink is set: it is a page of several, the others are needed")
        prefix = f"{name}." if name else ""
        if "columns" in whole and "rows" in whole:
            yield from _query_rows(whole, file, prefix)
        elif "value" in whole and isinstance(whole["value"], list):
            for number, one in enumerate(whole["value"]):
                at = Place(file, f"{prefix}value[{number}]")
                yield _json_row(at, an_object(one, at, ""))
        else:
            yield _json_row(Place(file, name or "[0]"), whole)


def _query_rows(whole: dict[str, Any], file: str, prefix: str) -> Iterator[Row]:
    place = Place(file, prefix)
    heads = [
        place.text("columns.name", an_object(each, place, "columns").get("name"))
        for each in a_list(whole["columns"], place, "columns")
    ]
    for number, cells in enumerate(a_list(whole["rows"], place, "rows")):
        at = Place(file, f"{prefix}rows[{number}]")
        if len(a_list(cells, at, "")) != len(heads):
            at.wrong("", f"has {len(cells)} cells, and there are {len(heads)} columns")
        yield _json_row(at, dict(zip(heads, cells, strict=True)))


def _json_row(place: Place, plain: dict[str, Any]) -> Row:
    """Objects inside become columns of their own: ``product: {name: x}`` is ``product/name``."""
    if isinstance(plain.get("properties"), dict):
        plain = plain["properties"]
    flat: dict[str, object] = {}
    for name, value in plain.items():
        pairs = value.items() if isinstance(value, dict) else ((None, value),)
        for inner, cell in pairs:
            if isinstance(cell, dict | list):
                continue
            known = column(name if inner is None else f"{name}/{inner}")
            flat[known] = _TWICE if known in flat else cell
    if len(flat) > MAX_COLUMNS:
        place.wrong("", f"a row may have {MAX_COLUMNS} columns")
    return Row(place, flat)
