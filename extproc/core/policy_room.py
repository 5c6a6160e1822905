"""Whether one request could meet more counters than a call may hold (``MAX_BUCKETS``).

An administrator is told when policies are applied, and not by 503s later. What is counted is the
worst request that could come: it has at most one value of each scope and names one model. Named
values and models are looked at one by one; of the other globs over models those count together
which could match one name. Every moment counts at which a policy or a contract cycle begins, so
versions that follow each other are not added up.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase

from extproc.core.buckets import MAX_BUCKETS
from extproc.core.ids import ACROSS_PREFIX
from extproc.core.policies import ANY, EACH, LimitPolicy, Rule, Scope
from extproc.core.policy_plan import PolicyChange, PolicyPlanError, policies_after
from extproc.core.resolve import across_root

# A service's simple limits and a block come at any time, and must find room.
KEPT_FREE = 3
MOST_OF_POLICIES = MAX_BUCKETS - KEPT_FREE
_MAX_NAMED = 20
_WILD = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """The most counters that one request could meet at one place, and whose they are.

    ``root`` is None for a root that has no policies of its own. ``policies`` are names with their
    numbers of counters.
    """

    root: str | None
    most: int
    policies: Mapping[str, int]

    @property
    def count(self) -> int:
        """How many counters they are together."""
        return sum(self.policies.values())

    def __str__(self) -> str:
        where = "any root" if self.root is None else f"root {self.root}"
        named = sorted(self.policies.items(), key=lambda item: (-item[1], item[0]))
        names = ", ".join(f"{name} ({count})" for name, count in named[:_MAX_NAMED])
        if len(named) > _MAX_NAMED:
            names += f" and {len(named) - _MAX_NAMED} more"
        return (
            f"one request could meet {self.count} limits of policies at {where}, and at most "
            f"{self.most} have room there: {names}"
        )


def check_room(
    policies: Sequence[LimitPolicy], changes: Iterable[PolicyChange], now: datetime
) -> None:
    """Raise PolicyPlanError when ``changes`` make a place too full, or one fuller that is already.

    ``policies`` are in force or to come: all, or those of a root and of every root. Changes that
    leave less at a place are let through, or it could not be mended step by step.
    """
    before = {crowd.root: crowd.count for crowd in crowds(policies, now)}
    found = [
        crowd
        for crowd in crowds(policies_after(policies, changes), now)
        if crowd.count
        > before.get(crowd.root, 0 if _is_shared(crowd.root) else before.get(None, 0))
    ]
    if found:
        raise PolicyPlanError("policies", "; ".join(map(str, found[:_MAX_NAMED])))


def _is_shared(root: str | None) -> bool:
    return root is not None and root.startswith(ACROSS_PREFIX)


def crowds(policies: Iterable[LimitPolicy], now: datetime) -> list[Crowd]:
    """Every place where one request could meet too many counters, from ``now`` on."""
    shared: list[LimitPolicy] = []
    own: dict[str | None, list[LimitPolicy]] = defaultdict(list)
    across: dict[str, list[LimitPolicy]] = defaultdict(list)
    each: dict[Scope, list[LimitPolicy]] = defaultdict(list)
    for policy in policies:
        if not policy.across_roots:
            (shared if policy.root is None else own[policy.root]).append(policy)
        elif policy.value == EACH:
            each[policy.scope].append(policy)
        else:
            across[across_root(policy.scope, policy.value)].append(policy)
    places: list[tuple[str | None, int, list[LimitPolicy]]] = [(None, MOST_OF_POLICIES, shared)]
    places += [(root, MOST_OF_POLICIES, shared + mine) for root, mine in own.items()]
    for root, named in across.items():
        scope = named[0].scope
        more = [] if root == across_root(scope, ANY) else each[scope]
        places.append((root, MAX_BUCKETS, named + more))
    places += [
        (f"{ACROSS_PREFIX}{scope}:{EACH}", MAX_BUCKETS, found) for scope, found in each.items()
    ]
    return [
        crowd
        for root, most, found in places
        if (crowd := Crowd(root=root, most=most, policies=_worst(found, now, most=most))).count
        > most
    ]


def _worst(policies: Sequence[LimitPolicy], now: datetime, *, most: int) -> dict[str, int]:
    """Names and counters of the request that meets the most; empty when no more than ``most``."""
    best: dict[str, int] = {}
    # Almost always there is room even if all were in force at once and for every model.
    if _size(_most_met([(p, len(p.rules)) for p in policies])) <= most:
        return best
    for moment in _moments(policies, now):
        standing = _standing(policies, moment)
        if _size(_most_met(standing)) <= max(most, _size(best)):
            continue
        by_glob: dict[str, list[tuple[LimitPolicy, int]]] = defaultdict(list)
        for policy, count in standing:
            by_glob[policy.model].append((policy, count))
        for globs in _matching_globs(by_glob):
            met = _most_met([one for glob in globs for one in by_glob[glob]])
            if _size(met) > max(most, _size(best)):
                best = met
    return best


def _size(met: Mapping[str, int]) -> int:
    return sum(met.values())


def _most_met(standing: Iterable[tuple[LimitPolicy, int]]) -> dict[str, int]:
    """Of each scope the value that meets the most counters, with those of all values.

    Of versions that overlap (nothing of ours writes such) the one with more rules counts.
    """
    of_all: dict[str, int] = {}
    named: dict[Scope, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for policy, count in standing:
        target = of_all if policy.value in (ANY, EACH) else named[policy.scope][policy.value]
        target[policy.name] = max(count, target.get(policy.name, 0))
    for by_value in named.values():
        for name, count in max(by_value.values(), key=_size).items():
            of_all[name] = of_all.get(name, 0) + count
    return {name: count for name, count in of_all.items() if count}


def _moments(policies: Iterable[LimitPolicy], now: datetime) -> list[datetime]:
    """When something more can be in force than before."""
    found = {now}
    for policy in policies:
        found.add(policy.effective_from)
        found.update(rule.cycle_start for rule in policy.rules if rule.cycle_start is not None)
    return sorted(moment for moment in found if moment >= now)


def _standing(policies: Iterable[LimitPolicy], at: datetime) -> list[tuple[LimitPolicy, int]]:
    """What is in force, with its number of counters."""
    return [
        (policy, sum(_counts(rule, at) for rule in policy.rules))
        for policy in policies
        if policy.is_in_force(at)
    ]


def _counts(rule: Rule, at: datetime) -> bool:
    if rule.cycle_start is None or rule.cycle_end is None:
        return True
    return rule.cycle_start <= at < rule.cycle_end


def _matching_globs(globs: Iterable[str]) -> Iterator[list[str]]:
    """For every kind of model that can be told apart, which globs it matches, or could.

    A model is one that is named without a wildcard, or another one: of those the globs that end in
    their only asterisk match only what begins alike, and all that are less plain count as matching.
    """
    exact = {glob for glob in globs if not _WILD & set(glob)}
    others = [glob for glob in globs if glob not in exact]
    beginnings = {glob: glob[:-1] for glob in others if not _WILD & set(glob[:-1])}
    for model in exact:
        yield [model, *(glob for glob in others if fnmatchcase(model, glob))]
    for model in {"", *beginnings.values()}:
        yield [glob for glob in others if model.startswith(beginnings.get(glob, ""))]
