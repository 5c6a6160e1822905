"""`tokenweir ledger ...` over given rows: output, exit status, wrong usage."""

import argparse
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from extproc.cli_ledger import LedgerQuery, add_ledger_verbs, run_ledger_command
from extproc.core.errors import UsageError
from extproc.core.ledger_rows import LedgerRow
from tests.unit.ledger_cases import row
from tests.unit.test_bills import cost_of

ROWS = [row(1), row(2, root="other"), row(3, subject='{"user":"bob"}'), row(4, provider="azure")]
PERIOD = ["--from", "2026-12-01", "--to", "2027-01-01"]
EXPORT = (
    "day,model,key,request_id,input_tokens,output_tokens,cost_usd,requests\n"
    "2026-12-01,gpt-4o,acme,req_1,100,10,0.00015,1\n"
    "2026-12-01,gpt-4o,other,req_2,100,10,0.00015,1\n"
    "2026-12-01,gpt-4o,acme,req_3,100,10,0.00015,1\n"
)


class Ledger:
    """Rows, and what was asked for."""

    def __init__(self) -> None:
        self.asked: list[LedgerQuery] = []

    def rows(self, query: LedgerQuery) -> Iterable[LedgerRow]:
        self.asked.append(query)
        return ROWS


def run(*words: str, ledger: Ledger | None = None) -> int:
    parser = argparse.ArgumentParser()
    config = argparse.ArgumentParser(add_help=False)
    add_ledger_verbs(parser.add_subparsers(dest="verb", required=True), config)
    return run_ledger_command(parser.parse_args(words), (ledger or Ledger()).rows, cost_of)


@pytest.fixture
def export(tmp_path: Path) -> Path:
    file = tmp_path / "export.csv"
    file.write_text(EXPORT, encoding="utf-8")
    return file


