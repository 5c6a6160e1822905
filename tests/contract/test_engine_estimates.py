"""What a policy root expects of an answer: mean, quantile with margin, strict; caps."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import redis

from extproc.core.buckets import Unit
from extproc.core.estimates import EstimateMode, EstimatePlan
from extproc.core.reservations import Admitted
from extproc.stores import keys
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.scripts import load_script
from tests.support.engine import STRICT, admit, cache_view, minute, reject
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
    store: RedisReservationStore,
    inspect: Inspector,
    lengths: list[int],
    *,
    back: int = 1,
    model: str = "gpt-4o",
) -> None:
    """Settle such answers, as if it had been ``back`` minutes ago."""
    for number, length in enumerate(lengths):
        rid = f"a{back}-{number}-{model}"
        await admit(store, LIMIT, rid=rid, model=model)
        end = settlement(rid, 10, length, history=True)
        await store.settle(replace(end, model=model))
    prefix = keys.output_prefix(ROOT)
    now, then = inspect.minute(), inspect.minute(back)
    for key in list(inspect.client.scan_iter(prefix + "*")):
        if key.endswith(":" + now):
            _move(inspect.client, key, key.removesuffix(now) + then)
        elif ":expected:" in key:
            inspect.client.delete(key)


def _move(client: redis.Redis, key: str, to: str) -> None:
    """What was counted in ``key`` was counted in ``to``."""
    found: Any = client.hgetall(key)
    for name, count in found.items():
        client.hincrby(to, name, int(count))
    client.expire(to, 900)
    client.delete(key)


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


async def test_what_a_request_tells_of_its_answer_goes_before_any_history(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    given = EstimatePlan(mode=EstimateMode.GIVEN)
    await answers(store, inspect, [40])
    assert await output(store, estimate=given, default=700, cap=700) == 700
    # The same without policies. A guess it is all the same: no reason that nothing ever fits.
    inspect.client.delete(keys.config(ROOT))
    inspect.cache(rpm=100, tpm=1000)
    for mode, told, tokens in (("mean", 700, 40), ("given", 700, 700), ("given", 9000, 990)):
        inspect.client.delete(*inspect.client.keys(keys.tpm_prefix(ROOT) + "*"), "none")
        plan = EstimatePlan(mode=EstimateMode(mode))
        verdict = await store.reserve(replace(request(default=told, cap=told), estimate=plan))
        assert isinstance(verdict, Admitted)
        assert verdict.reserved_tokens == 10 + tokens


async def test_full_minutes_are_worked_out_once_a_minute(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    await answers(store, inspect, [100])
    first = await output(store, estimate=P95)
    for key in list(inspect.client.scan_iter(keys.output_prefix(ROOT) + "*" + inspect.minute(1))):
        inspect.client.delete(key)
    assert await output(store, estimate=P95) == first
    (kept,) = inspect.client.scan_iter(keys.output_prefix(ROOT) + "*expected:*")
    assert kept.startswith(keys.output_model_prefix(ROOT, "gpt-4o"))
    assert 0 < inspect.client.ttl(kept) <= 120


MODES = {
    "quantile": EstimatePlan(mode=EstimateMode.QUANTILE, margin_percent=100),
    "mean": EstimatePlan(mode=EstimateMode.MEAN),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("short", ["gpt-4o-mini", "vendor/model {v2}", "m" * 200, ":odd"])
async def test_a_short_model_does_not_get_the_estimate_of_a_long_one(
    store: RedisReservationStore, inspect: Inspector, mode: str, short: str
) -> None:
    await answers(store, inspect, [900] * 20, model="o3")
    await answers(store, inspect, [20] * 4, back=1, model=short)
    await answers(store, inspect, [20] * 4, back=10, model=short)
    await answers(store, inspect, [50_000], back=11, model=short)
    # One without answers of its own gets what the root has of all.
    expected = {
        "quantile": {"o3": edge(900), short: edge(20), "new": edge(900)},
        "mean": {"o3": 900, short: 20, "new": math.ceil((900 * 20 + 20 * 8) / 28)},
    }
    for _ in range(2):
        for model, tokens in expected[mode].items():
            assert await output(store, estimate=MODES[mode], model=model) == tokens
    assert all("{v2}" not in key for key in inspect.client.scan_iter("usage:*"))
    assert [key for key in inspect.client.scan_iter("usage:*") if inspect.client.ttl(key) < 0] == []


async def test_a_model_without_answers_gets_the_roots_estimate_or_the_default(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    assert await output(store, estimate=P95, default=70) == 70
    await answers(store, inspect, [30], model="o3")
    # This minute's answers make the model known, but no estimate yet.
    for default, expected in ((70, 30), (80, 30)):
        await admit(store, LIMIT, rid=f"r{default}")
        end = settlement(f"r{default}", 10, 999, history=True)
        await store.settle(replace(end, model="gpt-4o"))
        assert await output(store, estimate=MODES["mean"], default=default) == expected


@pytest.mark.parametrize("known", [True, False])
async def test_only_successes_with_known_usage_teach_a_model(
    store: RedisReservationStore, inspect: Inspector, known: bool
) -> None:
    await admit(store, LIMIT, rid="r1")
    for _ in range(2):
        await store.settle(replace(settlement("r1", 10, 30, history=known), model="gpt-4o"))
    prefix = keys.output_model_prefix(ROOT, "gpt-4o")
    found: Any = inspect.client.hgetall(prefix + inspect.minute())
    assert found == ({"count": "1", "output_tokens": "30", "h20": "1"} if known else {})
    assert inspect.history() == found
    if known:
        assert 800 < inspect.client.ttl(prefix + inspect.minute()) <= 900


async def test_names_of_models_that_never_answered_are_not_remembered(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    """Refused requests cost nothing, so they must not fill Redis with their texts."""
    await answers(store, inspect, [30])
    tight = minute("tight", Unit.REQUESTS, 0)
    for number in range(50):
        await reject(store, tight, model=f"invented-{number}", estimate=P95)
    assert not list(inspect.client.scan_iter("*invented*"))


async def test_simple_roots_have_one_history(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    inspect.client.delete(keys.config(ROOT))
    inspect.cache(rpm=100, tpm=1000)
    await store.reserve(request(rid="r1"))
    await store.settle(replace(settlement("r1", 10, 30, history=True), model="gpt-4o"))
    assert inspect.history() == {"count": "1", "output_tokens": "30"}
    assert len(list(inspect.client.scan_iter("usage:*"))) == 1


@pytest.mark.parametrize(
    "values", [{"quantile_permille": 0}, {"margin_percent": 0}, {"platform_cap_tokens": -1}]
)
def test_plans_that_mean_nothing(values: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        EstimatePlan(**values)  # type: ignore[arg-type]
