"""What a request holds at a root that all share waits with it, and is no review of its own."""

import asyncio
from typing import Any

import pytest
import redis

from extproc.cli import main
from extproc.core.reviews import Answer, decision
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.reviews import Reviews
from tests.contract.test_reaper import Notes, open_overdue, reaper
from tests.support.reservations import ROOT

SHARED = "across:provider:openai"


@pytest.fixture
async def reviews(batcher: RedisBatcher, store: RedisReservationStore) -> Reviews:
    """One request in review, with its part at a shared root."""
    for root in (ROOT, SHARED):
        await open_overdue(store, 1, root=root)
    notes = Notes()
    assert await reaper(store, notes, policy="review").sweep() == 2
    assert notes.reviews == [1]
    return Reviews(batcher)


async def places(reviews: Reviews, *root: str) -> list[str]:
    return [one.root for one in await reviews.waiting(*root)]


async def test_it_is_listed_once(reviews: Reviews) -> None:
    assert await places(reviews) == [ROOT]
    assert await places(reviews, SHARED) == [SHARED]


async def test_it_is_resolved_at_its_own_root_while_it_waits_there(
    reviews: Reviews, redis_client: redis.Redis
) -> None:
    said = decision("r0", SHARED, input_tokens=1, output_tokens=2, release=False)
    before: Any = redis_client.dump(keys.reservation(SHARED, "r0"))
    done = await reviews.resolve(said)
    assert (done.answer, done.own_root) == (Answer.ELSEWHERE, ROOT)
    assert redis_client.dump(keys.reservation(SHARED, "r0")) == before
    # What is left behind alone can still be decided.
    redis_client.delete(keys.review(ROOT))
    assert (await reviews.resolve(said)).answer is Answer.RESOLVED


async def test_the_command_says_where(
    reviews: Reviews,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TOKENWEIR_REDIS__URL", redis_url)
    words = ["reviews", "resolve", "r0", "--root", SHARED, "--release"]
    assert await asyncio.to_thread(main, words) == 1
    assert f"waits at root {ROOT}: resolve it there" in capsys.readouterr().err
