"""Quotas in Redis beside the ledger: what is corrected, and what is left alone."""

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.drift import Expected, Reading, Why, corrections, expected
from extproc.core.policies import Dimension, PolicySet, Scope
from extproc.core.resolve import PolicyIndex
from extproc.stores.views import bucket_key
from tests.unit.ledger_cases import row
from tests.unit.test_replay import policy

DAY = ("quota:{acme}:p1.cost_micros_per_day.user:alice:", "20261201")


def index_of(root: str) -> PolicyIndex:
    policies = (
        policy(Dimension.COST_MICROS_PER_DAY, 1000),
        policy(Dimension.TOKENS_PER_MONTH, 1000, name="p2", scope=Scope.SERVICE),
        policy(Dimension.RPM, 1000, name="p3"),
    )
    return PolicyIndex(PolicySet(root=root, service=None, policies=policies), key=bucket_key)


def test_sums_stand_at_the_keys_of_redis() -> None:
    rows = [
        row(1),
        row(2, at="2026-12-02T00:00:00"),
        row(1, revision=2, cost_micros=-50, tokens={}),
    ]
    told = expected(rows, index_of)
    assert {place: one.used for place, one in told.items()} == {
        DAY: 100,
        (DAY[0], "20261202"): 150,
        ("quota:{acme}:p2.tokens_per_month.service:acme:", "202612"): 220,
    }
    assert told[DAY].label == "p1/cost_micros_per_day"


def test_counters_that_agree_need_nothing() -> None:
    told = expected([row()], index_of)
    readings = [Reading(key=k, period=p, used=one.used) for (k, p), one in told.items()]
    assert corrections(readings, told) == ()


def test_a_correction_says_how_much_and_why() -> None:
    told = {DAY: expected([row()], index_of)[DAY]}
    for used, change, why in ((140, 10, Why.TOO_LOW), (170, -20, Why.TOO_HIGH)):
        (found,) = corrections([Reading(key=DAY[0], period=DAY[1], used=used)], told)
        assert (found.was, found.ledger, found.change, found.why) == (used, 150, change, why)
    (lost,) = corrections([], told)
    assert (lost.change, lost.why) == (150, Why.LOST)


def test_what_is_not_written_yet_is_no_drift() -> None:
    told = {DAY: expected([row()], index_of)[DAY]}
    reading = Reading(key=DAY[0], period=DAY[1], used=160)
    assert corrections([reading], told, unwritten={DAY: 10}) == ()
    (found,) = corrections([reading], told, unwritten={DAY: 15})
    assert (found.unwritten, found.change) == (15, 5)


def test_what_the_ledger_cannot_tell_is_left_alone() -> None:
    hidden = row(2, subject='{"hidden":["user"]}')
    told = expected([row(1), hidden], index_of)
    assert not told[DAY].is_complete
    found = corrections([], told)
    assert [each.label for each in found] == ["p2/tokens_per_month"]
    assert corrections([Reading(key="quota:{acme}:gone:", period="x", used=5)], {}) == ()


_PLACES = st.sampled_from([("a", "1"), ("a", "2"), ("b", "1")])
_SUMS = st.dictionaries(_PLACES, st.integers(-(2**53), 2**53))


@given(_SUMS, _SUMS, _SUMS)
def test_after_the_corrections_nothing_differs(
    redis: dict[tuple[str, str], int],
    ledger: dict[tuple[str, str], int],
    unwritten: dict[tuple[str, str], int],
) -> None:
    unit = expected([row()], index_of)[DAY].unit
    told = {p: Expected(label="p/x", subject="", unit=unit, used=n) for p, n in ledger.items()}
    readings = [Reading(key=k, period=p, used=n) for (k, p), n in redis.items()]
    for each in corrections(readings, told, unwritten=unwritten):
        place = (each.key, each.period)
        redis[place] = redis.get(place, 0) + each.change
    readings = [Reading(key=k, period=p, used=n) for (k, p), n in redis.items()]
    assert corrections(readings, told, unwritten=unwritten) == ()
    for place, count in ledger.items():
        assert redis.get(place, 0) == count + unwritten.get(place, 0)
