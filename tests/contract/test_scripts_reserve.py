"""reserve.lua on a real Valkey."""

import asyncio
import json
from datetime import UTC, datetime

import pytest
import redis

from extproc.core.errors import StoreUnavailableError
from extproc.core.limits import MAX_LIMIT, ServiceLimit
from extproc.core.reservations import (
    Admitted,
    LimitsMissing,
    Rejected,
    ServiceRefused,
    ServiceState,
    WindowView,
)
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.scripts import load_script
from tests.support.reservations import ROOT, Inspector, request, settlement


async def admit(store: RedisReservationStore, **values: object) -> Admitted:
    verdict = await store.reserve(request(**values))  # type: ignore[arg-type]
    assert isinstance(verdict, Admitted), verdict
    return verdict


async def reject(store: RedisReservationStore, **values: object) -> Rejected:
    verdict = await store.reserve(request(**values))  # type: ignore[arg-type]
    assert isinstance(verdict, Rejected), verdict
    return verdict


def shown(view: WindowView | None) -> WindowView:
    """A simple root always shows both."""
    assert view is not None
    return view


async def test_takes_one_request_and_the_reserved_tokens(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    inspect.cache(rpm=5, tpm=1000)
    verdict = await admit(store, rid="r1", input_tokens=10, default=100)
    assert verdict.minute == inspect.minute()
    assert (verdict.input_tokens, verdict.reserved_tokens) == (10, 110)
    assert (shown(verdict.requests).limit, shown(verdict.requests).remaining) == (5, 4)
    assert (shown(verdict.tokens).limit, shown(verdict.tokens).remaining) == (1000, 890)
    assert 0 < shown(verdict.tokens).reset_ms <= 60_000
    assert inspect.used() == (1, 110)
    record = inspect.record("r1")
    assert (record["state"], record["rank"], record["model"]) == ("RESERVED", "0", "gpt-4o")
    assert inspect.open() == 1


async def test_same_id_gets_the_same_answer_and_takes_nothing(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    inspect.cache(rpm=5, tpm=1000)
    first = await admit(store, rid="r1")
    await admit(store, rid="r2")
    again = await admit(store, rid="r1", input_tokens=77)
    assert shown(again.tokens).reset_ms <= shown(first.tokens).reset_ms
    assert (again.reserved_tokens, again.minute) == (first.reserved_tokens, first.minute)
    assert shown(again.tokens).remaining == shown(first.tokens).remaining
    assert inspect.used() == (2, 220)


async def test_rpm_refuses_before_tpm_and_takes_nothing(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    inspect.cache(rpm=1, tpm=150)
    await admit(store, input_tokens=10, default=100)
    verdict = await reject(store, input_tokens=10, default=100)
    assert verdict.refused_by == "rpm"
    assert shown(verdict.requests).remaining == 0
    assert shown(verdict.tokens).remaining == 40
    assert verdict.retry_after_ms is not None
    assert 0 < verdict.retry_after_ms <= 60_000
    assert inspect.used() == (1, 110)


async def test_tpm_refusal_takes_no_request(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    inspect.cache(rpm=10, tpm=150)
    await admit(store, input_tokens=10, default=100)
    verdict = await reject(store, input_tokens=41, cap=0)
    assert (verdict.refused_by, verdict.requested_tokens) == ("tpm", 41)
    assert inspect.used() == (1, 110)
    await admit(store, input_tokens=40, cap=0)
    assert inspect.used() == (2, 150)


async def test_200_parallel_reserves_against_37_admit_exactly_37(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    inspect.cache(rpm=1000, tpm=37 * 110 + 109)
    verdicts = await asyncio.gather(*(store.reserve(request()) for _ in range(200)))
    assert sum(isinstance(verdict, Admitted) for verdict in verdicts) == 37
    assert inspect.used() == (37, 37 * 110)


async def test_parallel_clients_of_several_connections_cannot_pass_the_limit(
    redis_url: str, inspect: Inspector
) -> None:
    inspect.cache(rpm=1000, tpm=37 * 110)
    batchers = [RedisBatcher(url=redis_url, timeout_ms=5000) for _ in range(4)]
    verdicts = await asyncio.gather(
        *(RedisReservationStore(batchers[i % 4]).reserve(request()) for i in range(200))
    )
    assert sum(isinstance(verdict, Admitted) for verdict in verdicts) == 37
    for batcher in batchers:
        await batcher.close()


async def test_default_and_cap_and_clip_decide_the_output(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    inspect.cache(rpm=100, tpm=100_000)
    assert (await admit(store, input_tokens=10, default=512)).reserved_tokens == 522
    assert (await admit(store, input_tokens=10, default=512, cap=7)).reserved_tokens == 17
    assert (await admit(store, input_tokens=10, default=512, cap=5000)).reserved_tokens == 522
    assert (await admit(store, input_tokens=10, default=512, cap=0)).reserved_tokens == 10


async def test_an_idle_limit_never_refuses_what_could_fit_alone(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    inspect.cache(rpm=100, tpm=100)
    verdict = await admit(store, input_tokens=2, default=1024)
    assert verdict.reserved_tokens == 100
    assert shown(verdict.tokens).remaining == 0


@pytest.mark.parametrize(
    ("limits", "input_tokens", "by"),
    [((0, 100), 1, "rpm"), ((10, 0), 0, "tpm"), ((10, 100), 101, "tpm"), ((0, 0), 0, "rpm")],
)
async def test_what_never_fits_has_no_retry_after(
    store: RedisReservationStore,
    inspect: Inspector,
    limits: tuple[int, int],
    input_tokens: int,
    by: str,
) -> None:
    inspect.cache(*limits)
    verdict = await reject(store, input_tokens=input_tokens, default=0)
    assert (verdict.refused_by, verdict.retry_after_ms) == (by, None)
    assert inspect.used() == (None, None)


async def test_what_never_fits_is_told_so_also_where_the_requests_are_used_up(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    inspect.cache(rpm=1, tpm=100)
    await admit(store, input_tokens=1, default=0)
    verdict = await reject(store, input_tokens=101, default=0)
    assert (verdict.refused_by, verdict.retry_after_ms) == ("tpm", None)


async def test_history_is_the_ratio_of_sums_of_the_ten_full_minutes_before(
    store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis
) -> None:
    inspect.cache(rpm=100, tpm=100_000)
    prefix = keys.output_prefix(ROOT)
    for back, count, tokens in ((0, 1, 90_000), (1, 1, 1000), (10, 9, 101), (11, 1, 90_000)):
        redis_client.hset(
            prefix + inspect.minute(back), mapping={"count": count, "output_tokens": tokens}
        )
    verdict = await admit(store, input_tokens=10, default=512)
    # ceil((1000 + 101) / (1 + 9)) = 111; a mean of means would be 506.
    assert verdict.reserved_tokens == 10 + 111


async def test_without_limits_nothing_is_taken(
    store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis
) -> None:
    assert await store.reserve(request()) == LimitsMissing()
    redis_client.hset(keys.config(ROOT), "lease", "t")
    assert await store.reserve(request()) == LimitsMissing()
    redis_client.hset(keys.config(ROOT), mapping={"rpm": "x", "tpm": 5, "status": 1})
    assert await store.reserve(request()) == LimitsMissing()
    assert inspect.used() == (None, None)


async def test_disabled_and_unknown_services_are_refused(
    store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis
) -> None:
    inspect.cache(rpm=10, tpm=10, status=0)
    assert await store.reserve(request()) == ServiceRefused(ServiceState.DISABLED)
    redis_client.delete(keys.config(ROOT))
    redis_client.hset(keys.config(ROOT), "status", "unknown")
    assert await store.reserve(request()) == ServiceRefused(ServiceState.UNKNOWN)
    assert inspect.used() == (None, None)


async def test_pinned_limits_are_used_and_the_root_is_registered(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    limit = ServiceLimit(service_id=ROOT, rpm=3, tpm=500)
    verdict = await admit(store, limit=limit)
    assert (shown(verdict.requests).limit, shown(verdict.tokens).limit) == (3, 500)
    assert await store.roots() == [ROOT]
    disabled = ServiceLimit(service_id=ROOT, rpm=3, tpm=500, enabled=False)
    assert await store.reserve(request(limit=disabled)) == ServiceRefused(ServiceState.DISABLED)


async def test_a_change_of_limits_is_seen_by_the_very_next_reserve(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    inspect.cache(rpm=10, tpm=1000)
    await admit(store)
    inspect.cache(rpm=10, tpm=110)
    assert shown((await reject(store)).tokens).limit == 110
    inspect.cache(rpm=10, tpm=220)
    await admit(store)


@pytest.mark.parametrize("tpm", [3_000_000_000, MAX_LIMIT])
async def test_large_numbers_stay_integers(
    store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis, tpm: int
) -> None:
    inspect.cache(rpm=tpm, tpm=tpm)
    first = await admit(store, rid="r1", input_tokens=tpm - 3, cap=2)
    assert (first.reserved_tokens, shown(first.tokens).remaining) == (tpm - 1, 1)
    assert redis_client.get(keys.tpm_prefix(ROOT) + first.minute) == str(tpm - 1)
    await admit(store, input_tokens=1, cap=0)
    rejected = await reject(store, input_tokens=1, cap=0)
    assert (shown(rejected.tokens).limit, shown(rejected.tokens).remaining) == (tpm, 0)
    assert inspect.record("r1")["reserved"] == str(tpm - 1)
    await store.settle(settlement("r1", tpm, tpm))
    assert inspect.used()[1] == 2 * tpm + 1
    assert inspect.record("r1")["charged"] == str(2 * tpm)


async def test_a_reserve_that_was_overtaken_by_its_release_takes_nothing(
    store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis
) -> None:
    inspect.cache(rpm=10, tpm=1000)
    await store.release(settlement("r1"))
    assert 0 < redis_client.ttl(keys.reservation(ROOT, "r1")) <= 120
    with pytest.raises(StoreUnavailableError) as caught:
        await store.reserve(request(rid="r1"))
    assert not caught.value.transient
    assert inspect.used() == (None, None)
    assert inspect.open() == 0


async def test_scripts_survive_a_flush(
    store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis
) -> None:
    inspect.cache(rpm=100, tpm=100_000)
    await store.ping()
    await admit(store)
    redis_client.script_flush()
    async with asyncio.timeout(20):
        verdicts = await asyncio.gather(*(store.reserve(request()) for _ in range(20)))
    assert all(isinstance(verdict, Admitted) for verdict in verdicts)
    assert inspect.used()[0] == 21


async def test_a_lone_surrogate_in_a_model_name_does_no_harm(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    inspect.cache(rpm=100, tpm=100_000)
    await admit(store, rid="r1", model="gpt\ud800" + "x" * 1000)
    assert inspect.record("r1")["model"].startswith("gpt?xxx")
    assert len(inspect.record("r1")["model"]) == 256


async def test_minute_names_agree_with_the_calendar(redis_client: redis.Redis) -> None:
    """Leap days, ends of centuries, the last minutes of years; and every day of a century."""
    source = load_script("settle").source
    clock = source[: source.index("-- How a reservation ends")]
    minutes = [day * 1440 + (day * 7) % 1440 for day in range(10_957, 47_482)]
    minutes += [
        int(datetime.fromisoformat(when + "Z").timestamp()) // 60
        for when in ("2028-02-29T23:59", "2100-02-28T23:59", "2100-03-01T00:00", "2099-12-31T23:59")
    ]
    body = clock + (
        "local names = {} for i, m in ipairs(cjson.decode(ARGV[1])) do "
        "names[i] = minute_name(m) end return names"
    )
    names = redis_client.eval(body, 0, json.dumps(minutes))
    expected = [datetime.fromtimestamp(m * 60, UTC).strftime("%Y%m%d%H%M") for m in minutes]
    assert names == expected
