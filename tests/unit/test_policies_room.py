"""How many counters one request could meet, told before it comes."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.buckets import MAX_BUCKETS
from extproc.core.limits import ServiceLimit
from extproc.core.policies import (
    ANY,
    EACH,
    Block,
    Descriptor,
    Dimension,
    LimitPolicy,
    PolicySet,
    Rule,
    Scope,
)
from extproc.core.policy_plan import ChangeKind, PolicyChange, PolicyPlanError, policies_after
from extproc.core.policy_room import KEPT_FREE, MOST_OF_POLICIES, check_room, crowds
from extproc.core.resolve import resolve
from extproc.stores.views import bucket_key
from tests.support.policies import NOW, ROOT, descriptor, descriptors, policy, policy_sets

PAIR = (
    Rule(dimension=Dimension.RPM, limit=1),
    Rule(dimension=Dimension.TOTAL_TPM, limit=1),
)


def many(count: int, **given: Any) -> list[LimitPolicy]:
    """So many counters, two a policy."""
    fields: dict[str, Any] = {"rules": PAIR} | given
    return [policy(f"p{i}", **fields) for i in range(count // 2)]


def counted(found: list[LimitPolicy], now: datetime = NOW) -> dict[str | None, int]:
    return {crowd.root: crowd.count for crowd in crowds(found, now)}


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every place that holds a counter is told."""
    monkeypatch.setattr("extproc.core.policy_room.MOST_OF_POLICIES", 0)
    monkeypatch.setattr("extproc.core.policy_room.MAX_BUCKETS", 0)


@pytest.mark.usefixtures("no_room")
@given(policy_sets, descriptors, st.integers(0, 10))
def test_no_request_meets_more_than_was_told(found: PolicySet, who: Descriptor, hours: int) -> None:
    told = counted(list(found.policies))
    alone = replace(found, service=None, blocks=())
    met = resolve(alone, who, NOW + timedelta(hours=hours), key=bucket_key)
    assert len(met.buckets) <= told.get(ROOT, told.get(None, 0))
    for root, buckets in met.across.items():
        scope = root.split(":")[1]
        assert len(buckets) <= told.get(root, told.get(f"across:{scope}:{EACH}", 0))


def test_a_full_place_has_room_for_a_service_limit_and_a_block() -> None:
    full = [*many(MOST_OF_POLICIES - 1), policy("last")]
    assert crowds(full, NOW) == []
    met = resolve(
        PolicySet(
            root=ROOT,
            service=ServiceLimit(service_id=ROOT, rpm=1, tpm=1),
            policies=tuple(full),
            blocks=(Block(scope=Scope.USER, value="alice"), Block(scope=Scope.MODEL, value="m")),
        ),
        descriptor("m"),
        NOW,
        key=bucket_key,
    )
    assert len(met.buckets) == MAX_BUCKETS == MOST_OF_POLICIES + KEPT_FREE
    (crowd,) = crowds([*full, policy("more")], NOW)
    assert (crowd.root, crowd.count, crowd.most) == (None, MOST_OF_POLICIES + 1, MOST_OF_POLICIES)
    text = f"{MOST_OF_POLICIES + 1} limits of policies at any root, and at most {MOST_OF_POLICIES}"
    assert text in str(crowd)
    assert "p0 (2), p1 (2)" in str(crowd)
    assert str(crowd).endswith("more")


@pytest.mark.parametrize(
    ("split", "count"),
    [
        ({"value": EACH}, 80),
        ({"value": ANY}, 80),
        ({"value": "alice"}, 80),
        ({"scope": Scope.AGENT}, 80),  # a request may have both
        ({"value": "bob"}, None),  # a request has one user
        ({"model": "claude-1"}, 80),  # which gpt-* does not match, but the others are for all
    ],
)
def test_what_can_meet_in_one_request_is_added_up(split: dict[str, Any], count: int | None) -> None:
    here = [replace(p, name=f"a{p.name}") for p in many(40, value="alice")]
    there = many(40, **({"value": "alice"} | split))
    assert counted([*here, *there]).get(None) == count


@pytest.mark.parametrize(
    ("one", "other", "can_meet"),
    [
        ("gpt-4o", "gpt-4", False),
        ("gpt-4o", "gpt-4*", True),
        ("gpt-4o", "claude*", False),
        ("gpt-4*", "gpt-*", True),
        ("gpt-4*", "claude-*", False),
        ("gpt-4*", "*mini", True),
        ("*-a", "*-b", True),  # as if: only plain beginnings are told apart
        ("gpt-?", "gpt-4*", True),
        ("gpt-[45]", "gpt-6", False),
        ("*", "x", True),
    ],
)
def test_models_that_cannot_be_one_are_not_added_up(one: str, other: str, can_meet: bool) -> None:
    here = [replace(p, name=f"a{p.name}") for p in many(40, model=one)]
    assert (crowds([*here, *many(40, model=other)], NOW) != []) is can_meet
    assert (crowds([*many(40, model=other), *here], NOW) != []) is can_meet


