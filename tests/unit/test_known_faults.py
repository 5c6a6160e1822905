"""The table of faults that others reported names tests that exist, and all written for it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/known-faults.md").read_text("utf-8")
ROWS = re.findall(r"^\| (B\d{3}) \| ([A-Z]+) \| .+ \| (`.+`) \|$", PAGE, re.MULTILINE)
NAMED = [test for *_, tests in ROWS for test in re.findall(r"`([^`]+)`", tests)]
OWN = sorted((ROOT / "tests").glob("*/test_known_faults_*.py"))
KINDS = {
    *("RESERVE", "RACE", "SETTLE", "IDEMP", "SLOT", "CLOCK", "REDIS"),
    *("USAGE", "FRAME", "ENCODE", "NUMBER", "AMBIG", "TOKENS", "CRASH", "ABORT"),
}


def names_in(path: Path) -> set[str]:
    """Of the test functions of a file."""
    tree = ast.parse(path.read_text("utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        node.name
        for node in tree.body
        if isinstance(node, functions) and node.name.startswith("test_")
    }


def test_every_row_is_read() -> None:
    ids = [identifier for identifier, *_ in ROWS]
    assert ids == re.findall(r"^\| (B\d+)", PAGE, re.MULTILINE)
    assert len(ids) == len(set(ids)) > 100
    assert {kind for _, kind, _ in ROWS} == KINDS


@pytest.mark.parametrize("test", sorted(set(NAMED)))
def test_a_named_test_exists(test: str) -> None:
    file, _, name = test.partition("::")
    name, _, case = name.removesuffix("]").partition("[")
    assert name in names_in(ROOT / file)
    if case:
        # One of many cases: bytes in tests/data, which are all read.
        assert list((ROOT / "tests/data").glob(f"*/{case}.json"))


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_each_test_of_a_reported_fault_is_named(path: Path) -> None:
    file = path.relative_to(ROOT).as_posix()
    named = {test.partition("::")[2].partition("[")[0] for test in NAMED if test.startswith(file)}
    assert named == names_in(path)
    mentioned = set(re.findall(r"\bB\d{3}\b", path.read_text("utf-8")))
    assert mentioned <= {identifier for identifier, *_ in ROWS}
