"""Usage in an access log entry, as Envoy's own filters found it (profile ``native``).

``sse_to_metadata`` and ``json_to_metadata`` write numbers under the names that our include gives
them; ``ai_protocol_manager`` (Envoy 1.40) writes a message, of which no class is published yet.
"""

from dataclasses import replace
from typing import Any

from envoy.config.core.v3.base_pb2 import Metadata
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from extproc.core.handles import USAGE_NAMESPACE
from extproc.core.usage import Usage
from extproc.envoy_io.attributes import metadata_fields
from extproc.providers.metadata_usage import usage_of_fields
from extproc.providers.registry import format_named

_USAGE_TYPE = "type.googleapis.com/envoy.data.ai.v3.TokenUsage"
_FAILED = 3  # a value of its status
_MOST_TOKENS = 2**31 - 1
_NOTHING = Usage()
_SCALARS = {
    "uint64": FieldDescriptorProto.TYPE_UINT64,
    "int32": FieldDescriptorProto.TYPE_INT32,
}


def _token_usage_class() -> type[Message]:
    """The fields that are read of envoy.data.ai.v3.TokenUsage, with the numbers and types of the
    descriptor inside Envoy 1.40, in a pool of their own."""
    field = FieldDescriptorProto
    file = FileDescriptorProto(name="token_usage.proto", package="tokenweir", syntax="proto3")

    def message(name: str, **fields: tuple[int, str]) -> None:
        made = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            made.field.add(
                name=field_name,
                number=number,
                label=field.LABEL_OPTIONAL,
                type=_SCALARS.get(kind, field.TYPE_MESSAGE),
                type_name=None if kind in _SCALARS else f".tokenweir.{kind}",
            )

    message("Count", value=(1, "uint64"))  # as google.protobuf.UInt64Value
    message("InputDetails", cached=(1, "Count"), cache_write=(2, "Count"))
    message("OutputDetails", reasoning=(1, "Count"))
    message(
        "TokenUsage",
        input=(3, "Count"),
        output=(4, "Count"),
        input_details=(6, "InputDetails"),
        output_details=(7, "OutputDetails"),
        total=(8, "Count"),
        status=(9, "int32"),
    )
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("tokenweir.TokenUsage"))


_TokenUsage = _token_usage_class()


def native_usage(wire_format: str, metadata: Metadata) -> Usage:
    """What Envoy read; nothing where it could read nothing. Never raises."""
    usage = _NOTHING
    if USAGE_NAMESPACE in metadata.filter_metadata:
        usage = usage_of_fields(wire_format, metadata_fields(metadata, namespace=USAGE_NAMESPACE))
        if usage.is_known:
            return usage
    for packed in metadata.typed_filter_metadata.values():
        if packed.type_url == _USAGE_TYPE:
            found = token_usage(packed.value)
            usage = found if usage is _NOTHING else usage.merged(found)
    # A zero is no report of what nobody has seen, but for formats without an output.
    is_report = usage.output_tokens or not format_named(wire_format).has_text_output
    return usage if is_report else replace(usage, output_tokens=None)


def token_usage(data: bytes) -> Usage:
    """A serialised envoy.data.ai.v3.TokenUsage; what cannot be read is no report.

    Measured on Envoy 1.40: its input includes cache reads and writes also for Anthropic, and the
    tools' prompt for Gemini, whose thoughts are in its output.
    """
    message: Any = _TokenUsage()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return _NOTHING
    if message.status == _FAILED:
        return _NOTHING
    input_tokens, output_tokens = _count(message, "input"), _count(message, "output")
    details = message.input_details
    reasoning, total = _count(message.output_details, "reasoning"), _count(message, "total")
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
        cached_input_tokens=_count(details, "cached"),
        cache_write_tokens=_count(details, "cache_write"),
        reasoning_tokens=reasoning,
    )


def _count(message: Any, name: str) -> int | None:
    """Absent is not reported, empty is zero."""
    if not message.HasField(name):
        return None
    count: int = getattr(message, name).value
    return count if count <= _MOST_TOKENS else None
