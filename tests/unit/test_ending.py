"""The access log's entries: how each request ended, and what is settled for it."""

import asyncio
from typing import Any

import pytest
from envoy.data.accesslog.v3.accesslog_pb2 import AccessLogType, HTTPAccessLogEntry
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from extproc.core.handles import UNMETERED_KEY, Handle
from extproc.core.renewals import Renewals
from extproc.core.reservations import Knowledge, Outcome, State
from extproc.core.settler import Settler
from extproc.envoy_io.admission import reservation_id_from
from extproc.envoy_io.attributes import Attributes, fill_struct
from extproc.envoy_io.ending import Ending, outcome_of
from extproc.envoy_io.identity import FromHeader
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
    whole: bool = True,
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
    if answered and whole:
        common.time_to_last_upstream_rx_byte.FromMilliseconds(3)
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
        (entry("downstream_protocol_error"), Outcome.CLIENT_GONE),
        (entry(whole=False), Outcome.CLIENT_GONE),
        (entry(code=0, called=True, answered=False), Outcome.CLIENT_GONE),
        (entry(code=0, called=False, answered=False), Outcome.NOT_FORWARDED),
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
        self.ending = Ending(
            self.settler,
            Renewals(self.store, self.telemetry, deadline_ms=90_000),
            self.telemetry,
            identity=(FromHeader("x-tokenweir-service"),),
            stopping=self.stopping,
        )

    async def log(self, *entries: HTTPAccessLogEntry) -> None:
        message = als_pb2.StreamAccessLogsMessage()
        message.http_logs.log_entry.extend(entries)
        context: Any = MemoryContext([message])
        await self.ending.process(context)
        await self.settler.flush(timeout_seconds=1)
        await asyncio.sleep(0)  # what a renewal needs to reach a store that answers at once


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


def undelivered(*, called: bool = False, service: str = "svc", details: str = "") -> Any:
    made = entry("downstream_connection_termination", code=0, called=called, answered=False)
    common = made.common_properties
    del common.metadata.filter_metadata["llm"]
    common.start_time.FromJsonString("2026-11-30T08:33:11.025061Z")
    common.downstream_remote_address.socket_address.address = "127.0.0.1"
    common.downstream_remote_address.socket_address.port_value = 45562
    made.request.request_id = "req-1"
    if service:
        made.request.request_headers["x-tokenweir-service"] = service
    made.response.response_code_details = details
    return made


async def test_a_request_that_envoy_gave_up_while_we_admitted_it_is_released() -> None:
    """The entry has no handle; its id is computed from what both conversations see."""
    request = pb.ProcessingRequest()
    fields = request.attributes["envoy.filters.http.ext_proc"].fields
    fields["request.time"].string_value = "2026-11-30T08:33:11.025061+00:00"
    fields["source.address"].string_value = "127.0.0.1:45562"
    admitted = reservation_id_from(Attributes(request), "req-1")
    recorder = Recorder()
    await recorder.log(undelivered())
    (release,) = recorder.store.released
    assert release.reservation_id == admitted
    assert release.root == "svc"
    assert release.outcome is Outcome.NOT_FORWARDED


@pytest.mark.parametrize(
    "made",
    [
        entry(handle=None),
        undelivered(called=True),
        undelivered(service=""),
        undelivered(service="a{b}"),
        undelivered(details="tokenweir_redis_unavailable"),
    ],
)
async def test_other_entries_without_our_handle_are_ignored(made: HTTPAccessLogEntry) -> None:
    recorder = Recorder()
    await recorder.log(made)
    assert recorder.store.settled == []
    assert recorder.store.released == []


def unmarked(
    *flags: str, code: int = 200, called: bool = True, body: int = 0, details: str = ""
) -> HTTPAccessLogEntry:
    made = entry(*flags, code=code, called=called, answered=called, handle=None)
    made.request.request_body_bytes = body
    made.response.response_code_details = details
    return made


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (unmarked(), "no_body allowed"),
        (unmarked(body=2), "not_asked allowed"),
        (unmarked(code=500, body=2), "not_asked allowed"),
        (unmarked(code=101), "upgrade allowed"),
        (unmarked(code=403, called=False, details="upgrade_failed"), "upgrade refused"),
        (unmarked("no_route_found", code=404, called=False), "not_routed refused"),
    ],
)
async def test_what_admission_never_saw_is_counted_by_its_reason(
    made: HTTPAccessLogEntry, line: str
) -> None:
    recorder = Recorder()
    await recorder.log(made)
    assert recorder.telemetry.lines == [f"unmetered {line}"]
    assert not recorder.store.settled + recorder.store.released


def marked(made: HTTPAccessLogEntry) -> HTTPAccessLogEntry:
    """As admission marks what it lets through without a reservation."""
    struct = made.common_properties.metadata.filter_metadata["llm"]
    fill_struct(struct, {UNMETERED_KEY: "unknown_path"})
    return made


@pytest.mark.parametrize(
    "made",
    [
        marked(unmarked(body=2)),
        unmarked(code=403, called=False, details="tokenweir_unmetered_request"),
        unmarked(code=301, called=False),
        unmarked(code=403, called=False, details="rbac_access_denied"),
    ],
)
async def test_what_is_counted_already_or_went_nowhere_is_not_counted(
    made: HTTPAccessLogEntry,
) -> None:
    recorder = Recorder()
    await recorder.log(made)
    assert recorder.telemetry.lines == []
    assert not recorder.store.settled + recorder.store.released


def periodic(**given: Any) -> HTTPAccessLogEntry:
    made = entry(**given)
    made.common_properties.access_log_type = AccessLogType.DownstreamPeriodic
    made.common_properties.intermediate_log_entry = True
    return made


async def test_a_periodic_entry_renews_and_ends_nothing() -> None:
    recorder = Recorder()
    await recorder.log(periodic())
    assert recorder.store.renewed == [("svc", "r1", 90_000)]
    assert not recorder.store.settled + recorder.store.released
    assert recorder.telemetry.lines == ["renewed renewed"]


@pytest.mark.parametrize("made", [periodic(metered=True), periodic(handle=None)])
async def test_a_periodic_entry_of_what_has_ended_or_is_not_ours_renews_nothing(
    made: HTTPAccessLogEntry,
) -> None:
    recorder = Recorder()
    await recorder.log(made)
    assert recorder.store.renewed == []
    assert not recorder.store.settled + recorder.store.released


async def test_other_intermediate_entries_do_nothing() -> None:
    recorder = Recorder()
    intermediate, start = entry(), entry()
    intermediate.common_properties.intermediate_log_entry = True
    start.common_properties.access_log_type = AccessLogType.DownstreamStart
    await recorder.log(intermediate, start)
    assert recorder.store.renewed == []
    assert recorder.store.settled == []


async def test_a_stopping_server_returns_so_that_envoy_keeps_its_entries() -> None:
    recorder = Recorder()
    context: Any = MemoryContext(half_close=False)
    task = asyncio.create_task(recorder.ending.process(context))
    async with asyncio.timeout(2):
        await context.idle.wait()
        recorder.stopping.set()
        await task
