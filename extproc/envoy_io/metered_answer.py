"""One answer as metering sees it, and its single settlement."""

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Executor
from functools import partial

from envoy.config.core.v3.base_pb2 import HeaderMap
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf.struct_pb2 import Value

from extproc.core.handles import NAMESPACE, Handle
from extproc.core.learned_factors import LearnedFactors
from extproc.core.outcomes import (
    AnswerFacts,
    release,
    settle_answer,
    settle_interrupted,
)
from extproc.core.ports import Telemetry
from extproc.core.reservations import Outcome, Settlement, Source
from extproc.core.settler import Settler
from extproc.envoy_io.attributes import (
    VIA_UPSTREAM,
    Attributes,
    namespace_fields,
    read_handle,
)
from extproc.envoy_io.provider_reports import report_answer, report_rooms
from extproc.envoy_io.replies import (
    CONTINUE_RESPONSE_BODY,
    CONTINUE_RESPONSE_HEADERS,
    CONTINUE_RESPONSE_TRAILERS,
    METERED_RESPONSE_HEADERS,
    METERED_RESPONSE_TRAILERS,
    body_reply,
)
from extproc.envoy_io.turns import Turns
from extproc.providers.answers import AnswerReader, answer_reader
from extproc.providers.error_answers import ErrorBody
from extproc.providers.input_correction import learn_from
from extproc.providers.provider_room import HEADERS as _PROVIDER_HEADERS

log = logging.getLogger("tokenweir.metering")

# Keys of our own limits in the metadata, and the headers that the route makes of them.
_OURS = tuple(
    (
        f"limit_{unit}",
        f"remaining_{unit}",
        *(f"x-ratelimit-{part}-{unit}" for part in ("limit", "remaining", "reset")),
    )
    for unit in ("requests", "tokens")
)
# What is left to read at the end, in bytes: up to this it takes a few ms at most.
_SHORT_BYTES = 16 * 1024
# CPU for the long chunks of one answer; the longest real ones take a fifth of it.
MOST_SECONDS = 10.0
# Half of Envoy's patience with one message (``message_timeout`` as we set it). When a stream is
# dropped later than this in a chunk, it may have been Envoy that left, not the client.
_LATE_SECONDS = 1.0
# Stands for the reply that only reading in turns can give.
TAKES_LONG = pb.ProcessingResponse()
_READ_HEADERS = _PROVIDER_HEADERS | {":status", "content-type", "content-encoding"}


