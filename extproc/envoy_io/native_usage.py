"""Usage in an access log entry, as Envoy's own filters found it (profile ``native``).

``sse_to_metadata`` and ``json_to_metadata`` write numbers under the names that our include gives
them; ``ai_protocol_manager`` (Envoy 1.40) writes a message, of which no class is published yet.
"""

from collections.abc import Iterator

from envoy.config.core.v3.base_pb2 import Metadata

from extproc.core.usage import Usage
from extproc.envoy_io.attributes import metadata_fields
from extproc.providers.metadata_usage import usage_of_fields

# Where the include has the numbers written.
USAGE_NAMESPACE = "llm.usage"
_TOKEN_USAGE = "type.googleapis.com/envoy.data.ai.v3.TokenUsage"
# Field numbers of envoy.data.ai.v3.TokenUsage, by the descriptor inside Envoy 1.40.
_INPUT, _OUTPUT, _INPUT_DETAILS, _OUTPUT_DETAILS, _STATUS = 3, 4, 6, 7, 9
_CACHED, _CACHE_WRITE, _TOOL_USE = 1, 2, 3
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
        if packed.type_url == _TOKEN_USAGE:
            return usage.merged(token_usage(packed.value))
    return usage


def token_usage(data: bytes) -> Usage:
    """A serialised envoy.data.ai.v3.TokenUsage; what cannot be read is no report."""
    message = _fields(data)
    if message.get(_STATUS) == _FAILED:
        return Usage()
    details, output_details = _inner(message, _INPUT_DETAILS), _inner(message, _OUTPUT_DETAILS)
    return Usage(
        input_tokens=_count(message, _INPUT),
        output_tokens=_count(message, _OUTPUT),
        cached_input_tokens=_count(details, _CACHED),
        cache_write_tokens=_count(details, _CACHE_WRITE),
        reasoning_tokens=_count(output_details, _REASONING),
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
