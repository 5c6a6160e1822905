"""The settler: hands over without awaiting, tries again, gives up to the reaper, flushes."""

import asyncio
import logging
from dataclasses import replace

import pytest

from extproc.core.errors import StoreUnavailableError
from extproc.core.reservations import (
    Knowledge,
    Outcome,
    Settlement,
    SettleResult,
    Source,
    State,
)
from extproc.core.settler import Settler
from extproc.core.usage import Usage
from tests.support.fakes import RecordingStore, RecordingTelemetry

AWAY = StoreUnavailableError("redis", "away", transient=True)


def settlement(outcome: Outcome = Outcome.COMPLETE, state: State = State.SETTLED) -> Settlement:
    return Settlement(
        reservation_id="r",
        root="svc",
        input_tokens=1,
        output_tokens=2,
        knowledge=Knowledge.KNOWN,
        outcome=outcome,
        source=Source.METERING,
        state=state,
    )


async def test_a_release_and_a_settlement_go_to_their_own_verbs() -> None:
    store = RecordingStore()
    settler = Settler(store, RecordingTelemetry())
    settler.submit(settlement())
    settler.submit(settlement(Outcome.UPSTREAM_REFUSED, State.RELEASED))
    assert settler.pending == 2
    assert await settler.flush(timeout_seconds=1) == 0
    assert len(store.settled) == 1
    assert len(store.released) == 1


async def test_a_store_that_comes_back_gets_the_settlement_once() -> None:
    store = RecordingStore(settle_errors=[AWAY, AWAY])
    settler = Settler(store, RecordingTelemetry())
    settler.submit(settlement())
    assert await settler.flush(timeout_seconds=5) == 0
    assert len(store.settled) == 1


async def test_a_store_that_stays_away_leaves_it_to_the_reaper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("extproc.core.settler._GIVE_UP_SECONDS", 0.01)
    monkeypatch.setattr("extproc.core.settler._FIRST_PAUSE_SECONDS", 0.02)
    telemetry = RecordingTelemetry()
    settler = Settler(RecordingStore(settle_errors=[AWAY] * 100), telemetry)
    settler.submit(settlement())
    assert await settler.flush(timeout_seconds=5) == 0
    assert telemetry.lines == ["settlement_failed metering"]


async def test_the_backlog_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extproc.core.settler._MOST_PENDING", 1)
    telemetry = RecordingTelemetry()
    settler = Settler(RecordingStore(), telemetry)
    settler.submit(settlement())
    settler.submit(settlement())
    assert telemetry.lines == ["settlement_failed metering"]
    await settler.flush(timeout_seconds=1)


async def test_a_flush_that_runs_out_of_time_says_how_many_are_left() -> None:
    class Stuck(RecordingStore):
        async def settle(self, settlement: Settlement) -> SettleResult:
            await asyncio.get_running_loop().create_future()
            raise AssertionError

    settler = Settler(Stuck(), RecordingTelemetry())
    settler.submit(settlement())
    assert await settler.flush(timeout_seconds=0.01) == 1


async def test_only_what_is_not_plain_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tokenweir.settle")
    settler = Settler(RecordingStore(), RecordingTelemetry())
    settler.submit(settlement())
    await settler.flush(timeout_seconds=1)
    assert caplog.records == []
    settler.submit(settlement(Outcome.CUT))
    await settler.flush(timeout_seconds=1)
    assert [record.message for record in caplog.records] == ["settlement"]


async def test_a_plain_settlement_tells_its_usage_by_kind_at_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="tokenweir.settle")
    settler = Settler(RecordingStore(), RecordingTelemetry())
    usage = Usage(input_tokens=9, output_tokens=2, cached_input_tokens=4, reasoning_tokens=0)
    settler.submit(replace(settlement(), usage=usage))
    await settler.flush(timeout_seconds=1)
    (record,) = caplog.records
    assert vars(record)["usage"] == {"input": 9, "output": 2, "cached_input": 4}