def test_a_bill_of_a_tenant(capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger()
    assert run("bill", "--tenant", "acme", *PERIOD, "--format", "json", ledger=ledger) == 0
    plain = json.loads(capsys.readouterr().out)
    assert (plain["tenant"], plain["total_micros"], plain["requests"]) == ("acme", 450, 3)
    (asked,) = ledger.asked
    assert (asked.root, asked.start) == ("acme", datetime(2026, 12, 1, tzinfo=UTC))


def test_a_bill_of_a_subject(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bill", "--subject", "user:bob", *PERIOD) == 0
    assert "total    0.000150 USD" in capsys.readouterr().out


def test_a_bill_in_a_time_zone(capsys: pytest.CaptureFixture[str]) -> None:
    period = ["--from", "2026-12-02", "--to", "2026-12-03", "--zone", "Pacific/Auckland"]
    assert run("bill", "--tenant", "acme", *period, "--format", "csv") == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("2026-12-02,gpt-4o,v1,input,3,300,")


def test_a_bill_that_prices_do_not_explain_is_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.unit.test_cli_ledger.ROWS", [row(cost_micros=151)])
    assert run("bill", "--tenant", "acme", *PERIOD) == 1
    assert "discrepancies: 1" in capsys.readouterr().out


def test_sides_that_agree_are_status_0(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reconcile", str(export), "--provider", "plain", "--ledger-provider", "openai"]
    for by in ("day,model", "key", "request", "day,model,key,request"):
        assert run(*words, "--by", by) == 0, by
    assert "0 of" in capsys.readouterr().out


def test_differences_beyond_the_tolerance_are_status_1(
    export: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reconcile", str(export), "--provider", "plain"]
    assert run(*words, "--format", "json") == 1
    plain = json.loads(capsys.readouterr().out)
    assert {x["measure"]: x["difference"] for x in plain["totals"]} == {
        "cost_micros": 150,
        "input": 100,
        "output": 10,
        "requests": 1,
    }
    exact = [
        *("--tolerance-micros", "150"),
        *("--tolerance-tokens", "100"),
        *("--tolerance-requests", "1"),
    ]
    assert run(*words, *exact) == 0
    assert run(*words, *exact[:4]) == 1


def test_days_outside_the_export_are_not_compared(
    export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [*ROWS[:3], row(9, at="2026-12-02T00:00:00"), row(8, at="2026-11-30T23:59:59")]
    monkeypatch.setattr("tests.unit.test_cli_ledger.ROWS", more)
    words = ["reconcile", str(export), "--provider", "plain"]
    assert run(*words) == 0
    assert run(*words, "--to", "2026-12-03") == 1
    early = EXPORT.splitlines()[1].replace("2026-12-01", "2026-11-29")
    export.write_text(f"{EXPORT}{early}\n", encoding="utf-8")
    assert run(*words) == 1
    assert run(*words, "--from", "2026-12-01") == 0


def test_names_are_read_from_a_file(export: Path, tmp_path: Path) -> None:
    export.write_text(EXPORT.replace("gpt-4o", "gpt-4o-2024-08-06"), encoding="utf-8")
    names = tmp_path / "names.json"
    words = ["reconcile", str(export), "--provider", "plain", "--ledger-provider", "openai"]
    assert run(*words) == 1
    names.write_text('{"models": {"gpt-4o-2024-08-06": "gpt-4o"}}', encoding="utf-8")
    assert run(*words, "--names", str(names)) == 0


def test_warnings_go_to_standard_error(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export.write_text(EXPORT + EXPORT.splitlines()[1] + "\n", encoding="utf-8")
    words = ["reconcile", str(export), "--provider", "plain", "--ledger-provider", "openai"]
    assert run(*words) == 1
    assert "line 5 is the same as line 2" in capsys.readouterr().err


def test_replay_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(
        """root: acme
policies:
- name: people
  scope: user
  value: "*each"
  rules:
  - {dimension: rpm, limit: 1}
"""
    )
    ledger = Ledger()
    assert run("replay", "--policy", str(file), *PERIOD, ledger=ledger) == 0
    out = capsys.readouterr().out
    assert "1 of 3 requests would have been refused, 0.000150 USD" in out
    assert "people/rpm" in out
    assert "r4" in out
    assert ledger.asked[0].root == "acme"
    with pytest.raises(UsageError, match="the file has policies of acme"):
        run("replay", "--policy", str(file), "--tenant", "other", *PERIOD)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["bill", *PERIOD], "--tenant"),
        (["bill", "--tenant", "a", "--from", "2026-12-01", "--to", "2026-12-01"], "after --from"),
        (["bill", "--tenant", "a", "--from", "soon", "--to", "2026-12-01"], "'soon'"),
        (["bill", "--tenant", "a", "--from", "0001-01-01", "--to", "2026-12-01"], "--from"),
        (["bill", "--tenant", "a", *PERIOD, "--zone", "Mars"], "no time zone 'Mars'"),
        (["bill", "--tenant", "a", *PERIOD, "--zone", "../x"], "no time zone"),
        (["bill", "--subject", "alice", *PERIOD], "--subject"),
        (["bill", "--subject", "api_key:x", *PERIOD], "secrets"),
        (["reconcile", "none.csv", "--provider", "plain"], "none.csv: No such file"),
        (["reconcile", "x", "--provider", "plain", "--by", "day,day"], "--by"),
        (["reconcile", "x", "--provider", "plain", "--by", ""], "--by"),
        (["reconcile", "x", "--provider", "plain", "--tolerance-ppm", "-1"], "--tolerance-ppm"),
        (["replay", "--policy", "none.yaml", *PERIOD], "none.yaml"),
    ],
)
def test_wrong_usage_is_named(words: list[str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        run(*words)


def test_errors_of_an_export_name_their_place(export: Path) -> None:
    export.write_text(EXPORT.replace("0.00015", "much", 1), encoding="utf-8")
    with pytest.raises(UsageError, match=r"export\.csv, line 2, cost_usd: must be a number"):
        run("reconcile", str(export), "--provider", "plain")


@pytest.mark.parametrize("text", ["[]", "{", '{"model": {}}', '{"keys": 1}', '{"keys": {"a": 1}}'])
def test_a_file_of_names_is_checked(export: Path, tmp_path: Path, text: str) -> None:
    names = tmp_path / "names.json"
    names.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="--names"):
        run("reconcile", str(export), "--provider", "plain", "--names", str(names))
