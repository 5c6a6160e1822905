"""AWS's binary event stream, written: one message from its headers and payload.

After Smithy's "Amazon Event Stream" specification. Written anew on purpose: a mistake that reader
and writer share would not be seen.
"""

import struct
import zlib

_STRING = 7


def message(headers: dict[str, str], payload: bytes) -> bytes:
    """Prelude, its CRC-32, headers, payload, the CRC-32 of all that. Header values are strings."""
    block = b"".join(_header(name, value) for name, value in headers.items())
    total = 4 + 4 + 4 + len(block) + len(payload) + 4
    prelude = struct.pack("!II", total, len(block))
    checked = prelude + struct.pack("!I", zlib.crc32(prelude)) + block + payload
    return checked + struct.pack("!I", zlib.crc32(checked))


def event(name: str, payload: bytes) -> bytes:
    """One event of the operation's output."""
    kind = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    return message(kind, payload)


def exception(name: str, payload: bytes) -> bytes:
    """A failure in the middle of a stream."""
    kind = {
        ":exception-type": name,
        ":content-type": "application/json",
        ":message-type": "exception",
    }
    return message(kind, payload)


def _header(name: str, value: str) -> bytes:
    raw_name, raw_value = name.encode(), value.encode()
    return struct.pack(
        f"!B{len(raw_name)}sBH{len(raw_value)}s",
        len(raw_name),
        raw_name,
        _STRING,
        len(raw_value),
        raw_value,
    )
