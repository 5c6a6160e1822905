"""`tokenweir prices`, from a file to the rows and back."""

import json
from pathlib import Path

import pytest

from extproc.cli import main
from extproc.stores.migrate import upgrade
from extproc.stores.price_file import read_price_file

FILE = """
prices:
  - provider: openai
    model: gpt-*
    usd: {input: 2.5, cached_input: 1.25, output: 10}
"""
GPU = (
    "prices gpu --model llama-* --gpu-hour-usd 2.50 --gpus 2 --utilisation-percent 60 "
    "--prefill-tokens-per-second 10000 --decode-tokens-per-second 900"
)


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    url = f"sqlite:///{tmp_path / 'prices.db'}"
    monkeypatch.setenv("TOKENWEIR_DATABASE__URL", url)
    upgrade(url)
    path = tmp_path / "prices.yaml"
    path.write_text(FILE)
    return path


def test_a_file_is_checked_compared_loaded_and_listed(
    book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prices", "check", str(book)]) == 0
    assert capsys.readouterr().out == "1 entries, 3 prices\n"
    assert main(["prices", "diff", str(book)]) == 0
    assert "3 to change; nothing was written" in capsys.readouterr().out
    assert main(["prices", "list"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["prices", "load", str(book)]) == 0
    assert "openai gpt-* cached_input: none -> 1250000 from " in capsys.readouterr().out
    assert main(["prices", "load", str(book)]) == 0
    assert capsys.readouterr().out == "0 changed\n"
    book.write_text(FILE.replace("2.5", "3"))
    assert main(["prices", "diff", str(book), "--from", "2100-01-01"]) == 0
    shown = capsys.readouterr().out
    assert "openai gpt-* input: 2500000 -> 3000000 from 2100-01-01T00:00:00Z" in shown
    assert "1 to change" in shown
    assert main(["prices", "list", "--model", "GPT-4o", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["price_class"]: row["micros_per_million"] for row in rows} == {
        "input": 2_500_000,
        "cached_input": 1_250_000,
        "output": 10_000_000,
    }
    assert main(["prices", "list", "--model", "claude"]) == 0
    assert main(["prices", "list", "--at", "2000-01-01"]) == 0
    assert capsys.readouterr().out == ""


def test_the_past_is_not_changed(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prices", "load", str(book), "--from", "2026-01-01"]) == 0
    book.write_text(FILE.replace("2.5", "3"))
    assert main(["prices", "load", str(book), "--from", "2026-02-01"]) == 2
    assert "a price counted then, which is never changed" in capsys.readouterr().err


def test_a_wrong_file_says_where(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book.write_text(FILE.replace("2.5", "-2"))
    assert main(["prices", "check", str(book)]) == 2
    assert "prices[0].usd.input: must be 0 or more" in capsys.readouterr().err


def test_a_gpu_by_the_hour_becomes_a_price(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(GPU.split()) == 0
    shown = capsys.readouterr().out
    # 5 USD an hour; 10,000 x 3600 x 0.6 = 21.6 million tokens: 0.2314814... USD a million.
    assert "= 0.231482 USD a million tokens" in shown
    # 900 x 3600 x 0.6 = 1.944 million: 2.5720164...
    assert "= 2.572017 USD a million tokens" in shown
    assert main([*GPU.split(), "--yaml"]) == 0
    (entry,) = read_price_file(capsys.readouterr().out)
    assert [rate.micros_per_million for rate in entry.rates] == [231_482, 2_572_017]
    assert (entry.provider, entry.model, entry.source) == ("*", "llama-*", "gpu")


@pytest.mark.parametrize(
    "wrong",
    ["--gpus 0", "--utilisation-percent 101", "--gpu-hour-usd 1e20", "--gpu-hour-usd 1e15"],
)
def test_a_gpu_that_cannot_be(wrong: str) -> None:
    try:
        status: object = main([*GPU.split(), *wrong.split()])
    except SystemExit as exit_:
        status = exit_.code
    assert status == 2


def test_the_starting_book_is_a_book(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prices", "start", "--provider", "anthropic", "--provider", "openai"]) == 0
    entries = read_price_file(capsys.readouterr().out)
    assert {entry.provider for entry in entries} == {"anthropic", "openai"}
    sonnet = next(entry for entry in entries if entry.model.startswith("claude-3-7-sonnet"))
    assert {rate.price_class.value: rate.micros_per_million for rate in sonnet.rates} == {
        "input": 3_000_000,
        "output": 15_000_000,
        "cached_input": 300_000,
        "cache_write_5m": 3_750_000,
        "cache_write_1h": 6_000_000,
        "server_tool_call": 10_000_000_000,
    }
    assert main(["prices", "start", "--provider", "nobody"]) == 2
