"""Configuration of Envoy filters that are newer than the message classes we have.

Envoy takes the fields of any extension as a plain Struct beside its type (xds.type.v3.TypedStruct).
"""

from collections.abc import Mapping

import betterproto2
from envoy_data_plane.message_pool import default_message_pool
from pydantic.dataclasses import dataclass

from extproc.envoyconfig import _protos as p


@dataclass(eq=False, repr=False, config={"extra": "forbid"})
class TypedStruct(betterproto2.Message):
    """Field numbers: https://github.com/cncf/xds, xds/type/v3/typed_struct.proto."""

    type_url: str = betterproto2.field(1, betterproto2.TYPE_STRING)
    value: p.Struct | None = betterproto2.field(2, betterproto2.TYPE_MESSAGE, optional=True)


default_message_pool.register_message("xds.type.v3", "TypedStruct", TypedStruct)


def typed_struct(type_name: str, fields: Mapping[str, object]) -> p.Any:
    """The message ``type_name`` with these fields; Envoy checks them, nothing here does."""
    value = TypedStruct(
        type_url=f"type.googleapis.com/{type_name}", value=p.Struct.from_dict(dict(fields))
    )
    return p.Any.pack(value)
