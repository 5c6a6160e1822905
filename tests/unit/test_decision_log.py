"""Every decision can be logged with the values before and after; only at level debug."""

import logging
from dataclasses import replace

import pytest

from extproc.core.buckets import Unit
from extproc.core.reservations import BucketState
from tests.support.admission import Bench, message
from tests.support.fakes import RecordingStore, admitted
from tests.support.reservations import request


async def _ask(caplog: pytest.LogCaptureFixture, level: int) -> list[logging.LogRecord]:
    states = tuple(
        BucketState(label=f"p/{unit}", unit=unit, limit=100, remaining=50, reset_ms=1)
        for unit in Unit
    )
    verdict = admitted(request(root="svc", input_tokens=30))
    store = RecordingStore()
    store.verdicts.append(replace(verdict, buckets=states))
    with caplog.at_level(level, logger="tokenweir"):
        await Bench(store=store).ask(message())
    return [record for record in caplog.records if record.message == "admitted"]


async def test_an_admission_shows_every_limit_before_and_after(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (record,) = await _ask(caplog, logging.DEBUG)
    limits = {entry["limit"]: entry for entry in record.__dict__["limits"]}
    before = {name: entry["left_before"] for name, entry in limits.items()}
    assert before == {
        "p/requests": 51,
        "p/input": 80,
        "p/output": 60,
        "p/total": 90,
        "p/cost": 50,
        "p/slot": 51,
    }
    assert {entry["left_after"] for entry in limits.values()} == {50}
    assert record.__dict__["service_id"] == "svc"


async def test_it_costs_nothing_where_nobody_reads_it(caplog: pytest.LogCaptureFixture) -> None:
    assert await _ask(caplog, logging.INFO) == []
