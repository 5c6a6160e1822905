"""Reading Envoy's attributes and metadata out of ext_proc messages.

Source: Envoy's ext_proc API; attributes arrive in one Struct under the filter's well-known name.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from envoy.config.core.v3.base_pb2 import Metadata
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct, Value

from extproc.core.handles import HANDLE_KEYS, Handle, handle_from_fields

# Envoy's word for an answer that really came from the upstream, in response.code_details.
VIA_UPSTREAM = "via_upstream"
_ATTRIBUTES = "envoy.filters.http.ext_proc"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# Stands for a message that is no valid protobuf: Envoy puts header bytes into string fields as they
# are, so a client can cause it with a header that is not UTF-8.
MALFORMED = ProcessingRequest()


def read_request(data: bytes) -> ProcessingRequest:
    """Deserialise one message; MALFORMED when it cannot be read."""
    try:
        return ProcessingRequest.FromString(data)
    except DecodeError:
        return MALFORMED


class Attributes:
    """The attributes of one message. An absent one is None."""

    __slots__ = ("_fields",)

    def __init__(self, message: ProcessingRequest) -> None:
        # `in` first: indexing a protobuf map creates what it does not find.
        holder = message.attributes
        self._fields: Mapping[str, Value] = (
            holder[_ATTRIBUTES].fields if _ATTRIBUTES in holder else {}
        )

    def text(self, name: str) -> str | None:
        """A string attribute such as ``request.path``."""
        value = self._fields.get(name)
        if value is None:
            return None
        text: str = value.string_value
        # A value of another kind reads as an empty text.
        return text if text or value.WhichOneof("kind") == "string_value" else None

    def time_us(self, name: str) -> int | None:
        """A time attribute such as ``request.time``, in Unix microseconds."""
        try:
            moment = datetime.fromisoformat(self.text(name) or "")
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        since = moment - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds

    def header(self, name: str) -> str | None:
        """A request header that the include lists in ``request_attributes``."""
        return self.text(f"request.headers['{name}']")


def metadata_text(metadata: Metadata, *, namespace: str, path: Sequence[str]) -> str | None:
    """A string deep in dynamic metadata; None when any step of the path is absent or no string."""
    holder = metadata.filter_metadata
    if namespace not in holder:
        return None
    struct: Struct = holder[namespace]
    for step in path[:-1]:
        value = struct.fields.get(step)
        if value is None or value.WhichOneof("kind") != "struct_value":
            return None
        struct = value.struct_value
    last = struct.fields.get(path[-1])
    if last is None or last.WhichOneof("kind") != "string_value":
        return None
    return str(last.string_value)


def namespace_fields(metadata: Metadata, namespace: str) -> Mapping[str, Value]:
    """The fields of one namespace; none where it is absent."""
    holder = metadata.filter_metadata
    if namespace not in holder:
        return {}
    fields: Mapping[str, Value] = holder[namespace].fields
    return fields


def metadata_fields(metadata: Metadata, *, namespace: str) -> dict[str, object]:
    """The flat strings and numbers of one namespace."""
    fields: dict[str, object] = {}
    for key, value in namespace_fields(metadata, namespace).items():
        kind = value.WhichOneof("kind")
        if kind in ("string_value", "number_value"):
            fields[key] = getattr(value, kind)
    return fields


def read_handle(fields: Mapping[str, Value]) -> Handle | None:
    """The handle in the fields of our namespace; None when there is none."""
    if "rid" not in fields:
        return None
    # A value of another kind reads as an empty text, which is no id.
    return handle_from_fields(
        {key: fields[key].string_value for key in HANDLE_KEYS if key in fields}
    )


def fill_struct(struct: Struct, fields: Mapping[str, str]) -> None:
    """Write flat texts into ``struct``."""
    into = struct.fields
    for key, value in fields.items():
        into[key].string_value = value
