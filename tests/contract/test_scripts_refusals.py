"""The scripts note what limits refused: enough to explain it, in constant memory."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import redis

from extproc.core.buckets import Unit
from extproc.core.reservations import Admitted, Rejected
from extproc.stores import keys
from extproc.stores.record_words import lengthen
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.engine import STRICT, Counters, admit, asking, cache_view, minute, reject
from tests.support.reservations import ROOT, Inspector, request

KEPT, KEPT_S = 50, 3600
Refuse = Callable[..., Awaitable[Any]]


@pytest.fixture(params=["simple", "policies"])
def refuse(
    request: pytest.FixtureRequest,
    store: RedisReservationStore,
    redis_client: redis.Redis,
    inspect: Inspector,
) -> Refuse:
    """A request that one script or the other refuses."""
    if request.param == "simple":
        inspect.cache(rpm=0, tpm=1000)
        return lambda **values: reject_simple(store, **values)
    cache_view(redis_client)
    return lambda **values: reject(store, minute("p.rpm.user:a", Unit.REQUESTS, 0), **values)


async def reject_simple(store: RedisReservationStore, **values: Any) -> Rejected:
    known = {name: values.pop(name) for name in ("rid", "model", "cap") if name in values}
    verdict = await store.reserve(replace(request(**known), estimate=STRICT, **values))
    assert isinstance(verdict, Rejected), verdict
    return verdict


def notes(client: redis.Redis, root: str = ROOT) -> list[dict[str, Any]]:
    texts: Any = client.lrange(keys.refusals(root), 0, -1)
    return [json.loads(text) for text in texts]


async def test_a_storm_of_refusals_leaves_a_short_list_that_ends(
    refuse: Refuse, redis_client: redis.Redis
) -> None:
    for number in range(KEPT + 20):
        await refuse(rid=f"r{number}")
    found = notes(redis_client)
    assert [note["id"] for note in found] == [f"r{i}" for i in range(KEPT + 19, 19, -1)]
    assert KEPT_S - 5 <= redis_client.ttl(keys.refusals(ROOT)) <= KEPT_S
    # Nothing was taken.
    assert Counters(redis_client).state() == {}
    assert redis_client.keys("resv:*") == redis_client.keys("pending:*") == []


async def test_texts_are_cut_between_characters(refuse: Refuse, redis_client: redis.Redis) -> None:
    await refuse(model="x" + "€" * 200)
    await refuse(model="m" * 300)
    assert [note["model"] for note in notes(redis_client)] == ["m" * 256, "x" + "€" * 84]
    await refuse(model='\x00"\\\ud800')
    assert notes(redis_client)[0]["model"] == '\x00"\\?'
    used = redis_client.memory_usage(keys.refusals(ROOT), samples=0) or 0
    assert used < 3000


async def test_a_list_that_cannot_be_written_never_changes_the_answer(
    refuse: Refuse, redis_client: redis.Redis
) -> None:
    redis_client.set(keys.refusals(ROOT), "something else")
    await refuse()
    assert (redis_client.get(keys.refusals(ROOT)), redis_client.ttl(keys.refusals(ROOT))) == (
        "something else",
        -1,
    )
    redis_client.delete(keys.refusals(ROOT))
    before: Any = redis_client.config_get("maxmemory")
    try:
        redis_client.config_set("maxmemory", 1)
        await refuse()
    finally:
        redis_client.config_set("maxmemory", before["maxmemory"])
    assert notes(redis_client) == []


async def test_a_simple_root_notes_what_the_answer_says(
    store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis
) -> None:
    inspect.cache(rpm=2, tpm=1000)
    await store.reserve(replace(request(cap=590), estimate=STRICT))
    answers = [await reject_simple(store, cap=590), await reject_simple(store, cap=1000)]
    await store.reserve(request(cap=0))
    # Both limits refuse now; what never fits binds.
    answers += [await reject_simple(store, cap=590), await reject_simple(store, cap=2000)]
    inspect.cache(rpm=0, tpm=0)
    answers.append(await reject_simple(store, cap=0))
    # A limit of 0 refuses what asks for nothing too.
    inspect.cache(rpm=9, tpm=0)
    redis_client.delete(keys.tpm_prefix(ROOT) + inspect.minute())
    answers.append(await reject_simple(store, cap=0, input_tokens=0))
    found = notes(redis_client)[::-1]
    assert [note["by"][0][0] for note in found] == [answer.refused_by for answer in answers]
    assert [len(note["by"]) for note in found] == [1, 1, 2, 2, 2, 1]
    for note, answer in zip(found, answers, strict=True):
        assert int(note["tokens"]) == answer.requested_tokens
        (name, wait, limit, left), *_ = note["by"]
        view = answer.requests if name == "rpm" else answer.tokens
        assert view is not None
        assert (int(limit), max(0, int(left))) == (view.limit, view.remaining)
        retry = answer.retry_after_ms
        assert int(wait) == (-1 if retry is None else retry)


async def test_a_policy_root_notes_every_limit_that_refused_the_longest_first(
    store: RedisReservationStore, redis_client: redis.Redis, inspect: Inspector
) -> None:
    cache_view(redis_client)
    passing = minute("pass.rpm.user:a", Unit.REQUESTS, 100)
    shadow = minute("shadow.rpm.user:a", Unit.REQUESTS, 0, enforced=False)
    soon = minute("soon.rpm.user:a", Unit.REQUESTS, 1)
    never = minute("never.total_tpm.user:a", Unit.TOTAL, 20)
    met = (passing, shadow, soon, never)
    await admit(store, *met, cap=10, estimate=STRICT)
    answer = await reject(store, *met, cap=100, estimate=STRICT, rid="r2")
    (note,) = notes(redis_client)
    assert (note["id"], note["request"], note["model"]) == ("r2", "req-1", "gpt-4o")
    assert (note["input"], note["tokens"], note["cost"], note["more"]) == ("10", "110", "0", "0")
    assert [lengthen(one[0]) for one in note["by"]] == [
        "mt|:never.total_tpm.user:a:",
        "mr|:soon.rpm.user:a:",
    ]
    assert answer.refused_by == never.label
    by_label = {one.label: one for one in answer.refusals}
    assert note["by"][0][1:] == ["-1", "20", "0"]
    assert note["by"][1][1:] == [str(by_label[soon.label].retry_after_ms), "1", "0"]


async def test_of_many_limits_that_refuse_those_that_last_longest_are_kept(
    store: RedisReservationStore, redis_client: redis.Redis, inspect: Inspector
) -> None:
    cache_view(redis_client)
    met = [minute(f"p{i}.rpm.user:a", Unit.REQUESTS, 1) for i in range(20)]
    await admit(store, *met)
    met[15:] = [replace(bucket, limit=0) for bucket in met[15:]]
    answer = await reject(store, *met)
    (note,) = notes(redis_client)
    kept = [lengthen(one[0]) for one in note["by"]]
    assert kept == [f"mr|:p{i}.rpm.user:a:" for i in [*range(15, 20), *range(11)]]
    assert note["more"] == "4"
    assert answer.refused_by == met[15].label


async def test_whoever_is_admitted_is_not_noted(
    store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis
) -> None:
    inspect.cache(rpm=5, tpm=1000)
    assert isinstance(await store.reserve(request()), Admitted)
    cache_view(redis_client)
    await admit(store, minute("p.rpm.user:a", Unit.REQUESTS, 5))
    assert notes(redis_client) == []


async def test_a_refusal_costs_two_commands_more_than_an_admission_reads(
    store: RedisReservationStore, inspect: Inspector, redis_client: redis.Redis
) -> None:
    """Commands inside the script: looks at the record, config and counter, and the note."""
    cache_view(redis_client)
    met = minute("p.rpm.user:a", Unit.REQUESTS, 0)
    await reject(store, met)

    async def commands() -> dict[str, int]:
        redis_client.config_resetstat()
        await store.reserve(asking(met, estimate=STRICT, cap=1))
        ours = ("evalsha", "config|resetstat", "info")
        stats: Any = redis_client.info("commandstats")
        counts = {name.removeprefix("cmdstat_"): value["calls"] for name, value in stats.items()}
        return {name: count for name, count in counts.items() if name not in ours}

    assert await commands() == {"time": 1, "hmget": 2, "mget": 1, "lpush": 1, "expire": 1}
