"""Usage in an access log entry, as Envoy's own filters found it (profile ``native``).

``sse_to_metadata`` and ``json_to_metadata`` write numbers under the names that our include gives
them; ``ai_protocol_manager`` (Envoy 1.40) writes a message, of which no class is published yet.
"""

from collections.abc import Iterator
from dataclasses import replace

from envoy.config.core.v3.base_pb2 import Metadata

from extproc.core.handles import USAGE_NAMESPACE
from extproc.core.usage import Usage
from extproc.envoy_io.attributes import metadata_fields
from extproc.providers.metadata_usage import usage_of_fields
from extproc.providers.registry import format_named

_USAGE_TYPE = "type.googleapis.com/envoy.data.ai.v3.TokenUsage"
# Field numbers of envoy.data.ai.v3.TokenUsage, by the descriptor inside Envoy 1.40.
_INPUT, _OUTPUT, _INPUT_DETAILS, _OUTPUT_DETAILS, _TOTAL, _STATUS = 3, 4, 6, 7, 8, 9
_CACHED, _CACHE_WRITE = 1, 2
_REASONING = 1
_FAILED = 3
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_TOKENS = 2**31 - 1

_Message = dict[int, int | bytes]


def native_usage(wire_format: str, metadata: Metadata) -> Usage:
    """What Envoy read; nothing where it could read nothing. Never raises."""
    usage = usage_of_fields(wire_format, metadata_fields(metadata, namespace=USAGE_NAMESPACE))
    if usage.is_known:
        return usage
    for packed in metadata.typed_filter_metadata.values():
        if packed.type_url == _USAGE_TYPE:
            usage = usage.merged(token_usage(packed.value))
    # A zero is no report of what nobody has seen, but for formats without an output.
    is_report = usage.output_tokens or not format_named(wire_format).has_text_output
    return usage if is_report else replace(usage, output_tokens=None)


def token_usage(data: bytes) -> Usage:
    """A serialised envoy.data.ai.v3.TokenUsage; what cannot be read is no report.

    Measured on Envoy 1.40: its input includes cache reads and writes also for Anthropic, and the
    tools' prompt for Gemini, whose thoughts are in its output.
    """
    message = _fields(data)
    if message.get(_STATUS) == _FAILED:
        return Usage()
    details, output_details = _inner(message, _INPUT_DETAILS), _inner(message, _OUTPUT_DETAILS)
    input_tokens, output_tokens = _count(message, _INPUT), _count(message, _OUTPUT)
    reasoning, total = _count(output_details, _REASONING), _count(message, _TOTAL)
    if (
        reasoning
        and total is not None
        and total >= (input_tokens or 0) + (output_tokens or 0) + reasoning
    ):
        # The provider's own total says that it counts reasoning beside the output (xAI).
        output_tokens = (output_tokens or 0) + reasoning
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_input_tokens=_count(details, _CACHED),
        cache_write_tokens=_count(details, _CACHE_WRITE),
        reasoning_tokens=reasoning,
    )


def _inner(message: _Message, number: int) -> _Message:
    value = message.get(number)
    return _fields(value) if isinstance(value, bytes) else {}


def _count(message: _Message, number: int) -> int | None:
    """A google.protobuf.UInt64Value: absent is not reported, empty is zero."""
    value = message.get(number)
    if not isinstance(value, bytes):
        return None
    count = _fields(value).get(1, 0)
    return count if isinstance(count, int) and count <= _MOST_TOKENS else None


def _fields(data: bytes) -> _Message:
    """The last value of each field; empty for bytes that are no message."""
    try:
        return dict(_walk(data))
    except (IndexError, ValueError):
        return {}


def _walk(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + size > len(data):
            raise ValueError("cut short")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("varint too long")
