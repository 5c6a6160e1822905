"""Files that hold one captured request or answer; docs/captures.md describes them."""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from extproc.providers.registry import route_at, route_named
from extproc.providers.wire_formats import WireFormat

# A body of 16 MB, the usual limit, takes 22 MB of base64.
MAX_FILE_BYTES = 64 * 1024 * 1024
_LONGEST_NAME = 256


class CaptureError(ValueError):
    """A file that is no capture. The text says why, for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCapture:
    """One request. Names of headers are in lower case, those of HTTP/2's own begin with a colon."""

    name: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCapture:
    """One answer, its body in the pieces that arrived; ``wire_format`` is a name that is known.

    Names of headers are in lower case."""

    name: str
    wire_format: str
    status: int
    content_type: str | None
    content_encoding: str | None
    headers: Mapping[str, str]
    chunks: tuple[bytes, ...]


def read_capture(file: BinaryIO) -> dict[str, object]:
    """The JSON object in a file; never reads more than the bound. Raises CaptureError."""
    raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise CaptureError(f"larger than {MAX_FILE_BYTES // 1024 // 1024} MB")
    try:
        value = json.loads(raw)
    except RecursionError:
        raise CaptureError("nested too deeply") from None
    except ValueError as error:  # also bytes that are no UTF-8, and numbers of 5,000 digits
        raise CaptureError(f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise CaptureError("no JSON object")
    return value


def request_capture(value: Mapping[str, object], *, default_name: str) -> RequestCapture:
    """Raises CaptureError that names the field."""
    headers = _headers(value)
    path = _text(value, "path") or headers.get(":path")
    if not path:
        raise CaptureError("'path' is missing")
    return RequestCapture(
        name=_name(value, default_name),
        path=path,
        headers=headers,
        body=b"".join(_chunks(value)),
    )


def answer_capture(value: Mapping[str, object], *, default_name: str) -> AnswerCapture:
    """Raises CaptureError that names the field."""
    headers = _headers(value)
    status = value.get("http_status", headers.get(":status", 200))
    if isinstance(status, str) and status.isascii() and status.isdigit() and len(status) == 3:
        status = int(status)
    if isinstance(status, bool) or not isinstance(status, int) or not 100 <= status <= 999:
        raise CaptureError("'http_status' must be an integer between 100 and 999")
    return AnswerCapture(
        name=_name(value, default_name),
        wire_format=_format(value),
        status=status,
        content_type=_text(value, "content_type") or headers.get("content-type"),
        content_encoding=_text(value, "content_encoding") or headers.get("content-encoding"),
        headers=headers,
        chunks=tuple(_chunks(value)),
    )


def _format(value: Mapping[str, object]) -> str:
    name = _text(value, "provider_format")
    if name is not None:
        if not isinstance(route_named(name), WireFormat):
            raise CaptureError(f"'provider_format' is not a format that is known: {name[:64]!r}")
        return name
    path = _text(value, "path")
    if path is None:
        raise CaptureError("'provider_format' is missing, or the request's 'path'")
    route = route_at(path)
    if not isinstance(route, WireFormat):
        raise CaptureError(f"nothing is metered at 'path' {path[:64]!r}")
    return route.name


def _name(value: Mapping[str, object], default: str) -> str:
    return (_text(value, "name") or default)[:_LONGEST_NAME]


def _text(value: Mapping[str, object], key: str) -> str | None:
    found = value.get(key)
    if found is not None and not isinstance(found, str):
        raise CaptureError(f"{key!r} must be a string")
    return found


def _headers(value: Mapping[str, object]) -> dict[str, str]:
    found = value.get("headers")
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise CaptureError("'headers' must be an object of strings")
    return {str(name).lower(): text for name, text in found.items()}


def _chunks(value: Mapping[str, object]) -> list[bytes]:
    """``chunks_b64``, or the whole as ``body_b64``; nothing where there is neither."""
    if "chunks_b64" in value:
        found = value["chunks_b64"]
        if not isinstance(found, list):
            raise CaptureError("'chunks_b64' must be a list of strings")
        return [_decoded(chunk, f"chunks_b64[{at}]") for at, chunk in enumerate(found)]
    body = value.get("body_b64")
    return [] if body is None else [_decoded(body, "body_b64")]


def _decoded(text: object, name: str) -> bytes:
    if not isinstance(text, str):
        raise CaptureError(f"'{name}' must be a string")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CaptureError(f"'{name}' is no base64: {error}") from None
