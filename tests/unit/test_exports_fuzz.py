"""Whatever bytes an export has, it is read, or refused with ExportError: nothing else is raised."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.exports import Export, ExportError
from extproc.providers.exports import READERS, read_export

FOLDER = Path(__file__).parents[1] / "data" / "exports"
FILES = [path.read_bytes() for path in sorted(FOLDER.iterdir())]
PROVIDERS = st.sampled_from(sorted(READERS))
# What has a meaning in one of the formats, or is hard for numbers, more often than chance would.
PARTS = st.sampled_from(
    [
        *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\n", b"\r\n", b"\xef\xbb\xbf", b"\x00", b"-"),
        *(
            b"1e999999",
            b"-0",
            b"9" * 400,
            b"NaN",
            b"0E-6176",
            b"1e-64",
            b"\\ud800",
            b"null",
            b"true",
        ),
        *(
            b'"data"',
            b'"results"',
            b'"amount"',
            b'"properties"',
            b'"value"',
            b'"rows"',
            b'"columns"',
        ),
        *(b"lineItem/UsageType", b"UsageDate", b"MeterName", b"day", b"9999-12-31T23:59:59-14:00"),
    ]
)


def look(data: bytes, provider: str) -> Export | None:
    export, text = None, "f"
    try:
        export = read_export(data, "f", provider)
    except ExportError as error:
        text = str(error)
    assert text.startswith("f")
    assert text.isprintable()
    if export is None:
        return None
    for row in export.rows:
        assert all(type(count) is int for count in row.tokens.values())
        assert row.cost_micros is None or type(row.cost_micros) is int
        assert (row.model + row.key + (row.request_id or "")).isprintable()
    return export


def test_the_seeds_are_read() -> None:
    assert len(FILES) >= 8
    for data in FILES:
        assert any(look(data, provider) is not None for provider in READERS)


@given(st.binary(max_size=400), PROVIDERS)
def test_any_bytes(data: bytes, provider: str) -> None:
    look(data, provider)


@given(st.lists(PARTS | st.binary(max_size=4), max_size=30).map(b"".join), PROVIDERS)
def test_bytes_with_a_meaning(data: bytes, provider: str) -> None:
    look(data, provider)


@given(st.data())
def test_files_that_are_cut_and_changed(data: st.DataObject) -> None:
    file = data.draw(st.sampled_from(FILES))
    start = data.draw(st.integers(0, len(file)))
    end = data.draw(st.integers(start, len(file)))
    put = data.draw(PARTS | st.binary(max_size=8))
    for provider in READERS:
        look(file[:start] + put + file[end:], provider)
        look(file[:end], provider)


_PLAIN: st.SearchStrategy[object] = st.sampled_from(
    [
        *(None, True, 0, -1, 2**70, 1.5, -0.0, 1e300, "", "x", "\ud800", "1e9", "2026-12-01"),
        *([], {}, [1], {"a": 1}, [[{}]], {"data": [{"results": [{}]}]}),
    ]
)


@given(st.data())
def test_documents_with_a_value_of_any_other_type(data: st.DataObject) -> None:
    documents = [file for file in FILES if file.lstrip()[:1] == b"{" and b"}\n{" not in file]
    plain = json.loads(data.draw(st.sampled_from(documents)))
    holder = plain
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = data.draw(st.sampled_from(keys))
        inner = holder[key]
        if not inner or not isinstance(inner, dict | list) or data.draw(st.booleans()):
            break
        holder = inner
    holder[key] = data.draw(_PLAIN)
    for provider in READERS:
        look(json.dumps(plain).encode(), provider)


@pytest.mark.parametrize("name", ["cost_usd", "output_tokens"])
@given(st.lists(st.decimals(-(10**9), 10**9, places=12), min_size=1, max_size=20))
def test_sums_are_exact(name: str, amounts: list[Decimal]) -> None:
    lines = "".join(f"2026-12-01,{amount:f}\n" for amount in amounts)
    export = look(f"day,{name}\n{lines}".encode(), "plain")
    assert export is not None
    (row,) = export.rows
    scale = 1_000_000 if name == "cost_usd" else 1
    exact = sum(int(amount.scaleb(12)) for amount in amounts) * scale
    told = row.cost_micros if name == "cost_usd" else row.tokens.get("output", 0)
    assert told is not None
    half = 10**12 // 2
    assert abs(told * 10**12 - exact) <= half
    if abs(told * 10**12 - exact) == half:
        assert told % 2 == 0
