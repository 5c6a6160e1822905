"""Gauges of what a process holds."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from extproc.control.vitals import Vitals, forget_gauges


class Server:
    open_streams = 3


async def test_what_is_held_now_is_shown() -> None:
    registry = CollectorRegistry()
    vitals = Vitals(registry, Server())
    sleeper = asyncio.create_task(asyncio.sleep(60))
    vitals.look()
    shown = registry.get_sample_value
    assert shown("tokenweir_open_streams") == 3
    # This one, the sleeper, and the one that looks.
    assert shown("tokenweir_tasks") == 3
    blocks = shown("tokenweir_memory_blocks") or 0
    held = [object() for _ in range(10_000)]
    vitals.look()
    assert (shown("tokenweir_memory_blocks") or 0) >= blocks + 9_000
    assert len(held) == 10_000
    sleeper.cancel()
    await vitals.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await asyncio.gather(sleeper, return_exceptions=True)


def test_what_an_ended_worker_held_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    for pid in (11, 12):
        (tmp_path / f"gauge_livesum_{pid}.db").touch()
    forget_gauges(11)
    assert [file.name for file in tmp_path.iterdir()] == ["gauge_livesum_12.db"]
