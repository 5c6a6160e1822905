"""Exports that are wrong or strange: read as what they say, or refused with the place."""

import json
from typing import Any

import pytest

from extproc.core.exports import Export, ExportError
from extproc.providers.exports import collect, documents, read_export

DAY_S = 1_796_083_200
USAGE: dict[str, Any] = {
    "object": "organization.usage.completions.result",
    "input_tokens": 10,
    "output_tokens": 5,
    "num_model_requests": 1,
    "model": "gpt-4o",
}
COST: dict[str, Any] = {
    "object": "organization.costs.result",
    "amount": {"value": 1, "currency": "usd"},
    "line_item": "gpt-4o, input",
}


def page(*results: Any, **given: Any) -> dict[str, Any]:
    bucket = {"object": "bucket", "start_time": DAY_S, "results": list(results)}
    return {"object": "page", "data": [bucket], "has_more": False, **given}


def openai(*results: Any) -> Export:
    return read_export(json.dumps(page(*results)).encode(), "f.json", "openai")


def refused(data: bytes | str, provider: str = "openai") -> str:
    with pytest.raises(ExportError) as caught:
        read_export(data.encode() if isinstance(data, str) else data, "f", provider)
    return str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("input_tokens", -1, "must be 0 to"),
        ("input_tokens", 1.5, "must be a whole number"),
        ("input_tokens", "10", "must be a whole number"),
        ("input_tokens", True, "must be a whole number"),
        ("output_tokens", 10**16, "must be 0 to"),
        ("input_cached_tokens", 11, "more than input_tokens"),
        ("model", ["x"], "must be text"),
        ("model", "x" * 600, "is longer"),
    ],
)
def test_an_error_names_file_row_and_field(field: str, value: object, text: str) -> None:
    with pytest.raises(ExportError) as caught:
        openai(USAGE, {**USAGE, field: value})
    error = caught.value
    assert (error.file, error.row, error.field) == ("f.json", "data[0].results[1]", field)
    assert text in str(error)
    assert str(error).startswith("f.json, data[0].results[1], ")


@pytest.mark.parametrize(
    "value",
    ["NaN", "Infinity", "1e99", "1e-99", "0x10", "1,5", "1 2", "", None, True, [], "9" * 90],
)
def test_an_amount_is_a_number_of_sensible_size(value: object) -> None:
    with pytest.raises(ExportError, match=r"amount\.value"):
        openai({**COST, "amount": {"value": value, "currency": "usd"}})


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "9" * 5000])
def test_numbers_that_json_does_not_know(number: str) -> None:
    text = json.dumps(page(COST)).replace('"value": 1', f'"value": {number}')
    assert "number" in refused(text)


def test_other_currencies_are_refused() -> None:
    with pytest.raises(ExportError, match=r"amount\.currency: is 'EUR'; only USD"):
        openai({**COST, "amount": {"value": 1, "currency": "EUR"}})
    table = "Date,MeterSubCategory,Cost,Currency\n2026-12-01,Azure OpenAI,1,EUR\n"
    assert "f, line 2, BillingCurrency: is 'EUR'" in refused(table, "azure")
    told = table.replace("Currency", "Currency,CostInUsd").replace("EUR", "EUR,1.5")
    assert read_export(told.encode(), "f", "azure").rows[0].cost_micros == 1_500_000


def test_no_float_touches_money() -> None:
    """0.1 + 0.2, and more digits than a double holds."""
    amounts = (0.1, 0.2, "0.000000000000000000001", "9007199254.740993")
    rows = openai(*({**COST, "amount": {"value": v, "currency": "usd"}} for v in amounts)).rows
    assert rows[0].cost_micros == 9_007_199_255_040_993
    large = {**COST, "amount": {"value": "900000000000000.0000011", "currency": "usd"}}
    assert openai(large).rows[0].cost_micros == 900_000_000_000_000_000_001


def test_a_sum_is_rounded_once() -> None:
    """A thousand rows of 0.4 micro-USD are 400, not 0."""
    rows = [
        {**COST, "amount": {"value": "0.0000004", "currency": "usd"}, "quantity": n}
        for n in range(1000)
    ]
    assert openai(*rows).rows[0].cost_micros == 400


