"""Reads ``multipart/form-data`` (RFC 7578) as an object of its fields, without copying files.

As with JSON, what two parsers could read differently is refused: a field that occurs twice (unless
its name says that it is a list), RFC 2231's ``name*``, bare line feeds, encodings of a part.
"""

import re
from dataclasses import dataclass

from extproc.core.errors import RequestError
from extproc.providers.content_coding import decode_body
from extproc.providers.requests import JsonObject, ReadLimits

FORM = "multipart/form-data"
_MAX_PARTS = 256
_MAX_HEADER_BYTES = 8 * 1024
_BOUNDARY = re.compile(r";\s*boundary=(?:\"([^\"]{1,70})\"|([^\s;\",]{1,70}))", re.IGNORECASE)
_PARAMETER = re.compile(r";\s*([\w*]+)=(?:\"((?:[^\"\\\\]|\\\\.)*)\"|([^\s;\"]*))")
_NAME_LIMIT = 128
# Files that some APIs take several of under one name.
_LISTS = frozenset({"image", "images"})


@dataclass(frozen=True, slots=True)
class FormFile:
    """An uploaded file; ``data`` looks into the body."""

    filename: str
    media_type: str
    data: memoryview


def read_form(
    body: bytes, content_encoding: str | None, *, content_type: str | None, limits: ReadLimits
) -> JsonObject:
    """The form's fields: a text for a plain field, a FormFile for a file, a list of either where
    the name ends with ``[]`` (left out) or the field may be repeated.

    Raises RequestError: 400 for what is no form, 413 above the limit, 415 for an unknown encoding.
    """
    found = _BOUNDARY.search(content_type or "")
    if found is None:
        raise _invalid("the content-type has no boundary")
    boundary = (found[1] or found[2]).encode("latin-1", "replace")
    plain = decode_body(body, content_encoding, max_bytes=limits.max_decoded_bytes)
    fields: JsonObject = {}
    for head, data in _parts(plain, boundary):
        name, value = _field(head, data)
        key = name.removesuffix("[]")
        is_list = key != name or (key in _LISTS and isinstance(value, FormFile))
        present = fields.get(key)
        if is_list and (present is None or isinstance(present, list)):
            fields[key] = [*(present or []), value]
        elif key in fields:
            raise RequestError(400, "duplicate_key", f"the field '{key}' occurs twice", param=key)
        else:
            fields[key] = value
    return fields


def _parts(body: bytes, boundary: bytes) -> list[tuple[bytes, memoryview]]:
    """Headers and content of every part. Linear in the bytes; content is not copied."""
    view = memoryview(body)
    mark = b"--" + boundary
    # The first delimiter may stand at the very start; all others follow a line end.
    at = 0 if body.startswith(mark) else body.find(b"\r\n" + mark)
    if at < 0:
        raise _invalid("the boundary does not occur")
    at += len(mark) if at == 0 and body.startswith(mark) else len(mark) + 2
    parts: list[tuple[bytes, memoryview]] = []
    while True:
        if body.startswith(b"--", at):
            return parts
        line_end = body.find(b"\r\n", at)
        if line_end < 0 or body[at:line_end].strip(b" \t"):
            raise _invalid("a boundary line holds more than the boundary")
        start = line_end + 2
        # A part may have no headers at all, but then it has no name either.
        head_end = body.find(b"\r\n\r\n", start, start + _MAX_HEADER_BYTES)
        if head_end < 0:
            raise _invalid("a part has no headers, or too many")
        end = body.find(b"\r\n" + mark, head_end + 2)
        if end < 0:
            raise _invalid("the last boundary is missing")
        if len(parts) == _MAX_PARTS:
            raise _invalid(f"more than {_MAX_PARTS} parts")
        parts.append((body[start:head_end], view[min(head_end + 4, end) : end]))
        at = end + 2 + len(mark)


def _field(head: bytes, data: memoryview) -> tuple[str, object]:
    headers: dict[str, str] = {}
    for line in _text(head, "a part's headers").split("\r\n"):
        name, colon, value = line.partition(":")
        key = name.strip().lower()
        if not colon or "\n" in line or "\r" in line or key in headers:
            raise _invalid("a part's headers are malformed")
        headers[key] = value.strip()
    if headers.get("content-transfer-encoding", "binary").lower() not in ("binary", "8bit", "7bit"):
        raise _invalid("a part has a transfer encoding")
    disposition = headers.get("content-disposition", "")
    kind = disposition.partition(";")[0].strip().lower()
    values: dict[str, str] = {}
    for match in _PARAMETER.finditer(disposition):
        key = match[1].lower()
        if key in values or key == "name*":
            raise _invalid("a part's name is ambiguous")
        values[key] = match[3] if match[2] is None else match[2]
    name = values.get("name", "")
    if kind != "form-data" or not name or len(name) > _NAME_LIMIT or "\\" in name:
        raise _invalid("a part has no name that can be read")
    media_type = headers.get("content-type", "")
    if "filename" in values or "filename*" in values:
        return name, FormFile(values.get("filename", ""), media_type, data)
    return name, _text(bytes(data), f"the field '{name}'")


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise _invalid(f"{what} is not UTF-8") from None


def _invalid(message: str) -> RequestError:
    return RequestError(400, "invalid_form", f"the request body is not a valid form: {message}")
