"""Who and what a request is, from its headers."""

from envoy.config.core.v3.base_pb2 import Metadata
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.policies import MAX_VALUE_LENGTH, PolicySet, Scope, check_value
from extproc.core.resolve import resolve
from extproc.envoy_io.descriptor import describe
from extproc.envoy_io.identity import FromHeader
from extproc.stores.views import bucket_key
from tests.support.policies import NOW, ROOT, policy


def value_of(user: str) -> str | None:
    found = describe(
        {Scope.USER: [FromHeader("x-user")]},
        root=ROOT,
        model="gpt-4o",
        wire_format="openai_chat",
        header={"x-user": user}.get,
        metadata=Metadata(),
    )
    return found.values.get(Scope.USER)


def counter_of(user: str) -> str:
    found = describe(
        {Scope.USER: [FromHeader("x-user")]},
        root=ROOT,
        model="gpt-4o",
        wire_format="openai_chat",
        header={"x-user": user}.get,
        metadata=Metadata(),
    )
    policies = PolicySet(root=ROOT, service=None, policies=(policy(),))
    (bucket,) = resolve(policies, found, NOW, key=bucket_key).buckets
    return bucket.key


def test_values_are_taken_as_they_are_up_to_what_a_policy_can_name() -> None:
    longest = "x" * MAX_VALUE_LENGTH
    check_value(longest, may_be_wild=False)
    assert value_of(longest) == longest
    assert value_of("") is None


def test_long_values_differ_by_their_ends_and_are_bounded() -> None:
    same = "x" * 5000
    one, other = value_of(same + "1"), value_of(same + "2")
    assert one is not None
    assert one != other
    assert one == value_of(same + "1")
    assert counter_of(same + "1") != counter_of(same + "2")
    assert value_of("x" * 60_000 + "\ud800") != value_of("x" * 60_000 + "?")


@given(st.text(min_size=MAX_VALUE_LENGTH + 1, max_size=MAX_VALUE_LENGTH * 3))
def test_no_value_can_pretend_to_be_a_long_one(text: str) -> None:
    found = value_of(text)
    assert found is not None
    assert len(found) == MAX_VALUE_LENGTH + 1  # no whole value is so long, and no policy's
    assert value_of(found) != found