def test_rows_that_stand_twice_are_counted_and_told() -> None:
    export = openai(USAGE, USAGE, {**USAGE, "model": "other"})
    assert {row.model: row.requests for row in export.rows} == {"gpt-4o": 2, "other": 1}
    (warning,) = export.warnings
    assert "1 rows stand twice" in warning
    assert "data[0].results[1] is the same as data[0].results[0]" in warning


def test_pages_in_one_file() -> None:
    first, last = page(USAGE, has_more=True), page({**USAGE, "model": "b"})
    for text in (json.dumps([first, last]), f"{json.dumps(first)}\n{json.dumps(last)}\n"):
        export = read_export(text.encode(), "f", "openai")
        assert [row.model for row in export.rows] == ["b", "gpt-4o"]
        assert export.warnings == ()
    export = read_export(json.dumps([last, first]).encode(), "f", "openai")
    assert "has_more" in export.warnings[0]


def test_empty_buckets_and_pages_have_no_rows() -> None:
    assert openai().rows == ()
    assert read_export(b'{"data": [], "has_more": false}', "f", "anthropic").rows == ()


def test_usage_and_costs_in_one_file_are_refused() -> None:
    with pytest.raises(ExportError, match="usage and costs"):
        openai(USAGE, COST)


def test_unknown_kinds_of_results_are_told() -> None:
    export = openai(USAGE, {"object": "organization.usage.images.result", "images": 1})
    assert "organization.usage.images.result" in export.warnings[0]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "is not JSON"),
        (b"\x1f\x8b\x08\x00", "is compressed"),
        (b"\xff\xfe{", "byte 1 is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"null", "must be an object"),
        (b'{"error": {"message": "no"}}', "no report"),
        (b'{"data": {}}', "data: must be a list"),
        (b'{"data": [{"results": 1}]}', "data[0], results: must be a list"),
        (b'{"data": [], "data": []}', "a name stands twice"),
        (b'{"data": []}\n{"b"', "line 2: is not JSON"),
    ],
)
def test_what_is_no_report(data: bytes, text: str) -> None:
    assert text in refused(data)


def test_files_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_BYTES", 100)
    assert "may have 100 bytes" in refused(b" " * 101)
    monkeypatch.setattr(documents, "MAX_BYTES", 10_000)
    monkeypatch.setattr(collect, "MAX_ROWS", 2)
    assert "may have 2 rows" in refused(json.dumps(page(USAGE, USAGE, USAGE)))


TABLE = "day,model,output_tokens,cost_usd\n2026-12-01,m,5,0.5\n"


def test_tables_may_have_a_mark_and_any_line_ends() -> None:
    usual = read_export(TABLE.encode(), "f", "plain")
    crlf = "\ufeff" + TABLE.replace("\n", "\r\n") + "\r\n"
    assert read_export(crlf.encode(), "f", "plain") == usual
    as_json = '[{"day": "2026-12-01", "model": "m", "output_tokens": 5, "cost_usd": 0.5}]'
    assert read_export(as_json.encode(), "f", "plain") == usual


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("", "is empty"),
        (TABLE + "2026-12-01,m\n", "f, line 3: has 2 cells, and the header 4"),
        (TABLE + '2026-12-01,"m', "f, line 3: is not CSV"),
        (TABLE.replace("2026-12-01", "yesterday"), "f, line 2, day: must be a day"),
        (TABLE.replace("2026-12-01", ""), "f, line 2, day: is missing or empty"),
        (TABLE.replace("2026-12-01", "0001-01-01"), "must be"),
        (TABLE.replace("0.5", "0.5 $"), "f, line 2, cost_usd: must be a number"),
        (TABLE.replace("output_tokens", "Cost-USD"), "there are two such columns"),
        (",".join(map(str, range(1001))) + "\n", "may have 1000 columns"),
        (TABLE + "2026-12-01," + "m" * 200_000 + ",1,1\n", "is not CSV"),
    ],
)
def test_what_is_no_table(data: str, text: str) -> None:
    assert text in refused(data, "plain")


def test_a_name_cannot_steer_a_terminal() -> None:
    export = openai({**USAGE, "model": "a\x1b[31m\ud800\n"})
    assert export.rows[0].model == "a?[31m??"
