"""Metering, profile ``native``: the access log entry holds the usage, and nothing else of the
answer ever reaches us. What Envoy could not read is estimated by the answer's size."""

from dataclasses import replace

from envoy.data.accesslog.v3.accesslog_pb2 import HTTPAccessLogEntry

from extproc.core.handles import Handle
from extproc.core.learned_bytes import LearnedBytes
from extproc.core.learned_factors import LearnedFactors
from extproc.core.outcomes import settle_ending, settle_native
from extproc.core.reservations import Outcome, Settlement
from extproc.envoy_io.attributes import VIA_UPSTREAM
from extproc.envoy_io.native_usage import native_usage
from extproc.providers.input_correction import learn_from
from extproc.providers.registry import format_named

_STREAM_TYPES = (
    "text/event-stream",
    "application/x-ndjson",
    "application/vnd.amazon.eventstream",
)


class Native:
    """Settles by entries. ``learned``: input factors, as metering teaches them."""

    def __init__(self, learned: LearnedFactors | None = None) -> None:
        self._learned = learned
        self._bytes = LearnedBytes()

    def settlement(
        self, handle: Handle, outcome: Outcome, entry: HTTPAccessLogEntry, *, undelivered: bool
    ) -> Settlement:
        """The one settlement of an ended request.

        ``undelivered``, or an answer of Envoy's own after the upstream had begun: what Envoy held
        back may have been whole, and its size is not told.
        """
        if outcome is Outcome.UPSTREAM_REFUSED and _is_replaced(entry):
            outcome = Outcome.UPSTREAM_BROKEN
        if outcome in (Outcome.UPSTREAM_REFUSED, Outcome.NOT_FORWARDED):
            return settle_ending(handle, outcome, undelivered=undelivered)
        usage = native_usage(handle.wire_format, entry.common_properties.metadata)
        if handle.reserved_tokens <= handle.input_tokens and usage.output_tokens is None:
            # Nothing was reserved for an output: vectors, judgements.
            usage = replace(usage, output_tokens=0)
        content_type = entry.response.response_headers.get("content-type", "").lower()
        is_stream = content_type.startswith(_STREAM_TYPES)
        key = (handle.root, handle.wire_format, handle.model, is_stream)
        size = entry.response.response_body_bytes
        guess = self._bytes.tokens(key, size)
        if not format_named(handle.wire_format).has_text_output:
            # Vectors have no output, pictures and sound what was reserved for them.
            guess = 0
        end = settle_native(handle, outcome, usage, guessed_output_tokens=guess)
        if end.outcome is Outcome.COMPLETE:
            self._bytes.learn(key, size=size, tokens=end.output_tokens)
            if self._learned is not None:
                learn_from(self._learned, handle, usage)
        return end


def _is_replaced(entry: HTTPAccessLogEntry) -> bool:
    return bool(
        entry.common_properties.HasField("time_to_first_upstream_rx_byte")
        and entry.response.response_code_details != VIA_UPSTREAM
    )