def test_many_models_with_limits_of_their_own_have_room() -> None:
    assert crowds([policy(f"p{i}", model=f"model-{i}", rules=PAIR) for i in range(500)], NOW) == []


def test_versions_that_follow_each_other_are_counted_once() -> None:
    later = NOW + timedelta(hours=1)
    old = many(40, effective_to=later)
    new = [replace(p, version=2, effective_from=later, effective_to=None) for p in old]
    assert crowds([*old, *new], NOW) == []
    others = [replace(p, name=f"b{p.name}") for p in new]
    assert crowds([*old, *others], NOW) == []
    assert counted([*others, *many(40)]) == {None: 80}  # only from later on
    assert crowds([*old, *many(40)], later) == []


def test_a_cycle_counts_while_it_lasts() -> None:
    def cycles(name: str, hours: int) -> list[LimitPolicy]:
        start = NOW + timedelta(hours=hours)
        rule = Rule(
            dimension=Dimension.COST_MICROS_PER_CYCLE,
            limit=1,
            cycle_start=start,
            cycle_end=start + timedelta(hours=2),
        )
        return [policy(f"{name}{i}", rules=(rule,)) for i in range(40)]

    assert crowds([*cycles("a", 1), *cycles("b", 3)], NOW) == []
    assert counted([*cycles("a", 1), *cycles("b", 2)]) == {None: 80}


def test_each_root_is_looked_at_with_what_is_for_every_root() -> None:
    shared = many(40)
    mine = [replace(p, name=f"m{p.name}", root=ROOT) for p in many(40)]
    theirs = [replace(p, name=f"t{p.name}", root="other") for p in many(20)]
    assert counted([*shared, *mine, *theirs]) == {ROOT: 80}
    assert "at root acme" in str(crowds([*shared, *mine, *theirs], NOW)[0])


def test_places_across_roots_are_full_by_themselves() -> None:
    def across(name: str, count: int, value: str) -> list[LimitPolicy]:
        found = many(count, value=value, scope=Scope.PROVIDER, across_roots=True)
        return [replace(p, name=f"{name}{p.name}") for p in found]

    assert crowds([*many(60), *across("a", 64, "openai"), *across("b", 64, ANY)], NOW) == []
    assert counted(across("a", 66, "openai")) == {"across:provider:openai": 66}
    assert counted([*across("a", 40, "openai"), *across("b", 40, EACH)]) == {
        "across:provider:openai": 80
    }
    assert counted(across("a", 66, EACH)) == {"across:provider:*each": 66}
    assert counted(across("a", 66, ANY)) == {"across:provider::any": 66}


def added(*of: LimitPolicy) -> list[PolicyChange]:
    return [
        PolicyChange(
            kind=ChangeKind.ADDED, at=NOW, before=None, after=replace(p, effective_from=NOW)
        )
        for p in of
    ]


def test_a_change_that_leaves_no_room_is_refused_and_names_the_policies() -> None:
    check_room(many(60), added(policy("last")), NOW)
    with pytest.raises(PolicyPlanError, match=r"could meet 62 limits.*: p0 ") as caught:
        check_room(many(60), added(policy("x1"), policy("x2")), NOW)
    assert caught.value.path == "policies"


def test_a_place_that_is_too_full_can_be_mended_step_by_step() -> None:
    stored = many(80)
    end = PolicyChange(kind=ChangeKind.ENDED, at=NOW, before=stored[0], after=None)
    check_room(stored, [end], NOW)
    check_room(stored, [end, *added(policy("new", rules=PAIR))], NOW)
    with pytest.raises(PolicyPlanError):
        check_room(stored, added(policy("new")), NOW)
    mine = replace(policy("mine"), root=ROOT)
    with pytest.raises(PolicyPlanError):
        check_room(stored, added(mine), NOW)
    across = policy("a", scope=Scope.PROVIDER, across_roots=True)
    check_room(stored, added(across), NOW)


def test_what_changes_leave_in_force() -> None:
    later = NOW + timedelta(hours=1)
    old, planned = policy(), policy(version=2, effective_from=later)
    new = policy(version=3, effective_from=NOW)
    change = PolicyChange(kind=ChangeKind.CHANGED, at=NOW, before=planned, after=new)
    found = policies_after([replace(old, effective_to=later), planned, policy("q")], [change])
    assert found == [replace(old, effective_to=NOW), policy("q"), new]


def test_of_the_values_of_a_scope_the_one_with_most_counters_counts() -> None:
    few = [replace(p, name=f"f{p.name}") for p in many(20, value="bob")]
    most = [replace(p, name=f"m{p.name}") for p in many(50, value="alice")]
    for_all = [replace(p, name=f"a{p.name}") for p in many(20, value=ANY)]
    for found in ([*few, *most, *for_all], [*most, *few, *for_all]):
        assert counted(found) == {None: 70}