class MeteredAnswer:
    """One answer: what was seen of it, and its single settlement."""

    def __init__(
        self,
        settler: Settler,
        telemetry: Telemetry,
        *,
        is_stopping: Callable[[], bool],
        learned: LearnedFactors | None,
        turns: Turns,
        executor: Executor | None,
    ) -> None:
        self._settler = settler
        self._telemetry = telemetry
        self._is_stopping = is_stopping
        self._learned = learned
        self._turns = turns
        self._executor = executor
        self._handle: Handle | None = None
        self._reader: AnswerReader | None = None
        self._headers: dict[str, str] = {}
        # The body of an answer with an error status, until it is reported.
        self._error: ErrorBody | None = None
        # The steps of a chunk that is not read to its end, when they began, and whether it is the
        # last chunk.
        self._steps: Generator[None, None, bytes | None] | None = None
        self._steps_since = 0.0
        self._is_last = False
        self._spent_seconds = 0.0  # CPU, in long chunks
        self._settled = False
        self.done = False

    @property
    def settled_id(self) -> str | None:
        """The reservation that was settled here; None when that is left to the ending."""
        return self._handle.reservation_id if self._settled and self._handle is not None else None

    async def on_long_body(self, body: pb.HttpBody) -> pb.ProcessingResponse:
        """The reply to such a chunk, whose reading gives way to everything else."""
        assert self._reader is not None
        if self._is_stopping():
            # We may be cut before the next chunk: let no byte depend on us any longer.
            self._reader.stop_hiding()
        self._steps_since = time.perf_counter()
        self._is_last = body.end_of_stream
        self._steps = self._reader.steps(body.body, end=body.end_of_stream)
        replacement = await self._turns.run(self._steps, self._spent)
        self._steps = None
        return self._on_read(replacement, is_last=self._is_last)

    def on_message(self, message: pb.ProcessingRequest) -> pb.ProcessingResponse | None:
        """The reply to one message; None when there is nothing for us in this answer, TAKES_LONG
        for a chunk whose reading may take more than a few ms: see ``on_long_body``."""
        kind = message.WhichOneof("request")
        reader = self._reader
        if kind == "response_body" and reader is not None:
            # Every token of a stream comes this way.
            body = message.response_body
            data: bytes = body.body
            if not reader.is_short(data):
                return TAKES_LONG
            if self._is_stopping():
                reader.stop_hiding()
            is_last: bool = body.end_of_stream
            replacement = reader.feed(data, end=is_last)
            if replacement is None and not is_last:
                return CONTINUE_RESPONSE_BODY
            return self._on_read(replacement, is_last=is_last)
        if kind == "response_headers":
            return self._on_headers(message)
        if self._error is not None:
            return self._on_error_body(message, self._error)
        if reader is None:
            return None
        if kind == "response_trailers":
            reader.feed(b"", end=True)
            self._settle(ended=True)
            return METERED_RESPONSE_TRAILERS
        return None

    def close(self) -> None:
        """The stream is over, whatever the reason. Must not await."""
        if self._error is not None:
            self._report_error(self._error.value())
        if self._reader is not None and not self._settled:
            self._settle(ended=self._steps is not None and self._is_last)

    def _on_headers(self, message: pb.ProcessingRequest) -> pb.ProcessingResponse | None:
        fields = namespace_fields(message.metadata_context, NAMESPACE)
        handle = self._handle = read_handle(fields)
        if handle is None:
            # Not admitted by us: a refusal of ours, or a request that was let through unmetered.
            return None
        headers = self._headers = _read_headers(message.response_headers.headers)
        _drop_ours(headers, fields)
        if not headers.get(":status", "").startswith("2"):
            return self._on_error_status(handle, message)
        self._settler.answer_began(handle.root, handle.reservation_id)
        report_rooms(self._telemetry, handle, headers)
        self._reader = answer_reader(
            handle.wire_format,
            content_type=headers.get("content-type") or None,
            content_encoding=headers.get("content-encoding") or None,
            hides_usage=handle.hides_usage,
            encoding=handle.encoding,
            factor_percent=handle.factor_percent,
            header=partial(_header, message.response_headers.headers),
        )
        if message.response_headers.end_of_stream:
            self._reader.feed(b"", end=True)
            self._settle(ended=True)
            return METERED_RESPONSE_HEADERS
        if handle.hides_usage:
            # The body gets shorter than the upstream said.
            reply = pb.ProcessingResponse()
            common = reply.response_headers.response
            common.header_mutation.remove_headers.append("content-length")
            return reply
        return CONTINUE_RESPONSE_HEADERS

    def _on_error_status(
        self, handle: Handle, message: pb.ProcessingRequest
    ) -> pb.ProcessingResponse | None:
        """An error answer carries no usage. One that Envoy itself made is left to the ending, which
        knows by Envoy's flags whether the upstream was ever called."""
        if Attributes(message).text("response.code_details") != VIA_UPSTREAM:
            return None
        self._settled = True
        end = release(handle, Outcome.UPSTREAM_REFUSED, Source.METERING)
        self._settler.submit(end)
        self._error = ErrorBody(self._headers.get("content-encoding"))
        if message.response_headers.end_of_stream:
            self._report_error(None)
        return METERED_RESPONSE_HEADERS

    def _on_error_body(
        self, message: pb.ProcessingRequest, error: ErrorBody
    ) -> pb.ProcessingResponse | None:
        """The body tells what the error is; it is settled already, and passes unchanged."""
        if message.WhichOneof("request") == "response_trailers":
            self._report_error(error.value())
            return CONTINUE_RESPONSE_TRAILERS
        body = message.response_body
        error.add(body.body)
        if body.end_of_stream:
            self._report_error(error.value())
        return CONTINUE_RESPONSE_BODY

    def _report_error(self, value: object) -> None:
        """Count and log the provider's error, once; of a redirect there is nothing to say."""
        self._error = None
        self.done = True
        status = self._headers.get(":status", "")
        if self._handle is None or status < "4":
            return
        report_answer(
            self._telemetry,
            self._handle,
            status=int(status) if status.isdigit() else 0,
            headers=self._headers,
            value=value,
        )

    def _on_read(self, replacement: bytes | None, *, is_last: bool) -> pb.ProcessingResponse:
        if is_last:
            self._settle(ended=True)
        return body_reply(replacement, metered=is_last)

    def _spent(self, seconds: float) -> None:
        assert self._reader is not None
        self._spent_seconds += seconds
        if self._spent_seconds > MOST_SECONDS and self._reader.readable:
            self._reader.give_up()
            self._telemetry.unread_answer("too_long_to_read")

    def _settle(self, *, ended: bool) -> None:
        """Now, or as soon as all was read. Must not await."""
        assert self._reader is not None
        self._settled = True
        self.done = ended
        self._reader.skip_told_text()
        # We stop, not the answer: the rest passes unseen.
        interrupted = not ended and self._is_stopping()
        if self._steps is None and self._reader.left_to_read <= _SHORT_BYTES:
            facts = self._facts(ended=ended)
            self._settler.submit(self._settlement(facts, interrupted=interrupted))
            return
        self._settler.submit_when(self._read_to_the_end(ended=ended, interrupted=interrupted))

    async def _read_to_the_end(self, *, ended: bool, interrupted: bool) -> Settlement:
        """Nobody waits for this, and nobody else looks at the reader any more."""
        if self._steps is not None:
            is_late = time.perf_counter() - self._steps_since > _LATE_SECONDS
            await self._turns.run(self._steps, self._spent)
            assert self._reader is not None
            interrupted = interrupted or (is_late and not ended and not self._reader.complete)
        loop = asyncio.get_running_loop()
        facts = await loop.run_in_executor(self._executor, partial(self._facts, ended=ended))
        return self._settlement(facts, interrupted=interrupted)

    def _facts(self, *, ended: bool) -> AnswerFacts:
        assert self._reader is not None
        usage, finished = self._reader.usage, self._reader.complete
        # Where the provider has said it all, nobody asks for our count.
        is_told = usage.is_known and finished and not self._reader.error
        return AnswerFacts(
            usage=usage,
            counted_output_tokens=0 if is_told else self._reader.counted_output_tokens(),
            saw_output=self._reader.saw_output,
            ended=ended,
            finished=finished,
            error=self._reader.error,
            unread=self._reader.unread,
        )

    def _settlement(self, facts: AnswerFacts, *, interrupted: bool) -> Settlement:
        assert self._handle is not None
        assert self._reader is not None
        settle = settle_interrupted if interrupted else settle_answer
        end = settle(self._handle, facts)
        if facts.error:
            report_answer(
                self._telemetry,
                self._handle,
                status=int(self._headers[":status"]),
                headers=self._headers,
                value=self._reader.error_value,
            )
        if end.outcome is Outcome.COMPLETE and self._learned is not None:
            learn_from(self._learned, self._handle, facts.usage)
        return end


def _drop_ours(headers: dict[str, str], fields: Mapping[str, Value]) -> None:
    """Where the route sets our own x-ratelimit-* it does so before metering sees the answer, in
    place of the provider's: what equals ours is not the provider's word."""
    for limit, remaining, *names in _OURS:
        seen = headers.get(names[0])
        if seen is None or limit not in fields or seen != fields[limit].string_value:
            continue
        if remaining in fields and fields[remaining].string_value == headers.get(names[1]):
            for name in names:
                headers.pop(name, None)


def _read_headers(headers: HeaderMap) -> dict[str, str]:
    """The headers that are looked at; the first of each name."""
    found: dict[str, str] = {}
    for header in headers.headers:
        name = header.key
        if name in _READ_HEADERS and name not in found:
            value: bytes = header.raw_value or header.value.encode()
            found[name] = value.decode("latin-1")
    return found


def _header(headers: HeaderMap, name: str) -> str:
    """Any other one, where a format asks for it; "" when it is absent."""
    for header in headers.headers:
        if header.key == name:
            value: bytes = header.raw_value or header.value.encode()
            return value.decode("latin-1")
    return ""
