"""What is read of providers' exports."""

from datetime import date
from pathlib import Path

import pytest

from extproc.core.exports import Export
from extproc.providers.exports import read_export, together
from extproc.providers.exports.azure import read_meter

FOLDER = Path(__file__).parents[1] / "data" / "exports"
DAY = date(2026, 12, 1)


def read(name: str) -> Export:
    return read_export((FOLDER / name).read_bytes(), name, name.partition("_")[0].split(".")[0])


def test_openai_usage() -> None:
    export = read("openai_usage.json")
    nobody, known = export.rows
    assert (known.day, known.model, known.key) == (DAY, "gpt-4o-2024-08-06", "key_a")
    assert known.tokens == {"input": 200, "cached_input": 800, "output": 500}
    assert (known.requests, known.cost_micros) == (5, None)
    assert (nobody.model, nobody.key, nobody.tokens["input"]) == ("", "proj_a", 30)
    assert (export.tells_cost, export.tells_requests) == (False, True)
    assert len(export.warnings) == 1
    assert "has_more" in export.warnings[0]


def test_openai_costs() -> None:
    export = read("openai_costs.json")
    # 0.0604505 + 0.02 is 80450.5 micro-USD: half to even.
    assert {row.model: row.cost_micros for row in export.rows} == {
        "gpt-4o-2024-08-06": 80450,
        "gpt-5.5-2026-04-23": 0,
        "web search tool calls": -1_500_000,
    }
    assert not export.classes
    assert export.warnings == ()


def test_anthropic_usage() -> None:
    (row,) = read("anthropic_usage.json").rows
    assert row.tokens == {
        "input": 1500,
        "cached_input": 200,
        "cache_write_5m": 500,
        "cache_write_1h": 1000,
        "output": 450,
        "server_tool_calls": 10,
    }
    assert (row.day, row.key) == (DAY, "apikey_01Rj2N8SVvo6BePZj99NhmiT")
    assert row.requests is None


def test_anthropic_costs_are_in_cents() -> None:
    export = read("anthropic_costs.json")
    assert {row.model: row.cost_micros for row in export.rows} == {
        "claude-sonnet-4-5-20250929": 1_234_568,
        "(web_search)": 100_000,
    }


def test_azure_costs() -> None:
    export = read("azure_costs.csv")
    assert {row.model: (row.tokens, row.cost_micros) for row in export.rows} == {
        "gpt-4o-0806": ({"input": 12_345, "output": 2000}, 50_862),
        "5.4-mini": ({"cached_input": 500_000}, 12_500),
        "(Refund)": ({}, -10_000),
    }
    assert {row.key for row in export.rows} == {"aoai-east"}
    assert "1 rows of other services are left out" in export.warnings[0]


def test_azure_query() -> None:
    (row,) = read("azure_query.json").rows
    assert (row.day, row.model, row.cost_micros) == (DAY, "gpt-4o-0806", 30_862)


@pytest.mark.parametrize(
    ("meter", "told"),
    [
        ("gpt-4o-mini-0718-Batch-Inp-glbl Tokens", ("gpt-4o-mini-0718", "input")),
        ("gpt-5-codex-ccchd-inp-glbl Tokens", ("gpt-5-codex", "cached_input")),
        ("codex mini inp cchd glbl Tokens", ("codex-mini", "cached_input")),
        ("5.4 pp opt Gl 1M Tokens", ("5.4", "output")),
        ("5.6 sol ShortCo Cd Wr Std Gl 1M Tokens", ("5.6-sol", "cache_write")),
        ("Provisioned Managed Global Unit", ("Provisioned Managed Global Unit", None)),
    ],
)
def test_azure_meters(meter: str, told: tuple[str, str | None]) -> None:
    assert read_meter(meter) == told


def test_aws_classic_report() -> None:
    export = read("aws_cur.csv")
    assert {row.model: (row.tokens, row.cost_micros) for row in export.rows} == {
        "Claude4.5Sonnet": (
            {"cache_write": 433_893, "cached_input": 5_372_659, "input": 29_481, "output": 31_102},
            4_173_256,
        ),
        "(Tax)": ({}, 330_000),
        "(Credit)": ({}, -500_000),
    }
    assert export.warnings == ("aws_cur.csv: 1 rows of other services are left out",)


def test_aws_report_2_as_json() -> None:
    (row,) = read("aws_cur2.jsonl").rows
    assert (row.model, row.key) == ("Claude4.5Sonnet", "arn:aws:iam::111122223333:role/app")
    assert (row.tokens, row.cost_micros) == ({"input": 30_000}, 99_000)


def test_plain_tables_know_requests() -> None:
    export = read("plain.csv")
    assert [(x.request_id, x.tokens, x.cost_micros) for x in export.rows] == [
        ("req_1", {"input": 100, "cached_input": 20, "output": 30}, 123),
        ("req_2", {"input": 200, "output": 40}, 0),
    ]
    assert export.classes == {"input", "cached_input", "output"}


def test_usage_and_costs_can_be_one_export() -> None:
    both = together([read("openai_usage.json"), read("openai_costs.json")])
    assert both.tells_cost
    assert both.tells_requests
    assert len(both.rows) == 5
