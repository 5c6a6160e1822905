"""Policies as canonical text."""

import json
import random
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.policies import (
    BadEffect,
    BadRow,
    Block,
    Dimension,
    Override,
    PolicySet,
    Rule,
    Scope,
)
from extproc.core.views import from_json, next_boundary, to_json, version_of
from tests.support.policies import NOW, START, policies, policy, policy_sets


def shuffled(found: PolicySet, seed: int) -> PolicySet:
    def mix(items: Any) -> tuple[Any, ...]:
        return tuple(random.Random(seed).sample(items, len(items)))

    return PolicySet(
        root=found.root,
        service=found.service,
        policies=mix(found.policies),
        blocks=mix(found.blocks),
        overrides=mix(found.overrides),
    )


@given(policy_sets, st.integers())
def test_text_is_read_back_and_does_not_depend_on_order(found: PolicySet, seed: int) -> None:
    text = to_json(found)
    assert text == to_json(shuffled(found, seed))
    again = from_json(text)
    assert to_json(again) == text
    assert again.service == found.service
    assert set(again.blocks) == set(found.blocks)
    assert set(again.overrides) == set(found.overrides)
    by_version = {(p.name, p.version): p for p in again.policies}
    for one in found.policies:
        other = by_version[one.name, one.version]
        assert set(other.rules) == set(one.rules)
        for field in ("scope", "value", "root", "model", "mode", "on_exceed", "across_roots"):
            assert getattr(other, field) == getattr(one, field)
        assert (other.effective_from, other.effective_to) == (one.effective_from, one.effective_to)


def test_the_version_tells_any_difference() -> None:
    texts = [
        to_json(policies()),
        to_json(policies(policy())),
        to_json(policies(policy(version=2))),
        to_json(policies(policy(), blocks=(Block(scope=Scope.USER, value="bob"),))),
        to_json(policies(policy(), root="other")),
    ]
    versions = {version_of(text) for text in texts}
    assert len(versions) == len(texts)
    assert all(len(version) == 16 and int(version, 16) >= 0 for version in versions)


def wrong_texts() -> list[str]:
    plain = json.loads(to_json(policies(policy())))
    return [
        "",
        "[]",
        "{}",
        "null",
        json.dumps(plain | {"format": 2}),
        json.dumps(plain | {"policies": [{"name": "x"}]}),
        json.dumps(plain | {"service": [1]}),
        json.dumps(plain | {"blocks": [{"scope": "planet", "value": "x"}]}),
        json.dumps(plain | {"policies": ["x"]}),
        json.dumps(plain | {"policies": [plain["policies"][0] | {"rules": ["x"]}]}),
        json.dumps(plain | {"policies": [plain["policies"][0] | {"model": 5}]}),
        json.dumps(plain | {"root": "acme\x80"}, ensure_ascii=False),
        "[" * 20_000,
        '{"a":' * 20_000,
        "9" * 20_000,
    ]


@pytest.mark.parametrize(
    "moment",
    [
        datetime.strptime("9999-12-31T23:59:59-1400", "%Y-%m-%dT%H:%M:%S%z"),
        datetime.strptime("0001-01-01T00:00:00+1400", "%Y-%m-%dT%H:%M:%S%z"),
        NOW.replace(tzinfo=None),
    ],
    ids=str,
)
def test_a_time_that_is_none_in_utc_is_refused(moment: datetime) -> None:
    rule: dict[str, Any] = {"dimension": Dimension.COST_MICROS_PER_CYCLE, "limit": 1}
    for make in (
        lambda: Rule(**rule, cycle_start=NOW, cycle_end=moment),
        lambda: Rule(**rule, cycle_start=moment, cycle_end=NOW),
        lambda: policy(effective_from=moment),
        lambda: policy(effective_to=moment),
        lambda: Block(scope=Scope.USER, value="bob", until=moment),
        lambda: Override(policy="p", dimension=Dimension.RPM, limit=1, until=moment),
    ):
        with pytest.raises(ValueError, match=r"time zone|in UTC"):
            make()


@pytest.mark.parametrize("text", wrong_texts())
def test_what_is_no_view_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any text will do
        from_json(text)


def test_the_next_boundary_is_the_first_to_come_of_all_kinds() -> None:
    def at(hours: int) -> Any:
        return NOW + timedelta(hours=hours)

    kinds: list[PolicySet] = [
        policies(policy(effective_from=at(2))),
        policies(policy(effective_to=at(2))),
        policies(blocks=(Block(scope=Scope.USER, value="bob", until=at(2)),)),
        policies(overrides=(Override(policy="p1", dimension=Dimension.RPM, limit=1, until=at(2)),)),
    ]
    for found in kinds:
        assert next_boundary(found, NOW) == at(2)
        assert next_boundary(found, at(2)) is None
    assert next_boundary(policies(policy()), START - timedelta(1)) == START
    both = policies(policy(effective_to=at(2)), policy("p2", effective_to=at(1)))
    assert next_boundary(both, NOW) == at(1)
    assert next_boundary(policies(), NOW) is None
    bad = BadRow(
        table="limit_policy",
        id=1,
        name="p",
        root=None,
        reason="x",
        effect=BadEffect.LEFT_OUT,
        begins=at(2),
    )
    assert next_boundary(policies(bad=(bad,)), NOW) == at(2)
