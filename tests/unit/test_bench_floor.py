"""The floor's bytes are those that the product's own builders make, and its report adds up."""

import hiredis
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from extproc.core.handles import NAMESPACE, Handle, limit_fields
from extproc.core.reservations import Admitted, WindowView
from extproc.envoy_io.replies import admitted_reply
from tests.bench.floor import Floor, floor_faults
from tests.bench.floor_messages import ProcessingRequest
from tests.bench.floor_words import (
    ENCODING,
    admitted_answer,
    handle_text,
    number_word,
    templates_of,
)
from tests.bench.floor_work import STEPS
from tests.bench.load import LoadResult
from tests.bench.measure import Sample
from tests.bench.report_floor import floor_tables, floor_values
from tests.bench.rounds import JSON, STREAMS
from tests.bench.traffic import MODEL, PLAUSIBLE_REPLY, WIRE_FORMAT

_ID = "0123456789abcdef" * 2
_ROOT = "svc-bench"


def _sample(python_us: float, *, scripts: float = 2.0) -> Sample:
    load = LoadResult(
        requests=10, seconds=1.0, statuses={"200": 10}, failed=0, p50_ms=1.0, p99_ms=2.0
    )
    return Sample(
        load=load,
        envoy_cpu_us=1.0,
        python_cpu_us=python_us,
        messages=1.0,
        redis_scripts=scripts,
        redis_reads=1.0,
    )


@pytest.mark.parametrize("reset_ms", [30_000, 29_001, 999, 60_000])
@pytest.mark.parametrize("request_id", ["r", "x" * 128])
def test_the_answer_is_that_of_the_product(reset_ms: int, request_id: str) -> None:
    _, _, given, reserved, rpm, rpm_left, tpm, tpm_left, _ = PLAUSIBLE_REPLY
    handle = Handle(
        reservation_id=_ID,
        root=_ROOT,
        wire_format=WIRE_FORMAT,
        model=MODEL,
        input_tokens=given,
        reserved_tokens=reserved,
        encoding=ENCODING,
        hides_usage=False,
        request_id=request_id,
        profile="native",
    )
    verdict = Admitted(
        reservation_id=_ID,
        root=_ROOT,
        minute="202601010000",
        input_tokens=given,
        reserved_tokens=reserved,
        requests=WindowView(limit=rpm, remaining=rpm_left, reset_ms=reset_ms),
        tokens=WindowView(limit=tpm, remaining=tpm_left, reset_ms=reset_ms),
    )
    theirs = admitted_reply(verdict, handle.to_fields(), new_body=None)
    text = handle_text(
        "native", input_tokens=given, reserved_tokens=reserved, request_id=request_id
    )
    reply = (*PLAUSIBLE_REPLY[:8], reset_ms)
    mine = admitted_answer(templates_of(_ROOT, MODEL, "ending"), _ID.encode(), text, reply)
    assert pb.ProcessingResponse.FromString(mine) == theirs
    fields = theirs.dynamic_metadata.fields[NAMESPACE].struct_value.fields
    assert len(fields) == len(handle.to_fields()) + len(limit_fields(verdict))


def test_the_commands_have_the_words_that_they_say() -> None:
    templates = templates_of(_ROOT, "a%s model", "ending")
    known = _ID.encode()
    reserve = templates.reserve % (known, known, number_word(7), number_word(256), 3, b"r-1")
    reader = hiredis.Reader()
    reader.feed(reserve + templates.settle % (known, known, number_word(7), number_word(48)))
    words = reader.gets()
    assert (words[0], words[2], words[7], words[10]) == (
        b"EVALSHA",
        b"7",
        b"resv:{svc-bench}:" + known,
        known,
    )
    assert words[11:14] == [b"7", b"256", b"512"]
    assert words[16:18] == [b"a%s model", b"r-1"]
    settle = reader.gets()
    assert settle[4] == b"resv:{svc-bench}:" + known
    assert settle[10:14] == [known, b"3", b"7", b"48"]
    assert reader.gets() is False


def test_the_small_classes_read_what_envoy_writes() -> None:
    theirs = pb.ProcessingRequest()
    theirs.request_body.body = b"{}"
    theirs.request_body.end_of_stream = True
    theirs.attributes["a"].fields["request.path"].string_value = "/v1"
    theirs.metadata_context.filter_metadata[NAMESPACE].fields["rid"].string_value = _ID
    mine = ProcessingRequest.FromString(theirs.SerializeToString())
    assert mine.request_body.body == b"{}"
    assert mine.request_body.end_of_stream
    assert mine.attributes["a"].fields["request.path"].string_value == "/v1"
    assert mine.metadata_context.filter_metadata[NAMESPACE].fields["rid"].string_value == _ID


def test_the_report_compares_within_a_round() -> None:
    costs = {"empty": (100.0, 200.0), "reserve": (120.0, 240.0), STEPS[-1]: (150.0, 300.0)}
    costs["ours"] = (300.0, 600.0)
    rounds = {name: [_sample(each) for each in both] for name, both in costs.items()}
    values = floor_values({JSON.name: {"native": rounds}, STREAMS.name: {"inline": rounds}})
    assert values["floor.native.json_cpu_ratio"] == 1.5
    assert values["floor.native.ours_by_floor"] == 2.0
    assert values["floor.native.reserve.cpu_ratio"] == 1.2
    assert values["floor.native.settle.added_us"] == 45.0
    assert values["floor.native.settle.python_cpu_us"] == 225.0
    assert values["floor.inline.stream_cpu_ratio"] == 1.5
    assert values["floor.inline.stream_ours_by_floor"] == 2.0
    text = floor_tables(values)
    assert "tokenweir by the floor: 2.00" in text
    assert text.count("the floor") == 4
    assert "+ the request" not in text


def test_a_floor_that_does_not_settle_is_a_fault() -> None:
    good, lazy = _sample(1.0), _sample(1.0, scripts=1.0)
    found = Floor({"json": {"native": {"reserve": [lazy], STEPS[-1]: [good], "ours": [good]}}})
    assert floor_faults(found) == []
    found.rounds["json"]["native"][STEPS[-1]] = [lazy]
    (fault,) = floor_faults(found)
    assert "1.000 scripts" in fault
