"""The access log's entries: how each request ended, and what is settled for it."""

import asyncio
from typing import Any

import pytest
from envoy.data.accesslog.v3.accesslog_pb2 import AccessLogType, HTTPAccessLogEntry
from envoy.service.accesslog.v3 import als_pb2

from extproc.core.handles import Handle
from extproc.core.reservations import Knowledge, Outcome, State
from extproc.core.settler import Settler
from extproc.envoy_io.attributes import fill_struct
from extproc.envoy_io.ending import Ending, outcome_of
from tests.support.fakes import RecordingStore, RecordingTelemetry
from tests.support.streams import MemoryContext

HANDLE = Handle(
    reservation_id="r1",
    root="svc",
    wire_format="openai_chat",
    model="gpt-4o",
    input_tokens=45,
    reserved_tokens=545,
    encoding="o200k_base",
    hides_usage=False,
)


def entry(
    *flags: str,
    code: int = 200,
    called: bool = True,
    answered: bool = True,
    handle: Handle | None = HANDLE,
    metered: bool = False,
) -> HTTPAccessLogEntry:
    made = HTTPAccessLogEntry()
    common = made.common_properties
    for flag in flags:
        setattr(common.response_flags, flag, True)
    made.response.response_code.value = code
    if called:
        common.time_to_first_upstream_tx_byte.FromMilliseconds(1)
    if answered:
        common.time_to_first_upstream_rx_byte.FromMilliseconds(2)
    if handle is not None:
        struct = common.metadata.filter_metadata["llm"]
        fill_struct(struct, handle.to_fields())
        if metered:
            struct.fields["met"].number_value = 1
    return made


@pytest.mark.parametrize(
    ("made", "outcome"),
    [
        (entry(), Outcome.COMPLETE_ESTIMATED),
        (entry("downstream_connection_termination"), Outcome.CLIENT_GONE),
        (entry("downstream_remote_reset"), Outcome.CLIENT_GONE),
        (
            entry("downstream_remote_reset", code=0, called=False, answered=False),
            Outcome.NOT_FORWARDED,
        ),
        (
            entry("downstream_remote_reset", code=0, called=True, answered=False),
            Outcome.CLIENT_GONE,
        ),
        (entry("upstream_protocol_error"), Outcome.UPSTREAM_BROKEN),
        (entry("upstream_remote_reset"), Outcome.UPSTREAM_BROKEN),
        (entry("upstream_request_timeout"), Outcome.UPSTREAM_BROKEN),
        (
            entry("upstream_request_timeout", code=504, answered=False),
            Outcome.UPSTREAM_BROKEN,
        ),
        (
            entry("upstream_connection_failure", code=503, answered=False, called=False),
            Outcome.UPSTREAM_REFUSED,
        ),
        (
            entry("upstream_connection_termination", code=503, answered=False),
            Outcome.UPSTREAM_REFUSED,
        ),
        (
            entry("no_healthy_upstream", code=503, called=False, answered=False),
            Outcome.UPSTREAM_REFUSED,
        ),
        (
            entry("upstream_protocol_error", code=502),
            Outcome.UPSTREAM_BROKEN,
        ),
        (entry(code=500), Outcome.UPSTREAM_REFUSED),
        (entry(code=429), Outcome.UPSTREAM_REFUSED),
        (entry(code=403, called=False, answered=False), Outcome.NOT_FORWARDED),
    ],
)
def test_flags_code_and_times_tell_how_it_ended(made: HTTPAccessLogEntry, outcome: Outcome) -> None:
    assert outcome_of(made) is outcome


class Recorder:
    def __init__(self) -> None:
        self.store = RecordingStore()
        self.telemetry = RecordingTelemetry()
        self.settler = Settler(self.store, self.telemetry)
        self.stopping = asyncio.Event()
        self.ending = Ending(self.settler, self.telemetry, stopping=self.stopping)

    async def log(self, *entries: HTTPAccessLogEntry) -> None:
        message = als_pb2.StreamAccessLogsMessage()
        message.http_logs.log_entry.extend(entries)
        context: Any = MemoryContext([message])
        await self.ending.process(context)
        await self.settler.flush(timeout_seconds=1)


async def test_what_was_never_answered_is_released() -> None:
    recorder = Recorder()
    await recorder.log(entry("upstream_connection_failure", code=503, called=False))
    assert [s.outcome for s in recorder.store.released] == [Outcome.UPSTREAM_REFUSED]
    assert recorder.store.released[0].state is State.RELEASED


async def test_without_a_word_from_metering_the_reserve_is_the_guess() -> None:
    recorder = Recorder()
    await recorder.log(entry("downstream_remote_reset"))
    settled = recorder.store.settled[0]
    assert settled.outcome is Outcome.CLIENT_GONE
    assert settled.knowledge is Knowledge.GUESSED
    assert settled.input_tokens + settled.output_tokens == 545


async def test_an_answer_that_broke_before_it_was_passed_on_costs_its_input() -> None:
    recorder = Recorder()
    await recorder.log(entry("upstream_protocol_error", code=502))
    settled = recorder.store.settled[0]
    assert (settled.input_tokens, settled.output_tokens) == (45, 0)
    assert settled.state is State.RECONCILING


async def test_what_metering_settled_is_left_alone() -> None:
    recorder = Recorder()
    await recorder.log(entry(metered=True))
    assert recorder.store.settled == []
    assert recorder.store.released == []
    assert recorder.telemetry.lines == ["ended metered"]


async def test_entries_without_our_handle_are_ignored() -> None:
    recorder = Recorder()
    await recorder.log(entry(handle=None))
    assert recorder.store.settled == []


async def test_periodic_entries_end_nothing() -> None:
    recorder = Recorder()
    periodic = entry()
    periodic.common_properties.access_log_type = AccessLogType.DownstreamPeriodic
    intermediate = entry()
    intermediate.common_properties.intermediate_log_entry = True
    await recorder.log(periodic, intermediate)
    assert recorder.store.settled == []


async def test_a_stopping_server_returns_so_that_envoy_keeps_its_entries() -> None:
    recorder = Recorder()
    context: Any = MemoryContext(half_close=False)
    task = asyncio.create_task(recorder.ending.process(context))
    async with asyncio.timeout(2):
        await context.idle.wait()
        recorder.stopping.set()
        await task
