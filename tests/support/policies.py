"""Policies for tests: short ways to write one, and strategies that make many."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from extproc.core.limits import MAX_LIMIT, ServiceLimit
from extproc.core.policies import (
    ANY,
    EACH,
    RATES,
    Algorithm,
    Block,
    Descriptor,
    Dimension,
    LimitPolicy,
    Mode,
    OnExceed,
    Override,
    PolicySet,
    Rule,
    Scope,
)

ROOT = "acme"
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
START = NOW - timedelta(days=1)


def policy(name: str = "p1", **given: Any) -> LimitPolicy:
    """A policy of one rule: 100 tokens a minute for each user."""
    fields: dict[str, Any] = {
        "version": 1,
        "scope": Scope.USER,
        "value": EACH,
        "rules": (Rule(dimension=Dimension.TOTAL_TPM, limit=100),),
        "effective_from": START,
    }
    return LimitPolicy(name=name, **(fields | given))


def policies(*of: LimitPolicy, **given: Any) -> PolicySet:
    """A set of them for the usual root, without a service limit."""
    fields: dict[str, Any] = {"root": ROOT, "service": None, "policies": of}
    return PolicySet(**(fields | given))


def descriptor(model: str = "gpt-4o", **values: str) -> Descriptor:
    """A request of user alice, or of whom is given by scope."""
    named = {Scope(name): value for name, value in (values or {"user": "alice"}).items()}
    return Descriptor(root=ROOT, values=named, requested_model=model)


USERS = ["alice", "bob", "carol:1"]
MODELS = ["gpt-4o", "gpt-4o-mini", "openai/gpt 4", "*any", "模型"]
_SCOPES = [Scope.USER, Scope.TENANT, Scope.MODEL]

moments = st.integers(-5, 5).map(lambda hours: NOW + timedelta(hours=hours))
limits = st.integers(0, 1000) | st.just(MAX_LIMIT)


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    """Any rule."""
    dimension = draw(st.sampled_from(Dimension))
    given: dict[str, Any] = {"dimension": dimension, "limit": draw(limits)}
    if dimension in RATES:
        given["algorithm"] = draw(st.sampled_from(Algorithm))
        if given["algorithm"] is Algorithm.SLIDING:
            given["window_seconds"] = draw(st.integers(1, 86_400))
        if given["algorithm"] is Algorithm.BUCKET:
            given["burst"] = draw(st.none() | st.integers(1, 1000))
    if dimension is Dimension.COST_MICROS_PER_CYCLE:
        start = draw(moments)
        given |= {"cycle_start": start, "cycle_end": start + timedelta(hours=3)}
    return Rule(**given)


@st.composite
def limit_policies(draw: st.DrawFn, *, users: st.SearchStrategy[str] | None = None) -> LimitPolicy:
    """Any policy, of few names and values, so that they meet."""
    start = draw(moments)
    scope = Scope.USER if users is not None else draw(st.sampled_from(_SCOPES))
    values = {Scope.USER: USERS, Scope.TENANT: [ROOT], Scope.MODEL: MODELS[:3]}[scope]
    root = draw(st.sampled_from([None, ROOT, "other"]))
    return LimitPolicy(
        name=draw(st.sampled_from(["a", "b", "c", "d"])),
        version=draw(st.integers(1, 3)),
        scope=scope,
        value=draw(users if users is not None else st.sampled_from([*values, ANY, EACH])),
        rules=tuple(
            draw(st.lists(rules(), min_size=1, max_size=3, unique_by=lambda rule: rule.dimension))
        ),
        root=root,
        model=draw(st.sampled_from(["*", "gpt-4o*", "gpt-4o", "*/*"])),
        mode=draw(st.sampled_from(Mode)),
        on_exceed=draw(st.sampled_from(OnExceed)),
        across_roots=root is None and draw(st.booleans()),
        effective_from=start,
        effective_to=draw(st.none() | st.integers(0, 5).map(lambda h: start + timedelta(hours=h))),
    )


blocks = st.builds(
    Block,
    scope=st.sampled_from(_SCOPES),
    value=st.sampled_from([*USERS, ROOT, "gpt-4o"]),
    reason=st.sampled_from(["", "leaked"]),
    root=st.sampled_from([None, ROOT, "other"]),
    until=st.none() | moments,
)
overrides = st.builds(
    Override,
    policy=st.sampled_from(["a", "b"]),
    dimension=st.sampled_from(Dimension),
    limit=limits,
    until=moments,
)
policy_sets = st.builds(
    PolicySet,
    root=st.just(ROOT),
    service=st.none()
    | st.builds(
        ServiceLimit, service_id=st.just(ROOT), rpm=limits, tpm=limits, enabled=st.booleans()
    ),
    # A name and a version stand for one policy, as the table has it.
    policies=st.lists(limit_policies(), max_size=8, unique_by=lambda p: (p.name, p.version)).map(
        tuple
    ),
    blocks=st.lists(blocks, max_size=3).map(tuple),
    overrides=st.lists(overrides, max_size=3).map(tuple),
)
descriptors = st.builds(
    Descriptor,
    root=st.just(ROOT),
    values=st.dictionaries(st.sampled_from([Scope.USER]), st.sampled_from(USERS)).map(
        lambda values: {Scope.TENANT: ROOT, **values}
    ),
    requested_model=st.sampled_from(MODELS),
)
