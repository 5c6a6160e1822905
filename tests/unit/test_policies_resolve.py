"""Which counters a request meets."""

from datetime import datetime, timedelta
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.buckets import Bucket, BucketKind, Period, Unit
from extproc.core.ids import is_valid_id
from extproc.core.limits import ServiceLimit
from extproc.core.policies import (
    ANY,
    EACH,
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
from extproc.core.resolve import BLOCK_LABEL, Resolved, across_root, resolve
from extproc.stores.views import bucket_key
from tests.support.policies import (
    NOW,
    ROOT,
    USERS,
    descriptor,
    descriptors,
    limit_policies,
    policies,
    policy,
    policy_sets,
)
from tests.unit.test_policies_views import shuffled


def of(found: PolicySet, who: Descriptor | None = None, *, hours: float = 0) -> Resolved:
    now = NOW + timedelta(hours=hours)
    return resolve(found, who or descriptor(), now, key=bucket_key)


def everything(found: Resolved) -> list[Bucket]:
    return [*found.buckets, *(b for buckets in found.across.values() for b in buckets)]


def keys_of(found: Resolved) -> list[str]:
    return [bucket.key for bucket in everything(found)]


@given(policy_sets, descriptors, st.integers())
def test_the_order_of_policies_does_not_matter(
    found: PolicySet, who: Descriptor, seed: int
) -> None:
    one, other = of(found, who), of(shuffled(found, seed), who)
    assert (one.buckets, one.blocked_by) == (other.buckets, other.blocked_by)
    assert list(one.across.items()) == list(other.across.items())


def applies(p: LimitPolicy, who: Descriptor) -> bool:
    """The rule in plain words, for every policy by itself."""
    value = who.requested_model if p.scope is Scope.MODEL else who.values.get(p.scope)
    return (
        value is not None
        and p.root in (None, who.root)
        and (p.value in (ANY, EACH) or p.value == value)
        and fnmatchcase(who.requested_model, p.model)
        and p.effective_from <= NOW
        and (p.effective_to is None or p.effective_to > NOW)
    )


@given(policy_sets, descriptors)
def test_all_that_apply_are_there_once_and_so_the_strictest(
    found: PolicySet, who: Descriptor
) -> None:
    applicable = [p for p in found.policies if applies(p, who)]
    newest = {p.name: p for p in sorted(applicable, key=lambda p: p.version)}
    wanted: dict[str, int] = {}
    for p in newest.values():
        for rule in p.rules:
            cycle = (rule.cycle_start, rule.cycle_end)
            if None not in cycle and not cycle[0] <= NOW < cycle[1]:  # type: ignore[operator]
                continue
            standing = [
                (o.until, o.limit)
                for o in found.overrides
                if (o.policy, o.dimension) == (p.name, rule.dimension) and o.until > NOW
            ]
            wanted[f"{p.name}/{rule.dimension}"] = min(standing)[1] if standing else rule.limit
    if found.service is not None:
        wanted |= {
            "service_limit/rpm": found.service.rpm,
            "service_limit/total_tpm": found.service.tpm,
        }
    resolved = of(found, who)
    if resolved.blocked_by is not None:
        wanted[f"{BLOCK_LABEL}{resolved.blocked_by.scope}"] = 0
    buckets = everything(resolved)
    assert {bucket.label: bucket.limit for bucket in buckets} == wanted
    assert len(buckets) == len({bucket.key for bucket in buckets}) == len(wanted)


@given(st.lists(limit_policies(users=st.sampled_from(USERS)), max_size=8))
def test_a_policy_for_another_user_never_yields_a_bucket(made: list[LimitPolicy]) -> None:
    found = policies(*made)
    assert everything(of(found, descriptor(user="mallory"))) == []
    assert everything(of(found, descriptor(tenant=ROOT))) == []
    for user in USERS:
        subjects = {bucket.subject for bucket in everything(of(found, descriptor(user=user)))}
        assert subjects <= {f"user:{user}"}


def test_each_has_a_counter_a_value_and_any_one_for_all() -> None:
    each = policies(policy())
    assert keys_of(of(each)) == [f"rate:{{{ROOT}}}:p1.total_tpm.user:alice:"]
    assert keys_of(of(each, descriptor(user="bob"))) == [f"rate:{{{ROOT}}}:p1.total_tpm.user:bob:"]
    shared = policies(policy(value=ANY))
    assert keys_of(of(shared)) == keys_of(of(shared, descriptor(user="bob")))
    assert keys_of(of(shared, descriptor(tenant=ROOT))) == []  # no user at all


def test_the_service_limit_is_one_policy_in_its_old_windows() -> None:
    service = ServiceLimit(service_id=ROOT, rpm=5, tpm=50)
    found = of(policies(policy(rules=(Rule(dimension=Dimension.RPM, limit=3),)), service=service))
    assert [(b.label, b.unit, b.limit, b.key) for b in found.buckets] == [
        ("p1/rpm", Unit.REQUESTS, 3, f"rate:{{{ROOT}}}:p1.rpm.user:alice:"),
        ("service_limit/rpm", Unit.REQUESTS, 5, f"rate:rpm:{{{ROOT}}}:"),
        ("service_limit/total_tpm", Unit.TOTAL, 50, f"rate:tpm:{{{ROOT}}}:"),
    ]


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (
            Rule(
                dimension=Dimension.INPUT_TPM,
                limit=9,
                algorithm=Algorithm.SLIDING,
                window_seconds=7,
            ),
            {"kind": BucketKind.SLIDING, "unit": Unit.INPUT, "window_ms": 7000},
        ),
        (
            Rule(dimension=Dimension.RPM, limit=9, algorithm=Algorithm.BUCKET, burst=4),
            {"kind": BucketKind.BUCKET, "capacity": 4, "refill_per_minute": 9},
        ),
        (
            Rule(dimension=Dimension.OUTPUT_TPM, limit=9, algorithm=Algorithm.BUCKET),
            {"unit": Unit.OUTPUT, "capacity": 9, "refill_per_minute": 9},
        ),
        (
            Rule(dimension=Dimension.RPM, limit=0, algorithm=Algorithm.BUCKET, burst=4),
            {"capacity": 0, "refill_per_minute": 0},
        ),
        (
            Rule(dimension=Dimension.CONCURRENT, limit=9),
            {"kind": BucketKind.SLOTS, "unit": Unit.SLOT, "period": Period.NONE},
        ),
        (
            Rule(dimension=Dimension.TOKENS_PER_DAY, limit=9),
            {"kind": BucketKind.QUOTA, "unit": Unit.TOTAL, "period": Period.DAY},
        ),
        (
            Rule(dimension=Dimension.COST_MICROS_PER_MONTH, limit=9),
            {"kind": BucketKind.QUOTA, "unit": Unit.COST, "period": Period.MONTH},
        ),
        (
            Rule(
                dimension=Dimension.COST_MICROS_PER_CYCLE,
                limit=9,
                cycle_start=NOW,
                cycle_end=NOW + timedelta(hours=1),
            ),
            {
                "period": Period.CYCLE,
                "period_id": "20261130T120000",
                "period_end_ms": round((NOW.timestamp() + 3600) * 1000),
            },
        ),
    ],
)
def test_a_rule_becomes_a_counter(rule: Rule, wanted: dict[str, object]) -> None:
    (bucket,) = of(policies(policy(rules=(rule,)))).buckets
    assert {name: getattr(bucket, name) for name in wanted} == wanted


