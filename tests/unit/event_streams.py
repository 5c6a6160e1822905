"""Makes messages of AWS's binary event stream."""

import base64
import json
import zlib
from typing import Any


def message(payload: bytes, headers: dict[str, str], more_headers: bytes = b"") -> bytes:
    """One message; ``more_headers`` are encoded already and come first."""
    encoded = more_headers
    for name, value in headers.items():
        encoded += bytes([len(name)]) + name.encode() + b"\x07"
        encoded += len(value.encode()).to_bytes(2) + value.encode()
    prelude = (16 + len(encoded) + len(payload)).to_bytes(4) + len(encoded).to_bytes(4)
    body = prelude + zlib.crc32(prelude).to_bytes(4) + encoded + payload
    return body + zlib.crc32(body).to_bytes(4)


def event(name: str, value: Any, *, kind: str = "event") -> bytes:
    """One event, or an exception, as Bedrock sends it."""
    headers = {
        f":{kind}-type": name,
        ":content-type": "application/json",
        ":message-type": kind,
    }
    return message(json.dumps(value).encode(), headers)


def chunk(value: Any) -> bytes:
    """A model's own event, as InvokeModelWithResponseStream wraps it."""
    packed = base64.b64encode(json.dumps(value).encode()).decode()
    return event("chunk", {"bytes": packed, "p": "abcdefgh"})
