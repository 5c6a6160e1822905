"""Whatever stands in a policy file, it is read or refused with its place, and never a traceback."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.policy_plan import PolicyFile
from extproc.stores.policy_file import MAX_FILE_BYTES, read_policy_file, read_policy_path
from extproc.stores.policy_yaml import PolicyFileError
from tests.unit.test_policies_file import FULL, ONE

# What YAML gives a meaning, more often than chance would.
_WORDS = [
    *(
        "policies:",
        "root:",
        "- ",
        "? ",
        ": ",
        "{",
        "}",
        "[",
        "]",
        ",",
        "\n",
        "  ",
        "# ",
        "--- ",
        "...",
    ),
    *(
        "&a ",
        "*a",
        "<<: ",
        "!!int ",
        "!!bool ",
        "!!timestamp ",
        "!!binary ",
        "!!set ",
        "!x ",
        "|\n",
        ">",
    ),
    *(
        "0100",
        "1:30",
        "1_000",
        "1e3",
        ".inf",
        ".nan",
        "0x1",
        "null",
        "~",
        "yes",
        "=",
        "'",
        '"',
        "\\u",
    ),
    *("2026-12-01", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "2026-13-01"),
    *(
        "name: p",
        "scope: user",
        "value: alice",
        "rules:",
        "dimension: rpm",
        "limit: 1",
        "\x00",
        "\t",
    ),
]
texts = st.lists(st.sampled_from(_WORDS) | st.text(max_size=5), max_size=40).map("".join)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=10)
    | st.datetimes()
    | st.sampled_from(["*each", "*any", "rpm", "user", "2026-12-01"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=5) | st.integers() | st.tuples(st.text()), inner, max_size=4
        )
    ),
    max_leaves=20,
)


def outcome(text: str) -> PolicyFile | str:
    """The file, or what is said of it; anything else fails the test."""
    try:
        return read_policy_file(text)
    except PolicyFileError as error:
        said = str(error)
        assert said
        assert all(line.isprintable() and len(line) < 600 for line in said.splitlines()), said
        return said


@given(texts)
def test_any_text(text: str) -> None:
    outcome(text)


@given(st.text())
def test_any_text_as_a_value(text: str) -> None:
    outcome(ONE.replace("alice", text))
    outcome(ONE.replace("name: p", f"name: p\n    {text}"))


@given(plain)
def test_any_structure(value: Any) -> None:
    outcome(yaml.dump(value))
    outcome(yaml.dump({"policies": value}))


@given(st.data())
def test_any_structure_in_any_place_of_a_file(data: st.DataObject) -> None:
    file = yaml.safe_load(FULL)
    policy = file["policies"][0]
    target = data.draw(st.sampled_from([file, policy, policy["rules"][2]]))
    target[data.draw(st.sampled_from([*target, "more"]))] = data.draw(plain)
    outcome(yaml.dump(file))


@given(st.integers(0, len(FULL) - 1), st.text(max_size=3), st.integers(0, 5))
def test_a_file_with_a_slip(at: int, put: str, left_out: int) -> None:
    outcome(FULL[:at] + put + FULL[at + left_out :])


@pytest.mark.parametrize(
    "text",
    [
        "? [a, b]\n: 1",
        "? {a: b}\n: 1",
        "policies: []\n1: 2",
        "policies: []\nnull: 2",
        ONE.replace("limit: 1", "limit: !!bool x"),
        ONE.replace("limit: 1", "limit: !!int ''"),
        ONE.replace("alice", "!!binary x"),
        ONE.replace("alice", '"\\ud800"'),
        ONE.replace("scope: user", 'scope: user\n    model: "\\ud800"'),
        ONE.replace("scope: user", 'scope: user\n    model: "a\\0"'),
        ONE.replace("alice", "a\n    effective_to: 9999-12-31T23:59:59-14:00"),
        ONE.replace("alice", 'a\n    effective_to: "9999-12-31T23:59:59-14:00"'),
        ONE.replace("alice", "a\n    effective_from: 0001-01-01T00:00:00+14:00"),
        ONE.replace("policies:", "root: across:provider:openai\npolicies:"),
    ],
)
def test_what_once_was_a_traceback(text: str) -> None:
    said = outcome(text)
    assert isinstance(said, str)
    assert said.startswith(("line ", "policies", "root"))


@pytest.mark.parametrize("number", ["0100", "1:30", "0x10", "0b1", "-01", "1_0:0", "9" * 5000])
def test_a_number_that_readers_of_yaml_disagree_about_is_refused(number: str) -> None:
    said = outcome(ONE.replace("limit: 1", f"limit: {number}"))
    assert isinstance(said, str)
    assert said.startswith("line 6: ")
    assert "decimal digits" in said
    # Where text belongs too: it would have become another text.
    assert "line 5: " in str(outcome(ONE.replace("alice", number)))


@pytest.mark.parametrize("number", ["1e3", "1.5e+3", "1.0", "0o17", "'5'", "yes"])
def test_what_is_no_whole_number_is_said_to_be_none(number: str) -> None:
    said = outcome(
        ONE.replace("{dimension: rpm, limit: 1}", f"{{dimension: rpm, limit: {number}}}")
    )
    assert isinstance(said, str)
    assert said.startswith("policies[0].rules[0]")


@pytest.mark.parametrize(("number", "limit"), [("1_000", 1000), ("+5", 5), ("0", 0)])
def test_numbers_that_are_read(number: str, limit: int) -> None:
    found = outcome(ONE.replace("limit: 1", f"limit: {number}"))
    assert isinstance(found, PolicyFile)
    assert found.drafts[0].policy.rules[0].limit == limit


def test_aliases_may_be_used() -> None:
    text = """
