"""What a policy root expects of an answer: mean, quantile with margin, strict; caps."""

import math
import random
from dataclasses import replace

import pytest
import redis

from extproc.core.buckets import Unit
from extproc.core.estimates import EstimateMode, EstimatePlan
from extproc.core.reservations import Admitted
from extproc.stores import keys
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.scripts import load_script
from tests.support.engine import STRICT, admit, cache_view, minute
from tests.support.reservations import ROOT, Inspector, request, settlement

P95 = EstimatePlan(mode=EstimateMode.QUANTILE)
LIMIT = minute("x", Unit.TOTAL, 2**40)


@pytest.fixture(autouse=True)
def _view(redis_client: redis.Redis, inspect: Inspector) -> None:
    cache_view(redis_client)


def edge(tokens: int) -> int:
    """The longest answer in the histogram's bin of ``tokens``, in other words than the script's."""
    if tokens == 0:
        return 0
    power = 0
    while 2 ** ((power + 1) / 4) <= tokens:
        power += 1
    return math.ceil(2 ** ((power + 1) / 4)) - 1


async def output(store: RedisReservationStore, **values: object) -> int:
    verdict = await admit(store, LIMIT, input_tokens=10, **values)
    return verdict.reserved_tokens - 10


async def answers(
    store: RedisReservationStore, inspect: Inspector, lengths: list[int], *, back: int = 1
) -> None:
    """Settle such answers, as if it had been ``back`` minutes ago."""
    for number, length in enumerate(lengths):
        rid = f"a{back}-{number}"
        await admit(store, LIMIT, rid=rid)
        await store.settle(settlement(rid, 10, length, history=True))
    prefix = keys.output_prefix(ROOT)
    inspect.client.rename(prefix + inspect.minute(), prefix + inspect.minute(back))
    for key in inspect.client.scan_iter(prefix + "expected:*"):
        inspect.client.delete(key)


async def test_bins_are_at_most_a_fifth_wide_and_edges_are_exact(redis_client: redis.Redis) -> None:
    source = load_script("settle").source
    source = source[: source.index("-- How a reservation ends")]
    source += (
        load_script("reserve_policies")
        .source.partition("-- Log-spaced")[2]
        .partition("-- Expected output")[0]
        .join(["--", ""])
    )
    lengths = [*range(2000), *(2**n + d for n in range(11, 50) for d in (-1, 0, 1))]
    found = redis_client.eval(
        source + "local t = {} for i = 1, #ARGV do t[i] = string.format('%.0f', "
        "histogram_edge(histogram_bin(tonumber(ARGV[i])))) end return t",
        0,
        *lengths,
    )
    for length, bound in zip(lengths, map(int, found), strict=True):
        assert length <= bound <= length * 1.19 + 1
        if length < 2000:
            assert bound == edge(length)


async def test_the_quantile_of_ten_full_minutes_with_its_margin(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    dice = random.Random(3)
    lengths = [dice.randrange(1, 900) for _ in range(40)]
    await answers(store, inspect, lengths[:20], back=1)
    await answers(store, inspect, lengths[20:], back=10)
    await answers(store, inspect, [50_000] * 5, back=11)
    expected = edge(sorted(lengths)[math.ceil(0.95 * 40) - 1])
    assert await output(store, estimate=P95) == math.ceil(expected * 1.1)
    median = EstimatePlan(mode=EstimateMode.QUANTILE, quantile_permille=500, margin_percent=100)
    assert await output(store, estimate=median) == edge(sorted(lengths)[19])
    mean = EstimatePlan(mode=EstimateMode.MEAN)
    assert await output(store, estimate=mean) == math.ceil(sum(lengths) / 40)


async def test_answers_of_this_minute_do_not_count_yet(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    await admit(store, LIMIT, rid="r1")
    await store.settle(settlement("r1", 10, 999, history=True))
    assert await output(store, estimate=P95, default=70) == 70
    assert inspect.history() == {"count": "1", "output_tokens": "999", "h40": "1"}


async def test_the_past_of_a_simple_root_is_not_forgotten(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    inspect.client.hset(
        keys.output_prefix(ROOT) + inspect.minute(3), mapping={"count": 2, "output_tokens": 401}
    )
    assert await output(store, estimate=P95) == math.ceil(201 * 1.1)


async def test_caps_bind_every_estimate(store: RedisReservationStore, inspect: Inspector) -> None:
    await answers(store, inspect, [400])
    capped = EstimatePlan(mode=EstimateMode.QUANTILE, platform_cap_tokens=30)
    assert await output(store, estimate=P95) > 400
    assert await output(store, estimate=P95, cap=7) == 7
    assert await output(store, estimate=capped) == 30
    assert await output(store, estimate=capped, cap=7) == 7
    assert await output(store, estimate=capped, cap=70) == 30


async def test_strict_reserves_the_cap(store: RedisReservationStore, inspect: Inspector) -> None:
    await answers(store, inspect, [400])
    platform = EstimatePlan(mode=EstimateMode.STRICT, platform_cap_tokens=900)
    assert await output(store, estimate=STRICT, cap=5000) == 5000
    assert await output(store, estimate=platform, cap=5000) == 900
    assert await output(store, estimate=platform) == 900
    assert await output(store, estimate=STRICT, default=33) == 33
    assert await output(store, estimate=STRICT, cap=0) == 0


async def test_strict_on_a_simple_root(store: RedisReservationStore, inspect: Inspector) -> None:
    inspect.client.delete(keys.config(ROOT))
    inspect.cache(rpm=100, tpm=1000)
    for cap, admitted in ((990, True), (991, False)):
        verdict = await store.reserve(replace(request(cap=cap), estimate=STRICT))
        assert isinstance(verdict, Admitted) == admitted
    assert inspect.used() == (1, 1000)


async def test_full_minutes_are_worked_out_once_a_minute(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    await answers(store, inspect, [100])
    first = await output(store, estimate=P95)
    inspect.client.delete(keys.output_prefix(ROOT) + inspect.minute(1))
    assert await output(store, estimate=P95) == first
    (kept,) = inspect.client.scan_iter(keys.output_prefix(ROOT) + "expected:*")
    assert 0 < inspect.client.ttl(kept) <= 120


@pytest.mark.parametrize(
    "values", [{"quantile_permille": 0}, {"margin_percent": 0}, {"platform_cap_tokens": -1}]
)
def test_plans_that_mean_nothing(values: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        EstimatePlan(**values)  # type: ignore[arg-type]
