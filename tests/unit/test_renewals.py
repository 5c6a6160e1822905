"""Heartbeats: in the background, not too often, bounded, and a failed one hurts nobody."""

import asyncio
from itertools import pairwise

import pytest

from extproc.core import renewals as module
from extproc.core.errors import StoreUnavailableError
from extproc.core.renewals import Renewals
from tests.support.fakes import RecordingStore, RecordingTelemetry

AWAY = StoreUnavailableError("redis", "away", transient=True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """One number: what time it is."""
    now = [1000.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


class Ended(RecordingStore):
    async def renew(self, root: str, reservation_id: str, *, deadline_ms: int) -> bool:
        return False


async def test_the_counter_says_what_became_of_each() -> None:
    telemetry = RecordingTelemetry()
    for store in (RecordingStore(), RecordingStore(renew_errors=[AWAY]), Ended()):
        Renewals(store, telemetry, deadline_ms=1000).renew("svc", "r1")
        await asyncio.sleep(0)
    assert telemetry.lines == ["renewed renewed", "renewed failed", "renewed ended"]


async def test_a_failed_one_is_not_tried_again() -> None:
    """The next heartbeat comes anyway."""
    store = RecordingStore(renew_errors=[AWAY])
    Renewals(store, RecordingTelemetry(), deadline_ms=1000).renew("svc", "r1")
    for _ in range(5):
        await asyncio.sleep(0)
    assert store.renewed == []


async def test_an_operator_who_flushes_every_second_renews_no_more_than_needed(
    clock: list[float],
) -> None:
    """Of 900 entries within a deadline of 900 s, about 30 reach the store, without a long gap."""
    store = RecordingStore()
    renewals = Renewals(store, RecordingTelemetry(), deadline_ms=900_000)
    at: list[float] = []
    for _ in range(900):
        renewals.renew("svc", "r1")
        await asyncio.sleep(0)
        at += [clock[0]] * (len(store.renewed) - len(at))
        clock[0] += 1
    assert 29 <= len(at) <= 31
    assert max(later - sooner for sooner, later in pairwise(at)) <= 31


async def test_at_a_minute_every_heartbeat_counts(clock: list[float]) -> None:
    store = RecordingStore()
    renewals = Renewals(store, RecordingTelemetry(), deadline_ms=900_000)
    for _ in range(10):
        renewals.renew("svc", "r1")
        await asyncio.sleep(0)
        clock[0] += 60
    assert len(store.renewed) == 10


async def test_each_root_and_reservation_has_its_own_heartbeat() -> None:
    store = RecordingStore()
    renewals = Renewals(store, RecordingTelemetry(), deadline_ms=900_000)
    for root, reservation_id in (("a", "r1"), ("b", "r1"), ("a", "r2"), ("a", "r1")):
        renewals.renew(root, reservation_id)
    await asyncio.sleep(0)
    assert [call[:2] for call in store.renewed] == [("a", "r1"), ("b", "r1"), ("a", "r2")]


async def test_what_is_under_way_and_remembered_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_UNDER_WAY", 2)
    monkeypatch.setattr(module, "_MOST_REMEMBERED", 3)
    store, telemetry = RecordingStore(gate=asyncio.Event()), RecordingTelemetry()
    renewals = Renewals(store, telemetry, deadline_ms=900_000)
    for number in range(3):
        renewals.renew("svc", f"r{number}")
    assert telemetry.lines == ["renewed dropped"]
    assert store.gate is not None
    store.gate.set()
    for _ in range(3):
        await asyncio.sleep(0)
    # One that was dropped is not taken for renewed.
    renewals.renew("svc", "r2")
    renewals.renew("svc", "r3")
    for _ in range(3):
        await asyncio.sleep(0)
    assert [call[1] for call in store.renewed] == ["r0", "r1", "r2", "r3"]
    # Of so many the first are forgotten.
    renewals.renew("svc", "r0")
    await asyncio.sleep(0)
    assert [call[1] for call in store.renewed][4:] == ["r0"]


async def test_stopping_gives_up_what_is_under_way() -> None:
    store = RecordingStore(gate=asyncio.Event())
    renewals = Renewals(store, RecordingTelemetry(), deadline_ms=1000)
    renewals.renew("svc", "r1")
    await asyncio.sleep(0)
    async with asyncio.timeout(2):
        await renewals.stop()
    assert store.renewed == []
