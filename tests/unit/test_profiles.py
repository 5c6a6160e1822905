"""Profiles observe and native: what is settled, and by whom."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from envoy.config.core.v3.base_pb2 import Metadata
from envoy.data.accesslog.v3.accesslog_pb2 import HTTPAccessLogEntry
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.handles import handle_from_fields
from extproc.core.learned_bytes import LearnedBytes
from extproc.core.learned_factors import LearnedFactors
from extproc.core.metered import Metered
from extproc.core.renewals import Renewals
from extproc.core.reservations import Knowledge, Outcome, Settlement, State
from extproc.core.settler import Settler
from extproc.core.usage import Usage
from extproc.envoy_io.attributes import fill_struct, read_handle
from extproc.envoy_io.ending import Ending
from extproc.envoy_io.metering import Metering
from extproc.envoy_io.native import Native
from extproc.envoy_io.native_usage import native_usage, token_usage
from extproc.providers.metadata_usage import usage_of_fields
from extproc.providers.registry import read_request
from extproc.providers.requests import ReadLimits, RequestFacts, UsageEvents
from tests.support.fakes import RecordingStore, RecordingTelemetry
from tests.support.streams import MemoryContext
from tests.unit.test_ending import HANDLE, entry
from tests.unit.test_metering import DONE, USAGE, WORDS, body, headers

OBSERVED = replace(HANDLE, profile="observe")
NATIVE = replace(HANDLE, profile="native")
STREAM = b'{"model":"gpt-4o","stream":true,"messages":[{"role":"user","content":"hi"}]}'


def seen(made: HTTPAccessLogEntry, size: int = 0, **usage: float) -> HTTPAccessLogEntry:
    """An entry of an answer of ``size`` bytes in which Envoy read ``usage`` (``__`` for a dot)."""
    made.response.response_body_bytes = size
    made.response.response_headers["content-type"] = "text/event-stream; charset=utf-8"
    struct = made.common_properties.metadata.filter_metadata["llm.usage"]
    for name, value in usage.items():
        struct.fields[name.replace("__", ".")].number_value = value
    return made


def total(end: Settlement) -> int:
    return end.input_tokens + end.output_tokens


class Bench:
    """Metering and ending of one server that share what was metered."""

    def __init__(self, *, hold_seconds: float = 0) -> None:
        self.store = RecordingStore()
        telemetry = self.telemetry = RecordingTelemetry()
        self.settler = Settler(self.store, telemetry)
        metered = Metered()
        self.metering = Metering(
            self.settler, telemetry, is_stopping=lambda: False, metered=metered
        )
        self.ending = Ending(
            self.settler,
            Renewals(self.store, telemetry, deadline_ms=1000),
            telemetry,
            identity=(),
            stopping=asyncio.Event(),
            metered=metered,
            hold_seconds=hold_seconds,
        )

    async def ends(self) -> list[Settlement]:
        await self.settler.flush(timeout_seconds=1)
        return self.store.settled + self.store.released


async def test_copies_of_an_answer_settle_it_without_a_word_to_envoy() -> None:
    bench = Bench()
    context: Any = MemoryContext(
        [headers(handle=OBSERVED), body(WORDS[0]), body(USAGE), body(DONE, end=True)]
    )
    await bench.metering.observe(context)
    bench.ending.on_entry(entry(handle=OBSERVED))
    (end,) = await bench.ends()
    assert context.written == []
    assert (end.knowledge, end.output_tokens) == (Knowledge.KNOWN, 3)


async def test_an_answer_whose_copies_never_came_is_settled_by_its_entry() -> None:
    bench = Bench()
    bench.ending.on_entry(entry(handle=OBSERVED))
    (end,) = await bench.ends()
    assert (end.knowledge, end.outcome) == (Knowledge.GUESSED, Outcome.COMPLETE_ESTIMATED)


async def test_an_entry_that_comes_before_the_copies_waits_for_them() -> None:
    bench = Bench(hold_seconds=0.05)
    bench.ending.on_entry(entry(handle=OBSERVED))
    await bench.metering.observe(
        MemoryContext([headers(handle=OBSERVED), body(USAGE), body(DONE, end=True)])
    )
    async with asyncio.timeout(5):
        while "ended metered" not in bench.telemetry.lines:
            await asyncio.sleep(0.005)
    (end,) = await bench.ends()
    assert end.knowledge is Knowledge.KNOWN


async def test_what_waits_is_settled_when_its_time_is_over_or_the_server_stops() -> None:
    bench = Bench(hold_seconds=0.02)
    bench.ending.on_entry(entry(handle=OBSERVED))
    assert await bench.ends() == []
    async with asyncio.timeout(5):
        while not await bench.ends():
            await asyncio.sleep(0.005)
    bench = Bench(hold_seconds=60)
    bench.ending.on_entry(entry(handle=OBSERVED))
    bench.ending.flush()
    (end,) = await bench.ends()
    assert end.knowledge is Knowledge.GUESSED


async def test_copies_that_stop_settle_what_was_seen() -> None:
    bench = Bench()
    await bench.metering.observe(MemoryContext([headers(handle=OBSERVED), body(WORDS[0])]))
    (end,) = await bench.ends()
    assert (end.knowledge, end.outcome) == (Knowledge.COUNTED, Outcome.CUT)


async def test_an_error_answer_is_released_by_its_copies() -> None:
    bench = Bench()
    await bench.metering.observe(MemoryContext([headers("429", handle=OBSERVED)]))
    bench.ending.on_entry(entry(code=429, handle=OBSERVED))
    (end,) = await bench.ends()
    assert end.outcome is Outcome.UPSTREAM_REFUSED


async def test_an_entry_with_usage_settles_it() -> None:
    bench = Bench()
    usage = {"usage__prompt_tokens": 40.0, "usage__completion_tokens": 7.0}
    bench.ending.on_entry(seen(entry(handle=NATIVE), 2000, **usage))
    (end,) = await bench.ends()
    assert (end.input_tokens, end.output_tokens) == (40, 7)
    assert (end.knowledge, end.outcome) == (Knowledge.KNOWN, Outcome.COMPLETE)
    assert end.writes_history


async def test_usage_of_an_answer_that_was_cut_is_a_running_total() -> None:
    bench = Bench()
    usage = {"usage__prompt_tokens": 40.0, "usage__completion_tokens": 7.0}
    bench.ending.on_entry(seen(entry("downstream_remote_reset", handle=NATIVE), 2000, **usage))
    (end,) = await bench.ends()
    assert (total(end), end.knowledge) == (47, Knowledge.COUNTED)
    assert end.outcome is Outcome.CLIENT_GONE
    assert not end.writes_history


async def test_without_usage_the_size_of_the_answer_is_the_estimate() -> None:
    bench = Bench()
    bench.ending.on_entry(seen(entry(handle=NATIVE), 60_000))
    (end,) = await bench.ends()
    assert (end.input_tokens, end.output_tokens) == (45, 600)
    assert (end.knowledge, end.state) == (Knowledge.GUESSED, State.SETTLED)
    assert end.outcome is Outcome.COMPLETE_ESTIMATED


async def test_the_estimate_learns_from_answers_of_the_same_model() -> None:
    native = Native()
    usage = {"usage__prompt_tokens": 40.0, "usage__completion_tokens": 10.0}
    whole = seen(entry(handle=NATIVE), 2500, **usage)
    native.settlement(NATIVE, Outcome.COMPLETE_ESTIMATED, whole, undelivered=False)
    cut = seen(entry(handle=NATIVE), 250_000)
    end = native.settlement(NATIVE, Outcome.CLIENT_GONE, cut, undelivered=False)
    assert end.output_tokens == 1000
    other = replace(NATIVE, root="another")
    end = native.settlement(other, Outcome.CLIENT_GONE, cut, undelivered=False)
    assert end.output_tokens == 2500


@pytest.mark.parametrize("outcome", [Outcome.CLIENT_GONE, Outcome.UPSTREAM_BROKEN])
async def test_an_estimate_is_never_below_the_reserve(outcome: Outcome) -> None:
    """A client that leaves before the first byte may have cost the provider a whole answer."""
    for size in (0, 700):
        end = Native().settlement(NATIVE, outcome, seen(entry(), size), undelivered=True)
        assert total(end) == NATIVE.reserved_tokens


async def test_an_answer_of_envoys_own_in_place_of_one_that_had_begun_keeps_the_reserve() -> None:
    made = seen(entry(code=500, handle=NATIVE), 30)
    made.response.response_code_details = "response_payload_too_large"
    end = Native().settlement(NATIVE, Outcome.UPSTREAM_REFUSED, made, undelivered=False)
    assert (total(end), end.outcome) == (NATIVE.reserved_tokens, Outcome.UPSTREAM_BROKEN)


async def test_usage_of_an_answer_that_broke_is_to_be_reconciled() -> None:
    usage = {"usage__prompt_tokens": 40.0, "usage__completion_tokens": 7.0}
    made = seen(entry("upstream_protocol_error", handle=NATIVE), 99, **usage)
    end = Native().settlement(NATIVE, Outcome.UPSTREAM_BROKEN, made, undelivered=False)
    assert (total(end), end.state) == (47, State.RECONCILING)


async def test_input_factors_are_learnt_from_entries_too() -> None:
    learned = LearnedFactors()
    handle = replace(NATIVE, input_tokens=100, learned_permille=1000)
    usage = {"usage__prompt_tokens": 150.0, "usage__completion_tokens": 10.0}
    native = Native(learned)
    for _ in range(50):
        native.settlement(
            handle, Outcome.COMPLETE_ESTIMATED, seen(entry(), 99, **usage), undelivered=False
        )
    assert learned.permille("openai", handle.model) > 1100


@pytest.mark.parametrize("outcome", [Outcome.UPSTREAM_REFUSED, Outcome.NOT_FORWARDED])
async def test_what_was_not_answered_is_released(outcome: Outcome) -> None:
    made = seen(entry(), 120)
    made.response.response_code_details = "via_upstream"
    end = Native().settlement(NATIVE, outcome, made, undelivered=False)
    assert (end.state, total(end)) == (State.RELEASED, 0)


async def test_vectors_have_no_output_whatever_their_size() -> None:
    handle = replace(NATIVE, wire_format="openai_embeddings", reserved_tokens=45)
    end = Native().settlement(
        handle,
        Outcome.COMPLETE_ESTIMATED,
        seen(entry(), 90_000, usage__prompt_tokens=44.0),
        undelivered=False,
    )
    assert (end.input_tokens, end.output_tokens) == (44, 0)
    assert end.knowledge is Knowledge.KNOWN


async def test_pictures_without_usage_keep_their_reserve() -> None:
    handle = replace(NATIVE, wire_format="openai_images")
    end = Native().settlement(
        handle, Outcome.COMPLETE_ESTIMATED, seen(entry(), 90_000), undelivered=False
    )
    assert total(end) == handle.reserved_tokens


def test_the_profile_travels_with_the_handle() -> None:
    for handle in (HANDLE, OBSERVED, NATIVE):
        assert handle_from_fields(handle.to_fields()) == handle
    assert handle_from_fields(HANDLE.to_fields()) == HANDLE
    assert handle_from_fields({**HANDLE.to_fields(), "more": "7"}) == HANDLE


@pytest.mark.parametrize(
    ("events", "asks", "hides"),
    [("hide", True, True), ("show", True, False), ("leave", False, False)],
)
def test_usage_is_asked_for_where_its_event_can_be_hidden_or_may_be_seen(
    events: UsageEvents, asks: bool, hides: bool
) -> None:
    facts = read_request(
        "/v1/chat/completions",
        STREAM,
        content_type="application/json",
        content_encoding=None,
        limits=ReadLimits(usage_events=events),
    )
    assert isinstance(facts, RequestFacts)
    assert (facts.new_body is not None, facts.hides_usage) == (asks, hides)


def test_what_was_metered_is_told_once_and_forgotten_in_order() -> None:
    metered = Metered(most=2)
    for name in ("a", "b", "c"):
        metered.add(name)
    assert [metered.take(name) for name in ("a", "b", "c", "c")] == [False, True, True, False]


def test_bytes_of_short_answers_teach_nothing_and_the_keys_are_bounded() -> None:
    learned = LearnedBytes()
    key = ("svc", "openai_chat", "m", True)
    learned.learn(key, size=2000, tokens=2)
    assert learned.tokens(key, 200) == 2
    for number in range(3000):
        learned.learn(("svc", "f", str(number), False), size=80, tokens=8)
    assert len(learned._ratios) <= 1024
    assert learned.tokens(("svc", "f", "2999", False), 25) == 3
    assert learned.tokens(("svc", "f", "0", False), 25) == 7


@pytest.mark.parametrize(
    ("wire_format", "fields", "usage"),
    [
        ("openai_chat", {}, Usage()),
        ("openai_chat", {"usage.prompt_tokens": 5.0, "usage.completion_tokens": 0.0}, Usage()),
        (
            "anthropic_messages",
            {
                "message.usage.input_tokens": 40.0,
                "message.usage.cache_read_input_tokens": 60.0,
                "usage.output_tokens": 7.0,
                "usage.input_tokens": 0.0,
            },
            Usage(input_tokens=100, output_tokens=7, cached_input_tokens=60),
        ),
        (
            "openai_responses",
            {"response.usage.input_tokens": 4.0, "response.usage.output_tokens": 7.0},
            Usage(input_tokens=4, output_tokens=7),
        ),
        (
            "cohere_v2",
            {
                "delta.usage.billed_units.input_tokens": 4.0,
                "delta.usage.billed_units.output_tokens": 7.0,
            },
            Usage(input_tokens=4, output_tokens=7),
        ),
    ],
)
def test_numbers_by_path_are_read_by_the_formats_own_rules(
    wire_format: str, fields: dict[str, object], usage: Usage
) -> None:
    assert usage_of_fields(wire_format, fields) == usage


@given(st.dictionaries(st.text(max_size=30), st.floats() | st.text(max_size=5), max_size=20))
def test_no_metadata_raises_or_mints(fields: dict[str, object]) -> None:
    for wire_format in ("openai_chat", "anthropic_messages", "gemini", "ollama_chat", "unknown"):
        usage = usage_of_fields(wire_format, fields)
        assert (usage.output_tokens or 0) >= 0
        assert (usage.input_tokens or 0) >= 0


@given(st.binary(max_size=60))
def test_no_bytes_of_a_packed_usage_raise(data: bytes) -> None:
    usage = token_usage(data)
    assert 0 <= (usage.input_tokens or 0) < 2**31
    metadata = Metadata()
    packed = metadata.typed_filter_metadata["envoy.ai.token_usage"]
    packed.type_url = "type.googleapis.com/envoy.data.ai.v3.TokenUsage"
    packed.value = data
    native_usage("openai_chat", metadata)


def test_a_packed_usage_is_read() -> None:
    # input 10120, output 1499, cached 128, reasoning 2809, the provider's total 14428: beside.
    data = bytes.fromhex(
        "0801120b6770742d346f2d6d696e691a0308884f220308db0b2a0308e35a32050a030880013a050a0308f9154203"
        "08dc704801"
    )
    assert token_usage(data) == Usage(
        input_tokens=10120, output_tokens=4308, cached_input_tokens=128, reasoning_tokens=2809
    )


def test_handles_of_entries_are_filled_as_envoy_does() -> None:
    struct = Metadata().filter_metadata["llm"]
    fill_struct(struct, NATIVE.to_fields())
    assert read_handle(struct.fields) == NATIVE


@pytest.mark.parametrize(
    ("code", "details", "errors"),
    [
        (429, "via_upstream", ["rate_limited"]),
        (302, "via_upstream", []),
        (500, "response_payload_too_large", []),
    ],
)
async def test_providers_errors_are_told_by_their_status(
    code: int, details: str, errors: list[str]
) -> None:
    bench = Bench()
    made = seen(entry(code=code, handle=NATIVE), 99)
    made.response.response_code_details = details
    bench.ending.on_entry(made)
    assert [error.code.value for error in bench.telemetry.provider_errors] == errors
    assert len(await bench.ends()) == 1