policies:
  - &first
    name: p
    scope: user
    value: alice
    rules: &rules [{dimension: rpm, limit: 1}]
  - {<<: *first, name: q}
  - {name: r, scope: agent, value: a, rules: *rules}
"""
    found = outcome(text)
    assert isinstance(found, PolicyFile)
    assert [(d.policy.name, d.policy.value, d.policy.rules[0].limit) for d in found.drafts] == [
        ("p", "alice", 1),
        ("q", "alice", 1),
        ("r", "a", 1),
    ]


def grown(first: str, more: str, levels: int) -> str:
    """Each line an anchor made of ten times the one before it."""
    lines = [f"a0: &a0 {first}"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} " + more % ",".join([f"*a{level - 1}"] * 10))
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (grown("[x,x,x,x,x,x,x,x,x,x]", "[%s]", 15), "line 6: more than"),
        (grown("{k: x}", "{<<: [%s]}", 15), "more than"),
        ("a: &a [*a]", "line 1: an alias stands in what it is an alias of"),
        ("a: &a {<<: *a}", "line 1: an alias stands in what it is an alias of"),
        ("[" * 100_000, "line 1: nested too deeply"),
        ("{a: " * 20_000, "line 1: nested too deeply"),
        ("policies:\n" + "".join(" " * i + "-\n" for i in range(1, 100)), "nested too deeply"),
        ("\n".join(["a0: &a0 []", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 99))]), "nested"),
    ],
)
def test_a_bomb_is_refused(text: str, problem: str) -> None:
    assert problem in str(outcome(text))


def test_many_mistakes_are_not_all_told() -> None:
    said = str(outcome(json.dumps({"policies": list(range(1000))})))
    assert len(said.splitlines()) == 51
    assert said.endswith("and 950 more")


def test_a_file_is_read_as_far_as_it_may_be_large(tmp_path: Path) -> None:
    path = tmp_path / "limits.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + ONE.encode())  # as some editors write it
    assert read_policy_path(path) == read_policy_file(ONE)
    path.write_bytes(ONE.encode() + b"#" * MAX_FILE_BYTES)
    with pytest.raises(PolicyFileError, match="may hold"):
        read_policy_path(path)
    with pytest.raises(PolicyFileError, match="may hold"):
        read_policy_path(Path("/dev/zero"))
    path.write_bytes(b"policies: \xff")
    with pytest.raises(PolicyFileError, match="byte 11: not UTF-8"):
        read_policy_path(path)
