"""From decisions to one request, answer or text that a reader is given."""

import base64
import json
from dataclasses import dataclass
from typing import Any

from tests.fuzz.answer_seeds import answer_seeds
from tests.fuzz.byte_twists import changed, coded, pieces
from tests.fuzz.choices import Choices
from tests.fuzz.json_twists import twisted, written
from tests.fuzz.request_seeds import WIRE_FORMATS, RequestSeed, request_seeds
from tests.unit.event_streams import message

NAMES = tuple(WIRE_FORMATS)
_MOST_TWISTS = 6
_STRICT_CAP = 4096
_CONTENT_TYPES = (
    *(None, "application/json", "text/event-stream", "text/plain", "application/x-ndjson", ""),
    *("application/vnd.amazon.eventstream", "audio/mpeg", "application/x-protobuf", "TEXT/HTML"),
    *("application/json; charset=utf-16", "multipart/form-data; boundary=XyZ", "x" * 300),
)
_ATOMS = (
    *("a", "A", " ", "\n", "\r\n", "\t", "0", "_", "-", "^", ".", "'ll", "'S", "\u3000", "\u0301"),
    *(
        "汉",
        "é",
        "👩‍👩‍👧",
        "\ud83d",
        "\udc00",
        "\ufffd",
        "\x00",
        "<|endoftext|>",
        "\u017f",
        "İ",
        "\u00a0",
    ),
    *(
        "hello world ",
        "12,345.67 ",
        "def f(x):\n    ",
        '{"a":1}',
        "\u2028",
        "\u200d",
        "ᾳ",
        "ก",
        "א",
    ),
)


@dataclass(frozen=True, slots=True)
class RequestCase:
    """One request of a format, and whether strict mode is on."""

    wire_format: str
    seed: RequestSeed
    strict_cap_tokens: int | None


@dataclass(frozen=True, slots=True)
class AnswerCase:
    """One answer in the pieces that arrive."""

    wire_format: str
    chunks: list[bytes]
    content_type: str | None
    content_encoding: str | None
    hides_usage: bool

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)


def request_case(wire_format: str, choices: Choices) -> RequestCase:
    seed = choices.pick(request_seeds()[wire_format])
    body = seed.body
    value = _parsed(body)
    if value is not None and not choices.one_in(16):
        for _ in range(choices.below(_MOST_TWISTS)):
            value = twisted(value, choices)
        body = written(value, choices)
    for _ in range(choices.below(_MOST_TWISTS) if value is None or choices.one_in(4) else 0):
        body = changed(body, choices)
    body, label = coded(body, seed.content_encoding, choices)
    content_type = choices.pick(_CONTENT_TYPES) if choices.one_in(8) else seed.content_type
    path = seed.path
    if choices.one_in(16):
        other = choices.pick(request_seeds()[choices.pick(NAMES)])
        path, content_type = other.path, other.content_type
    return RequestCase(
        wire_format,
        RequestSeed(path, body, content_type, label),
        _STRICT_CAP if choices.one_in(4) else None,
    )


def answer_case(wire_format: str, choices: Choices) -> AnswerCase:
    spoken = choices.pick(NAMES) if choices.one_in(6) else wire_format
    seed = choices.pick(answer_seeds()[spoken])
    body = seed.body
    if not choices.one_in(5):
        body = _with_twists(body, choices)
    for _ in range(choices.below(_MOST_TWISTS) if choices.one_in(3) else 0):
        body = changed(body, choices)
    if choices.one_in(8):
        body += choices.pick(answer_seeds()[choices.pick(NAMES)]).body
    body, label = coded(body, seed.content_encoding, choices)
    content_type = choices.pick(_CONTENT_TYPES) if choices.one_in(4) else seed.content_type
    return AnswerCase(wire_format, pieces(body, choices), content_type, label, choices.one_in(3))


def text_case(choices: Choices) -> list[str]:
    """Pieces of one text, as deltas bring them."""
    return [
        choices.pick(_ATOMS) * (1 + choices.below(choices.pick((1, 4, 600))))
        for _ in range(choices.below(24))
    ]


def _parsed(body: bytes) -> Any:
    """A JSON object or list; None for anything else."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _with_twists(body: bytes, choices: Choices) -> bytes:
    """An answer of which some JSON values are changed, and lines or messages moved about."""
    whole = _parsed(body)
    if whole is not None:
        for _ in range(1 + choices.below(_MOST_TWISTS)):
            whole = twisted(whole, choices)
        return written(whole, choices)
    parts = _messages(body) if body[:1] == b"\0" else body.splitlines(keepends=True)
    for _ in range(choices.below(_MOST_TWISTS)):
        if not parts:
            break
        at = choices.below(len(parts))
        kind = choices.below(6)
        if kind == 0:
            parts.insert(choices.below(len(parts)), parts[at])
        elif kind == 1:
            parts.pop(at)
        elif kind == 2:
            parts[at] *= choices.below(40)
        else:
            parts[at] = _twisted_part(parts[at], choices)
    return b"".join(parts)


def _twisted_part(part: bytes, choices: Choices) -> bytes:
    if part[:1] == b"\0":
        return _twisted_message(part, choices)
    start = part.find(b"{")
    value = _parsed(part[start:]) if start >= 0 else None
    if value is None:
        return changed(part, choices)
    end = len(part.rstrip(b"\r\n"))
    return part[:start] + written(twisted(value, choices), choices) + part[end:]


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except ValueError:
        return b""


def _messages(body: bytes) -> list[bytes]:
    """An event stream's messages; what is none comes last as it is."""
    found = []
    while len(body) >= 16:
        size = int.from_bytes(body[:4])
        if not 16 <= size <= len(body):
            break
        found.append(body[:size])
        body = body[size:]
    return [*found, body] if body else found


def _twisted_message(raw: bytes, choices: Choices) -> bytes:
    """Another payload under the same headers, with the right sums."""
    start = 12 + int.from_bytes(raw[4:8])
    headers, value = raw[12:start], _parsed(raw[start:-4])
    if value is None or choices.one_in(8):
        return message(choices.blob(8), {}, changed(headers, choices))
    packed = value.get("bytes") if isinstance(value, dict) else None
    if isinstance(packed, str) and not choices.one_in(4):
        body = written(twisted(_parsed(_decoded(packed)) or {}, choices), choices)
        value = {"bytes": base64.b64encode(body).decode()}
        return message(json.dumps(value).encode(), {}, headers)
    return message(written(twisted(value, choices), choices), {}, headers)
