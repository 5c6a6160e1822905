"""What applying a file changes."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from extproc.core.policies import BadEffect, BadRow, Dimension, LimitPolicy, Rule
from extproc.core.policy_plan import (
    EPOCH,
    ChangeKind,
    PolicyChange,
    PolicyDraft,
    PolicyFile,
    PolicyPlanError,
    describe,
    has_ended,
    plan,
)
from tests.support.policies import NOW, policy

LATER = NOW + timedelta(hours=1)
RPM = (Rule(dimension=Dimension.RPM, limit=7),)


def draft(name: str = "p1", **given: Any) -> PolicyDraft:
    given.setdefault("effective_from", EPOCH)
    return PolicyDraft(policy=policy(name, **given), has_start=given["effective_from"] != EPOCH)


def file(*drafts: PolicyDraft, root: str | None = None) -> PolicyFile:
    return PolicyFile(root=root, drafts=drafts)


def after(stored: list[LimitPolicy], changes: tuple[PolicyChange, ...]) -> list[LimitPolicy]:
    """What the table then holds, as the SQL does it."""
    for change in changes:
        for index, old in enumerate(stored):
            lasts = old.effective_to is None or old.effective_to > change.at
            if old.name == change.name and lasts:
                end = max(old.effective_from, change.at)
                stored[index] = replace(old, effective_to=end)
        if change.after is not None:
            stored.append(change.after)
    return stored


def in_force(stored: list[LimitPolicy], now: datetime) -> dict[str, int]:
    return {p.name: p.version for p in stored if p.is_in_force(now)}


def kinds(changes: tuple[PolicyChange, ...]) -> list[tuple[str, str]]:
    return [(change.name, change.kind.value) for change in changes]


def test_added_changed_ended_and_unchanged() -> None:
    stored = [policy("same"), policy("other"), policy("gone")]
    wanted = file(draft("same"), draft("other", rules=RPM), draft("new"))
    changes = plan(wanted, stored, NOW)
    assert kinds(changes) == [("gone", "ended"), ("new", "added"), ("other", "changed")]
    stored = after(stored, changes)
    assert in_force(stored, NOW) == {"same": 1, "other": 2, "new": 1}
    assert plan(wanted, stored, NOW) == ()
    assert plan(wanted, stored, LATER) == ()


def test_the_order_of_rules_is_no_change() -> None:
    rules = (*RPM, Rule(dimension=Dimension.INPUT_TPM, limit=1))
    assert plan(file(draft(rules=rules[::-1])), [policy(rules=rules)], NOW) == ()


def test_a_file_touches_its_own_root_only() -> None:
    stored = [policy("all"), policy("mine", root="acme"), policy("theirs", root="other")]
    assert kinds(plan(file(), stored, NOW)) == [("all", "ended")]
    assert kinds(plan(file(root="acme"), stored, NOW)) == [("mine", "ended")]
    with pytest.raises(
        PolicyPlanError, match=r"policies\[1\].name: theirs is a policy of root oth"
    ):
        plan(file(draft("a", root="acme"), draft("theirs", root="acme"), root="acme"), stored, NOW)


def test_a_beginning_to_come_lets_the_old_version_go_on_until_then() -> None:
    wanted = file(draft(rules=RPM, effective_from=LATER))
    stored = after([policy()], plan(wanted, [policy()], NOW))
    assert in_force(stored, NOW) == {"p1": 1}
    assert in_force(stored, LATER) == {"p1": 2}
    # Again, before and after that time: nothing.
    assert plan(wanted, stored, NOW) == ()
    assert plan(wanted, stored, LATER + timedelta(1)) == ()


def test_a_planned_change_can_be_taken_back() -> None:
    stored = after([policy()], plan(file(draft(rules=RPM, effective_from=LATER)), [policy()], NOW))
    back = plan(file(draft()), stored, NOW)
    assert kinds(back) == [("p1", "changed")]
    stored = after(stored, back)
    for moment in (NOW, LATER, LATER + timedelta(days=9)):
        assert in_force(stored, moment) == {"p1": 3}
    assert plan(file(draft()), stored, NOW) == ()


@pytest.mark.parametrize("start", [EPOCH, LATER + timedelta(hours=1)])
def test_another_beginning_alone_is_a_change(start: datetime) -> None:
    """A planned policy is wanted now, or later than planned."""
    stored = [policy(effective_from=LATER)]
    wanted = file(draft(effective_from=start))
    stored = after(stored, plan(wanted, stored, NOW))
    begins = max(NOW, start)
    assert in_force(stored, begins) == {"p1": 2}
    assert in_force(stored, begins - timedelta(seconds=1)) == ({"p1": 1} if start > NOW else {})
    assert plan(wanted, stored, NOW) == ()


def test_removing_a_policy_takes_its_planned_versions_too() -> None:
    stored = after([policy()], plan(file(draft(rules=RPM, effective_from=LATER)), [policy()], NOW))
    stored = after(stored, plan(file(), stored, NOW))
    assert in_force(stored, NOW) == in_force(stored, LATER) == {}
    assert all(has_ended(one, NOW) for one in stored)


def test_an_end_that_has_passed_ends_and_adds_nothing() -> None:
    ended = draft(effective_from=NOW - timedelta(2), effective_to=NOW)
    assert plan(file(ended), [], NOW) == ()
    changes = plan(file(ended), [policy()], NOW)
    assert kinds(changes) == [("p1", "ended")]
    stored = after([policy()], changes)
    assert plan(file(ended), stored, NOW) == ()


def test_a_new_end_is_a_new_version_and_a_return_counts_on() -> None:
    with_end = file(draft(effective_to=LATER))
    stored = after([policy()], plan(with_end, [policy()], NOW))
    assert plan(with_end, stored, NOW) == ()
    assert in_force(stored, LATER) == {}
    (change,) = plan(file(draft()), stored, LATER)
    assert change.kind is ChangeKind.ADDED
    assert change.after is not None
    assert change.after.version == 3


def test_a_beginning_that_has_passed_is_now_and_not_history() -> None:
    (change,) = plan(file(draft(effective_from=NOW - timedelta(9))), [], NOW)
    assert change.after is not None
    assert change.after.effective_from == NOW


def test_the_diff_names_what_differs_and_only_that() -> None:
    stored = [policy("gone"), policy(rules=(*RPM, Rule(dimension=Dimension.CONCURRENT, limit=1)))]
    rules = (Rule(dimension=Dimension.RPM, limit=8),)
    lines = [describe(c) for c in plan(file(draft(rules=rules), draft("new")), stored, NOW)]
    assert lines[0] == ["- gone v1: ends 2026-11-30 12:00:00 UTC"]
    assert lines[1][0] == "+ new v1: begins 2026-11-30 12:00:00 UTC"
    assert "    total_tpm.limit: 100" in lines[1]
    assert lines[2] == [
        "~ p1 v2: begins 2026-11-30 12:00:00 UTC, replaces v1",
        "    concurrent.limit: 1 -> -",
        "    rpm.limit: 7 -> 8",
    ]


def bad_row(name: str = "p1", *, root: str | None = None, version: int = 3) -> BadRow:
    return BadRow(
        table="limit_policy",
        id=5,
        name=name,
        root=root,
        reason="no JSON",
        effect=BadEffect.LEFT_OUT,
        version=version,
    )


def test_a_row_that_cannot_be_read_ends_and_its_number_is_not_given_again() -> None:
    ended, added = plan(file(draft()), [], NOW, bad=[bad_row()], versions={"p1": 3})
    assert (ended.kind, ended.name, ended.bad) == (ChangeKind.ENDED, "p1", bad_row())
    assert describe(ended) == ["- p1: ends 2026-11-30 12:00:00 UTC; it cannot be read: no JSON"]
    assert added.after is not None
    assert added.after.version == 4
    # Also when the file does not speak of it: what is not in the file ends.
    assert kinds(plan(file(), [], NOW, bad=[bad_row()])) == [("p1", "ended")]
    assert not ended.is_same_step(replace(ended, bad=bad_row(version=4)))
    with pytest.raises(PolicyPlanError, match="p1 is a policy of root other"):
        plan(file(draft()), [], NOW, bad=[bad_row(root="other")])
