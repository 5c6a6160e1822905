"""What applying a file of policies would change; the rules of versions are here.

A file speaks for one root, or for all policies that belong to no root: what is in force there and
not in the file ends. Nothing that was ever in force is changed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from extproc.core.policies import BadRow, LimitPolicy
from extproc.core.views import policy_to_plain

# "Since ever": for what began before it was looked at.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ChangeKind(StrEnum):
    """What happens to a policy."""

    ADDED = "added"
    CHANGED = "changed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDraft:
    """A policy as a file says it. Of ``policy`` the version means nothing, and the beginning only
    when ``has_start``; without one it begins when it is applied."""

    policy: LimitPolicy
    has_start: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFile:
    """A whole file. ``root`` None: the policies that apply to every root."""

    root: str | None
    drafts: tuple[PolicyDraft, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """One line of a plan. ``before`` is the version that is replaced or ended, ``after`` the new
    one. All that is in force at ``at``, or would be later, ends there. With ``bad`` it is only that
    row which ends, because it cannot be read."""

    kind: ChangeKind
    at: datetime
    before: LimitPolicy | None
    after: LimitPolicy | None
    bad: BadRow | None = None

    @property
    def name(self) -> str:
        """The policy's."""
        named = self.after or self.before or self.bad
        assert named is not None
        return named.name

    def is_same_step(self, other: "PolicyChange") -> bool:
        """Whether both say the same, planned at different moments."""
        return (self.kind, self.before, self.bad) == (other.kind, other.before, other.bad) and (
            _content(self.after) == _content(other.after)
        )


class PolicyPlanError(ValueError):
    """The file cannot be applied. ``path`` is the place in the file."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


def plan(
    file: PolicyFile,
    stored: Iterable[LimitPolicy],
    now: datetime,
    *,
    bad: Iterable[BadRow] = (),
    versions: Mapping[str, int] | None = None,
) -> tuple[PolicyChange, ...]:
    """The changes that make ``file`` true from ``now`` on, sorted by name.

    ``stored`` are all versions of the file's root and of the names in the file, ``bad`` are such
    rows that cannot be read and have not ended, ``versions`` the highest numbers of such rows. They
    end now, for what the file says takes their place. Raises PolicyPlanError when a name belongs to
    another root.
    """
    versions = dict(versions or {})
    latest: dict[str, LimitPolicy] = {}
    for policy in sorted(stored, key=lambda policy: policy.version):
        versions[policy.name] = max(policy.version, versions.get(policy.name, 0))
        if not has_ended(policy, now):
            latest[policy.name] = policy
    # Ended before anything begins, so they come first and the sort keeps them there.
    spoilt = {row.name: row for row in bad}
    changes = [
        PolicyChange(kind=ChangeKind.ENDED, at=now, before=None, after=None, bad=row) for row in bad
    ]
    for index, draft in enumerate(file.drafts):
        before = latest.pop(draft.policy.name, None)
        owner = before or spoilt.get(draft.policy.name)
        if owner is not None and owner.root != file.root:
            whose = "every root" if owner.root is None else f"root {owner.root}"
            raise PolicyPlanError(
                f"policies[{index}].name", f"{owner.name} is a policy of {whose}: choose another"
            )
        version = max(0, versions.get(draft.policy.name, 0)) + 1
        change = _change(draft, before, version=version, now=now)
        if change is not None:
            changes.append(change)
    changes += [
        PolicyChange(kind=ChangeKind.ENDED, at=now, before=policy, after=None)
        for policy in latest.values()
        if policy.root == file.root
    ]
    return tuple(sorted(changes, key=lambda change: change.name))


def policies_after(
    policies: Iterable[LimitPolicy], changes: Iterable[PolicyChange]
) -> list[LimitPolicy]:
    """What is in force or to come once ``changes`` are made."""
    changed = {change.name: change for change in changes if change.bad is None}
    found = []
    for policy in policies:
        change, end = changed.get(policy.name), policy.effective_to
        if change is not None and (end is None or end > change.at):
            end = max(policy.effective_from, change.at)
        if end is None or end > policy.effective_from:
            found.append(replace(policy, effective_to=end))
    return found + [change.after for change in changed.values() if change.after is not None]


def has_ended(policy: LimitPolicy, now: datetime) -> bool:
    """Whether a version is in force neither at ``now`` nor later."""
    end = policy.effective_to
    return end is not None and (end <= now or end <= policy.effective_from)


def describe(change: PolicyChange) -> list[str]:
    """The change as lines of a diff."""
    before, after = change.before, change.after
    if change.bad is not None:
        row = change.bad
        return [f"- {row.name}: ends {_time(change.at)}; it cannot be read: {row.reason}"]
    if after is None:
        assert before is not None
        return [f"- {before.name} v{before.version}: ends {_time(change.at)}"]
    title = f"{after.name} v{after.version}: begins {_time(after.effective_from)}"
    if change.kind is ChangeKind.ADDED or before is None:
        return [f"+ {title}", *(f"    {name}: {value}" for name, value in _fields(after).items())]
    old, new = _fields(before), _fields(after)
    return [
        f"~ {title}, replaces v{before.version}",
        *(
            f"    {name}: {old.get(name, '-')} -> {new.get(name, '-')}"
            for name in dict.fromkeys([*old, *new])
            if old.get(name) != new.get(name)
        ),
    ]


def _change(
    draft: PolicyDraft, before: LimitPolicy | None, *, version: int, now: datetime
) -> PolicyChange | None:
    wanted = draft.policy
    if has_ended(wanted, now):
        if before is None:
            return None
        return PolicyChange(kind=ChangeKind.ENDED, at=now, before=before, after=None)
    start = max(now, wanted.effective_from) if draft.has_start else now
    if before is not None:
        # A beginning in the past says no more than "already".
        begins_alike = max(now, before.effective_from) == start
        if begins_alike and _content(before) == _content(wanted):
            return None
    return PolicyChange(
        kind=ChangeKind.ADDED if before is None else ChangeKind.CHANGED,
        at=start,
        before=before,
        after=replace(wanted, version=version, effective_from=start),
    )


def _content(policy: LimitPolicy | None) -> LimitPolicy | None:
    """What a policy says, without when it began to be said."""
    return policy and replace(
        policy,
        version=1,
        effective_from=EPOCH,
        rules=tuple(sorted(policy.rules, key=lambda rule: rule.dimension)),
    )


def _fields(policy: LimitPolicy) -> Mapping[str, str]:
    return dict(_flat(policy))


def _flat(policy: LimitPolicy) -> Iterator[tuple[str, str]]:
    plain = policy_to_plain(policy)
    for name in ("scope", "value", "model", "mode", "on_exceed", "across_roots"):
        yield name, str(plain[name]).lower() if name == "across_roots" else str(plain[name])
    for rule in plain["rules"]:
        dimension = rule.pop("dimension")
        for name, value in rule.items():
            yield f"{dimension}.{name}", str(value)
    if policy.effective_to is not None:
        yield "effective_to", _time(policy.effective_to)


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
