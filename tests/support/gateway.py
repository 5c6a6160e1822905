"""Admission, metering and ending over a real store. Only Envoy's streams are in memory."""

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from extproc.core.estimates import EstimateMode, EstimatePlan
from extproc.core.handles import Handle
from extproc.core.reserving import Reserver
from extproc.core.settler import Settler
from extproc.envoy_io.admission import Admission
from extproc.envoy_io.attributes import fill_struct
from extproc.envoy_io.metering import Metering
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.views import Views
from tests.support.admission import POLICY, handle_in, message
from tests.support.fakes import ListedLimits, RecordingTelemetry
from tests.support.reservations import ROOT
from tests.support.streams import MemoryContext

FLUSH_SECONDS = 10


def handle_of(rid: str, *, reserved_tokens: int, wire_format: str = "openai_chat") -> Handle:
    """The handle of a reservation that a test made itself, with 10 input tokens."""
    return Handle(
        reservation_id=rid,
        root=ROOT,
        wire_format=wire_format,
        model="gpt-4o",
        input_tokens=10,
        reserved_tokens=reserved_tokens,
        encoding="o200k_base",
        hides_usage=False,
    )


class Gateway:
    """What one server process does with requests of the usual root."""

    def __init__(
        self,
        store: RedisReservationStore,
        *,
        mode: EstimateMode = EstimateMode.STRICT,
        default_output_tokens: int = 1024,
    ) -> None:
        self.telemetry = RecordingTelemetry()
        self.settler = Settler(store, self.telemetry)
        self.metering = Metering(self.settler, self.telemetry, is_stopping=lambda: False)
        limits = ListedLimits()
        self._executor = ThreadPoolExecutor(1)
        self._admission = Admission(
            replace(POLICY, default_output_tokens=default_output_tokens, timeout_seconds=10),
            reserver=Reserver(
                store=store,
                limits=limits,
                views=Views(),
                estimate=EstimatePlan(mode=mode),
                clock=lambda: datetime.now(UTC),
            ),
            limits=limits,
            settler=self.settler,
            telemetry=self.telemetry,
            executor=self._executor,
        )

    async def ask(
        self, body: object, *, path: str = "/v1/chat/completions"
    ) -> tuple[int, Handle | None]:
        """A request: 200 and its handle when it is sent on, or the status of the refusal."""
        reply = await self._admission.decide(message(body, path=path, service=ROOT))
        await self.flush()
        if reply.WhichOneof("response") == "immediate_response":
            return reply.immediate_response.status.code, None
        return 200, handle_in(reply)

    async def answer(
        self,
        handle: Handle,
        chunks: Sequence[bytes],
        *,
        content_type: str = "text/event-stream",
        is_cut: bool = False,
    ) -> None:
        """The answer to a request passes, wholly, or until Envoy drops the stream (``is_cut``)."""
        messages = answer_messages(handle, chunks, content_type=content_type, is_cut=is_cut)
        context: Any = MemoryContext(messages, half_close=not is_cut)
        task = asyncio.create_task(self.metering.process(context))
        if is_cut:
            async with asyncio.timeout(FLUSH_SECONDS):
                await context.idle.wait()
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await self.flush()

    async def refuse(self, handle: Handle, status: int) -> None:
        """The provider answers with an error status."""
        first = answer_messages(handle, [])[0]
        first.response_headers.headers.headers[0].raw_value = str(status).encode()
        fields = first.attributes["envoy.filters.http.ext_proc"].fields
        fields["response.code_details"].string_value = "via_upstream"
        context: Any = MemoryContext([first])
        await self.metering.process(context)
        await self.flush()

    async def flush(self) -> None:
        """Everything that was handed over is settled."""
        assert await self.settler.flush(timeout_seconds=FLUSH_SECONDS) == 0

    def close(self) -> None:
        """Ends the thread that counts large bodies."""
        self._executor.shutdown()


def answer_messages(
    handle: Handle,
    chunks: Sequence[bytes],
    *,
    content_type: str = "text/event-stream",
    is_cut: bool = False,
) -> list[pb.ProcessingRequest]:
    """An answer with status 200 as Envoy passes it to metering."""
    first = pb.ProcessingRequest()
    listed = first.response_headers.headers.headers
    listed.add(key=":status", raw_value=b"200")
    listed.add(key="content-type", raw_value=content_type.encode())
    fill_struct(first.metadata_context.filter_metadata["llm"], handle.to_fields())
    last = -1 if is_cut else len(chunks) - 1
    bodies = (
        pb.ProcessingRequest(response_body=pb.HttpBody(body=chunk, end_of_stream=number == last))
        for number, chunk in enumerate(chunks)
    )
    return [first, *bodies]
