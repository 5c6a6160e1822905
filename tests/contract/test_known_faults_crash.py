"""CRASH: faults that others reported about rules without limits and keys that are shared; see
docs/known-faults.md."""

import pytest

from extproc.core.buckets import Unit
from extproc.core.reservations import Admitted
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.engine import Counters, admit, asking, minute, reject
from tests.support.policies import policy


async def test_a_view_without_a_limit_admits_and_counts_nothing(
    store: RedisReservationStore, counters: Counters
) -> None:
    """B120: a rule that was null ended the handler. Here none can be made."""
    verdict = await store.reserve(asking())
    assert isinstance(verdict, Admitted)
    assert verdict.buckets == ()
    assert counters.state() == {}
    with pytest.raises(ValueError, match="rules"):
        policy(rules=())


async def test_two_consumers_of_one_rule_have_counters_of_their_own(
    store: RedisReservationStore, counters: Counters
) -> None:
    """B120: what one uses up is not missed by the other."""
    names = ("alice", "bob", "alice.b", "ALICE")
    limits = {name: minute(f"p.rpm.user:{name}", Unit.REQUESTS, 1) for name in names}
    for name in names:
        await admit(store, limits[name])
        await reject(store, limits[name])
    assert len(counters.state()) == len(names)