def test_a_cycle_counts_only_while_it_lasts() -> None:
    rule = Rule(
        dimension=Dimension.COST_MICROS_PER_CYCLE,
        limit=9,
        cycle_start=NOW,
        cycle_end=NOW + timedelta(hours=1),
    )
    found = policies(policy(rules=(rule,)))
    assert [len(of(found, hours=h).buckets) for h in (-0.1, 0, 0.9, 1)] == [0, 1, 1, 0]


def test_mode_and_overage_go_with_the_counter() -> None:
    (bucket,) = of(policies(policy(mode=Mode.SHADOW, on_exceed=OnExceed.RECORD))).buckets
    assert (bucket.enforced, bucket.refuses) == (False, False)
    (bucket,) = of(policies(policy())).buckets
    assert (bucket.enforced, bucket.refuses) == (True, True)


def test_dates_are_half_open_and_the_higher_version_counts() -> None:
    noon = NOW + timedelta(hours=1)
    old = policy(effective_to=noon)
    new = policy(
        version=2, effective_from=noon, rules=(Rule(dimension=Dimension.TOTAL_TPM, limit=7),)
    )
    for hours, limit in ((0.99, 100), (1, 7)):
        assert [b.limit for b in of(policies(old, new), hours=hours).buckets] == [limit]
    overlapping = policies(policy(), policy(version=2, rules=new.rules))
    assert [b.limit for b in of(overlapping).buckets] == [7]


def test_an_override_holds_until_its_end() -> None:
    until = NOW + timedelta(hours=1)
    override = Override(policy="p1", dimension=Dimension.TOTAL_TPM, limit=500, until=until)
    found = policies(policy(), policy("p2"), overrides=(override,))
    assert [b.limit for b in of(found).buckets] == [500, 100]
    assert [b.limit for b in of(found, hours=1).buckets] == [100, 100]


