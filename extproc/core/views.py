"""A PolicySet as text: the canonical JSON that Redis keeps, and its version.

Two workers that read the same rows write the same bytes, so the version, a digest of them, tells
whether a compiled view is still what administrators said.
"""

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from extproc.core.limits import ServiceLimit
from extproc.core.policies import (
    Algorithm,
    Block,
    Dimension,
    LimitPolicy,
    Mode,
    OnExceed,
    Override,
    PolicySet,
    Rule,
    Scope,
)

_FORMAT = 1
_VERSION_BYTES = 8
_SECONDS = "%Y-%m-%dT%H:%M:%S%z"


def to_json(policies: PolicySet) -> str:
    """The same set always gives the same text, whatever order it was put together in."""
    service = policies.service
    return canonical(
        {
            "format": _FORMAT,
            "root": policies.root,
            "service": service and [service.rpm, service.tpm, int(service.enabled)],
            "policies": _sorted(map(policy_to_plain, policies.policies)),
            "blocks": _sorted(map(_block_to_plain, policies.blocks)),
            "overrides": _sorted(map(_override_to_plain, policies.overrides)),
        }
    )


def from_json(text: str) -> PolicySet:
    """The reverse of ``to_json``. Raises ValueError for anything else, such as a newer format."""
    try:
        if not text.isascii():
            raise ValueError("not a view of policies: not ASCII")
        plain = json.loads(text)
        if plain["format"] != _FORMAT:
            raise ValueError(f"format {plain['format']} is not known here")
        root, service = plain["root"], plain["service"]
        return PolicySet(
            root=root,
            service=service
            and ServiceLimit(
                service_id=root, rpm=service[0], tpm=service[1], enabled=bool(service[2])
            ),
            policies=tuple(map(_policy_from_plain, plain["policies"])),
            blocks=tuple(map(_block_from_plain, plain["blocks"])),
            overrides=tuple(map(_override_from_plain, plain["overrides"])),
        )
    except RecursionError:
        raise ValueError("not a view of policies: nested too deeply") from None
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a view of policies: {error!r:.200}") from error


def version_of(view: str) -> str:
    """16 hex digits that name the text ``view``."""
    return hashlib.blake2s(view.encode(), digest_size=_VERSION_BYTES).hexdigest()


def next_boundary(policies: PolicySet, now: datetime) -> datetime | None:
    """When next something begins or ends by itself; None when nothing will."""
    return min((at for at in _boundaries(policies) if at > now), default=None)


def _boundaries(policies: PolicySet) -> Iterator[datetime]:
    for policy in policies.policies:
        yield policy.effective_from
        if policy.effective_to is not None:
            yield policy.effective_to
        for rule in policy.rules:
            if rule.cycle_start is not None and rule.cycle_end is not None:
                yield rule.cycle_start
                yield rule.cycle_end
    for block in policies.blocks:
        if block.until is not None:
            yield block.until
    for override in policies.overrides:
        yield override.until
    for row in policies.bad:
        if row.begins is not None:
            yield row.begins


def canonical(plain: object) -> str:
    """JSON with one spelling, in ASCII."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def rule_to_plain(rule: Rule) -> dict[str, Any]:
    """A rule as JSON holds it; what is at its default is left out."""
    plain: dict[str, Any] = {"dimension": rule.dimension.value, "limit": rule.limit}
    if rule.algorithm is not Algorithm.MINUTE:
        plain["algorithm"] = rule.algorithm.value
    if rule.algorithm is Algorithm.SLIDING:
        plain["window_seconds"] = rule.window_seconds
    if rule.burst is not None:
        plain["burst"] = rule.burst
    if rule.cycle_start is not None and rule.cycle_end is not None:
        plain["cycle"] = [_time(rule.cycle_start), _time(rule.cycle_end)]
    return plain


def rule_from_plain(plain: dict[str, Any]) -> Rule:
    """The reverse of ``rule_to_plain``. Raises ValueError, KeyError or TypeError."""
    start, end = plain.get("cycle", (None, None))
    return Rule(
        dimension=Dimension(plain["dimension"]),
        limit=plain["limit"],
        algorithm=Algorithm(plain.get("algorithm", Algorithm.MINUTE)),
        window_seconds=plain.get("window_seconds", 60),
        burst=plain.get("burst"),
        cycle_start=_moment(start),
        cycle_end=_moment(end),
    )


def policy_to_plain(policy: LimitPolicy) -> dict[str, Any]:
    """A policy as JSON holds it."""
    return {
        "name": policy.name,
        "version": policy.version,
        "scope": policy.scope.value,
        "value": policy.value,
        "root": policy.root,
        "model": policy.model,
        "mode": policy.mode.value,
        "on_exceed": policy.on_exceed.value,
        "across_roots": policy.across_roots,
        "from": _time(policy.effective_from),
        "to": _time(policy.effective_to),
        "rules": _sorted(map(rule_to_plain, policy.rules)),
    }


def _policy_from_plain(plain: dict[str, Any]) -> LimitPolicy:
    effective_from = _moment(plain["from"])
    if effective_from is None:
        raise ValueError("a policy without a beginning")
    return LimitPolicy(
        name=plain["name"],
        version=plain["version"],
        scope=Scope(plain["scope"]),
        value=plain["value"],
        rules=tuple(map(rule_from_plain, plain["rules"])),
        root=plain["root"],
        model=plain["model"],
        mode=Mode(plain["mode"]),
        on_exceed=OnExceed(plain["on_exceed"]),
        across_roots=plain["across_roots"],
        effective_from=effective_from,
        effective_to=_moment(plain["to"]),
    )


def _block_to_plain(block: Block) -> dict[str, Any]:
    return {
        "scope": block.scope.value,
        "value": block.value,
        "reason": block.reason,
        "root": block.root,
        "until": _time(block.until),
    }


def _block_from_plain(plain: dict[str, Any]) -> Block:
    return Block(
        scope=Scope(plain["scope"]),
        value=plain["value"],
        reason=plain["reason"],
        root=plain["root"],
        until=_moment(plain["until"]),
    )


def _override_to_plain(override: Override) -> dict[str, Any]:
    return {
        "policy": override.policy,
        "dimension": override.dimension.value,
        "limit": override.limit,
        "until": _time(override.until),
    }


def _override_from_plain(plain: dict[str, Any]) -> Override:
    until = _moment(plain["until"])
    if until is None:
        raise ValueError("an override without an end")
    return Override(
        policy=plain["policy"],
        dimension=Dimension(plain["dimension"]),
        limit=plain["limit"],
        until=until,
    )


def _sorted(plain: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(plain, key=canonical)


def _time(moment: datetime | None) -> str | None:
    """Whole seconds: the finest that every store keeps."""
    return None if moment is None else moment.astimezone(UTC).strftime(_SECONDS)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.strptime(text, _SECONDS)
