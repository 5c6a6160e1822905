"""Reads an upload's form with the standard library's mail parser: the provider's own way."""

from collections import defaultdict
from email import message_from_bytes
from email.message import Message
from typing import Any

from extproc.demo.fake_apis.api import Call
from extproc.demo.fake_orders import OrderError, json_object


def read_fields(call: Call) -> dict[str, Any]:
    """Fields of a JSON body or of a form: texts, or the bytes of a file; a list where a name ends
    with ``[]`` (left out). Raises OrderError."""
    if not call.content_type.startswith("multipart/form-data"):
        return json_object(call.body)
    head = f"content-type: {call.content_type}\r\n\r\n".encode()
    form = message_from_bytes(head + call.body)
    if not form.is_multipart() or form.defects:
        raise OrderError("We could not parse the form of your request.")
    values: defaultdict[str, list[Any]] = defaultdict(list)
    for part in form.walk():
        if part is not form:
            values[str(part.get_param("name", "", "content-disposition"))].append(_value(part))
    return {
        name.removesuffix("[]"): found if name.endswith("[]") else found[0]
        for name, found in values.items()
    }


def _value(part: Message) -> Any:
    data = part.get_payload(decode=True)
    if not isinstance(data, bytes):
        raise OrderError("We could not parse the form of your request.")
    return data if part.get_filename() is not None else data.decode()