def test_a_model_is_chosen_by_glob_and_with_case() -> None:
    found = policies(policy(model="gpt-4*"))
    models = ["gpt-4o", "gpt-4", "GPT-4o", "gpt-3", ""]
    assert [len(of(found, descriptor(m)).buckets) for m in models] == [1, 1, 0, 0, 0]
    one = policies(policy(scope=Scope.MODEL, value="openai/gpt 4"))
    assert len(of(one, descriptor("openai/gpt 4")).buckets) == 1
    assert len(of(one, descriptor("openai/gpt-4")).buckets) == 0


@pytest.mark.parametrize(
    "model", ["openai/gpt 4", "a{b}c", "模型", "\ud800", "x" * 5000, ":any", "*any", "a\nb"]
)
def test_text_of_a_client_enters_keys_as_a_hash_only(model: str) -> None:
    found = policies(policy(scope=Scope.MODEL), policy("p2", scope=Scope.MODEL, across_roots=True))
    resolved = of(found, descriptor(model))
    for bucket in everything(resolved):
        tag, _, suffix = bucket.key.partition("{")[2].partition("}")
        assert is_valid_id(tag)
        assert is_valid_id(suffix.strip(":"))
        assert len(bucket.subject) <= 80
        assert bucket.subject.isprintable()
    other = of(found, descriptor(model + "."))
    assert not {*keys_of(resolved)} & {*keys_of(other)}


def test_a_value_cannot_pretend_to_be_a_hash() -> None:
    found = policies(policy(scope=Scope.MODEL))
    (hashed,) = keys_of(of(found, descriptor("a b")))
    pretended = hashed.partition("model:")[2].removesuffix(":")
    assert keys_of(of(found, descriptor(pretended))) != [hashed]


def test_a_policy_across_roots_lives_at_a_root_of_its_own() -> None:
    found = policies(
        policy("z", scope=Scope.PROVIDER, value="openai", across_roots=True),
        policy("y", scope=Scope.USER, value=ANY, across_roots=True),
        policy("x"),
    )
    resolved = of(found, descriptor(provider="openai", user="alice"))
    assert [b.label for b in resolved.buckets] == ["x/total_tpm"]
    shared = "across:provider:openai"
    assert list(resolved.across) == [shared, "across:user::any"]
    assert [b.key for b in resolved.across[shared]] == [
        f"rate:{{{shared}}}:z.total_tpm.provider:openai:"
    ]
    assert is_valid_id(across_root(Scope.APPLICATION, "x" * 128))
    assert across_root(Scope.USER, ANY) != across_root(Scope.USER, "any")


def test_policies_of_another_root_do_not_apply() -> None:
    found = policies(
        policy(root="other"), blocks=(Block(scope=Scope.USER, value="alice", root="other"),)
    )
    assert of(found) == Resolved(buckets=(), across={})


def test_a_block_names_itself_until_its_end() -> None:
    for_good = Block(scope=Scope.MODEL, value="gpt-4o", reason="banned")
    for_now = Block(scope=Scope.USER, value="alice", until=NOW + timedelta(hours=1))
    assert of(policies(blocks=(for_now,))).blocked_by == for_now
    assert of(policies(blocks=(for_now,)), hours=1).blocked_by is None
    assert of(policies(blocks=(for_now, for_good))).blocked_by == for_good
    assert of(policies(blocks=(for_now,)), descriptor(user="bob")).blocked_by is None


def test_the_counter_of_a_block_says_what_is_blocked_and_not_why() -> None:
    """The label is for metrics, which know scopes only; the reason is the operator's."""
    for value, shown in (("gpt-4o", "gpt-4o"), ("x" * 200, "x" * 64)):
        block = Block(scope=Scope.MODEL, value=value, reason="leaked key")
        (bucket,) = of(policies(blocks=(block,)), descriptor(value)).buckets
        assert (bucket.label, bucket.subject) == (f"{BLOCK_LABEL}model", f"model:{shown}")
        assert "leaked" not in repr(bucket)


def test_policies_of_others_are_not_even_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []

    def note(self: LimitPolicy, now: datetime) -> bool:
        looked_at.append(self.name)
        return True

    others = [policy(f"p{i}", value=f"user-{i}") for i in range(1000)]
    found = policies(*others, policy("mine"))
    monkeypatch.setattr(LimitPolicy, "is_in_force", note)
    assert [b.label for b in of(found).buckets] == ["mine/total_tpm"]
    assert looked_at == ["mine"]
