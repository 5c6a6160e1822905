"""Policies as YAML: everything is checked first, and every mistake has its place."""

import textwrap
from datetime import UTC, datetime

import pytest

from extproc.core.policies import Algorithm, Dimension, Mode, OnExceed, Rule, Scope
from extproc.stores.policy_file import read_policy_file
from extproc.stores.policy_yaml import PolicyFileError

FULL = """
root: acme
policies:
  - name: p-1
    scope: user
    value: "*each"
    model: "gpt-*"
    mode: shadow
    on_exceed: record
    effective_from: 2026-12-01
    effective_to: 2026-12-08T01:00:00.7+01:00
    rules:
      - {dimension: rpm, limit: 1_000, algorithm: bucket, burst: 5}
      - {dimension: input_tpm, limit: 0, algorithm: sliding, window_seconds: 10}
      - {dimension: cost_micros_per_cycle, limit: 5, cycle_start: 2026-12-01,
         cycle_end: "2027-01-01T00:00:00Z"}
"""
ONE = """
policies:
  - name: p
    scope: user
    value: alice
    rules: [{dimension: rpm, limit: 1}]
"""


def test_every_key_is_read() -> None:
    file = read_policy_file(FULL)
    (draft,) = file.drafts
    policy = draft.policy
    assert (file.root, policy.root, draft.has_start) == ("acme", "acme", True)
    assert (policy.name, policy.scope, policy.value, policy.model) == (
        "p-1",
        Scope.USER,
        "*each",
        "gpt-*",
    )
    assert (policy.mode, policy.on_exceed) == (Mode.SHADOW, OnExceed.RECORD)
    assert policy.effective_from == datetime(2026, 12, 1, tzinfo=UTC)
    assert policy.effective_to == datetime(2026, 12, 8, tzinfo=UTC)
    assert set(policy.rules) == {
        Rule(dimension=Dimension.RPM, limit=1000, algorithm=Algorithm.BUCKET, burst=5),
        Rule(
            dimension=Dimension.INPUT_TPM, limit=0, algorithm=Algorithm.SLIDING, window_seconds=10
        ),
        Rule(
            dimension=Dimension.COST_MICROS_PER_CYCLE,
            limit=5,
            cycle_start=datetime(2026, 12, 1, tzinfo=UTC),
            cycle_end=datetime(2027, 1, 1, tzinfo=UTC),
        ),
    }


def test_what_may_be_left_out_has_its_default() -> None:
    (draft,) = read_policy_file(ONE).drafts
    policy = draft.policy
    assert (draft.has_start, policy.root, policy.model, policy.across_roots) == (
        False,
        None,
        "*",
        False,
    )
    assert (policy.mode, policy.on_exceed) == (Mode.ENFORCE, OnExceed.REFUSE)
    assert read_policy_file("policies: []").drafts == ()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("limit: 1", "limit: -1", "policies[0].rules[0].limit: "),
        ("limit: 1", "limit: 1.5", "policies[0].rules[0].limit: "),
        ("limit: 1", "limit: true", "policies[0].rules[0].limit: "),
        ("limit: 1", "limit: '1'", "policies[0].rules[0].limit: "),
        ("limit: 1", "limit: 99999999999999999999", "policies[0].rules[0].limit: "),
        (", limit: 1", "", "policies[0].rules[0].limit: is missing"),
        ("limit: 1", "limit: 1, burts: 5", "policies[0].rules[0].burts: there is no such key"),
        ("limit: 1", "limit: 1, burst: 5", "policies[0].rules[0]: rpm: burst is for algorithm"),
        ("limit: 1", "limit: 1, window_seconds: 5", "policies[0].rules[0]: rpm: window_seconds"),
        ("limit: 1", "limit: 1, cycle_end: 2026-12-01", "policies[0].rules[0]: rpm: cycle_start"),
        ("limit: 1", "limit: 1, cycle_end: soon", "policies[0].rules[0].cycle_end: "),
        ("rpm", "rps", "policies[0].rules[0].dimension: "),
        ("[{dimension: rpm, limit: 1}]", "[]", "policies[0].rules: "),
        ("limit: 1}", "limit: 1}, {dimension: rpm, limit: 2}", "policies[0]: rules: a dimension"),
        ("value: alice", "value: 7", "policies[0].value: must be text: put it in quotes"),
        ("value: alice", "value: no", "policies[0].value: must be text"),
        ("value: alice", "value: ''", "policies[0].value: "),
        ("value: alice", "value: '*all'", "policies[0].value: value must be a value, *any or"),
        ("value: alice", "value: *each", "line 5: found undefined alias"),
        ("value: alice", "value: a\n    value: b", "line 6: value stands twice"),
        ("scope: user", "scope: planet", "policies[0].scope: "),
        ("name: p", "name: a.b", "policies[0].name: name must be 1 to 64"),
        ("name: p", "name: service_limit", "policies[0].name: name service_limit is reserved"),
        ("value: alice", "value: a\n    effective_to: 1969-01-01", "policies[0]: effective_to is "),
        ("value: alice", "value: a\n    effective_to: 2026-13-01", "month must be in 1..12"),
        ("value: alice", "value: a\n    effective_to: 7", "policies[0].effective_to: must be a d"),
        ("value: alice", "value: a\n    across_roots: 1", "policies[0].across_roots: "),
        ("policies:", "root: a{b}\npolicies:", "root: must be 1 to 128"),
        ("policies:", "polices:", "policies: is missing"),
        ("policies:", "- policies:", "a file begins with `policies:`"),
        ("policies:", "policies: [", "line "),
    ],
)
def test_a_mistake_is_named_by_its_place(old: str, new: str, problem: str) -> None:
    assert old in ONE
    with pytest.raises(PolicyFileError) as caught:
        read_policy_file(ONE.replace(old, new, 1))
    assert problem in str(caught.value)


def test_all_mistakes_are_named_at_once() -> None:
    more = textwrap.indent(textwrap.dedent(ONE.partition("policies:\n")[2]), "  ")
    with pytest.raises(PolicyFileError) as caught:
        read_policy_file(ONE.replace("user", "x") + more.replace("limit: 1", "limit: -1"))
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "policies[0].scope",
        "policies[1].rules[0].limit",
    ]


def test_a_name_stands_once() -> None:
    more = ONE.partition("policies:\n")[2]
    with pytest.raises(PolicyFileError, match=r"policies\[1\].name: stands already in policies\[0"):
        read_policy_file(ONE + more)


def test_a_policy_of_one_root_cannot_reach_across_roots() -> None:
    text = "root: acme" + ONE.replace("value: alice", "value: a\n    across_roots: true")
    with pytest.raises(PolicyFileError, match=r"policies\[0\]: across_roots"):
        read_policy_file(text)


@pytest.mark.parametrize("text", ["", "\x00", "[" * 5000, "a: &a [*a, *a]", "!!python/name:os.x"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(PolicyFileError):
        read_policy_file(text)
