"""An Admission over recording ports, and messages as Envoy sends them."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from extproc.core.estimates import EstimateMode, EstimatePlan
from extproc.core.handles import Handle
from extproc.core.learned_factors import LearnedFactors
from extproc.core.reserving import Reserver
from extproc.core.settler import Settler
from extproc.envoy_io.admission import Admission
from extproc.envoy_io.admission_policy import AdmissionPolicy
from extproc.envoy_io.attributes import read_handle
from extproc.envoy_io.identity import FromHeader
from extproc.stores.views import Views
from tests.support.fakes import ListedLimits, RecordingStore, RecordingTelemetry

CHAT = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Say hi"}]}
ANTHROPIC = {**CHAT, "model": "claude-sonnet-4-5", "max_tokens": 100}
POLICY = AdmissionPolicy(
    identity=(FromHeader("x-tokenweir-service"),),
    default_output_tokens=500,
    deadline_ms=900_000,
    timeout_seconds=0.5,
    allows_unmetered=False,
    fails_open=False,
    count_inline_max_bytes=32_768,
    max_body_bytes=1_000_000,
)


def message(
    body: object = CHAT,
    *,
    path: str = "/v1/chat/completions",
    service: str | None = "svc",
) -> pb.ProcessingRequest:
    request = pb.ProcessingRequest()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request.request_body.body = data
    request.request_body.end_of_stream = True
    fields = request.attributes["envoy.filters.http.ext_proc"].fields
    fields["request.path"].string_value = path
    fields["request.id"].string_value = "req-1"
    fields["request.headers['content-type']"].string_value = "application/json"
    if service is not None:
        fields["request.headers['x-tokenweir-service']"].string_value = service
    return request


@dataclass
class Bench:
    """An Admission with recording ports."""

    store: RecordingStore = field(default_factory=RecordingStore)
    limits: ListedLimits = field(default_factory=ListedLimits)
    telemetry: RecordingTelemetry = field(default_factory=RecordingTelemetry)
    views: Views = field(default_factory=Views)
    policy: AdmissionPolicy = POLICY
    learned: LearnedFactors | None = None

    def __post_init__(self) -> None:
        self.settler = Settler(self.store, self.telemetry)
        self.executor = ThreadPoolExecutor(1)

    def admission(self) -> Admission:
        return Admission(
            self.policy,
            reserver=Reserver(
                store=self.store,
                limits=self.limits,
                views=self.views,
                estimate=EstimatePlan(mode=EstimateMode.QUANTILE),
                clock=lambda: datetime.now(UTC),
            ),
            limits=self.limits,
            settler=self.settler,
            telemetry=self.telemetry,
            executor=self.executor,
            learned=self.learned,
        )

    async def ask(self, message: pb.ProcessingRequest) -> Any:
        reply = await self.admission().decide(message)
        await self.settler.flush(timeout_seconds=2)
        return reply


def fields_of(reply: Any) -> dict[str, object]:
    struct = reply.dynamic_metadata.fields["llm"].struct_value
    return {k: getattr(v, v.WhichOneof("kind")) for k, v in struct.fields.items()}


def handle_in(reply: Any) -> Handle:
    """The handle that a reply carries."""
    struct = reply.dynamic_metadata.fields["llm"].struct_value
    handle = read_handle(struct.fields)
    assert handle is not None
    return handle


def headers_of(reply: Any) -> dict[str, str]:
    options = reply.immediate_response.headers.set_headers
    return {option.header.key: option.header.raw_value.decode() for option in options}
