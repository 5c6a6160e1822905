"""Asks for the usage of a stream on the client's behalf, by the smallest change of its bytes.

The body is never written anew from the parsed value: big integers, the spelling of floats, the
order of keys and white space stay what the client sent (its signature or cache may depend on it).
"""

import gzip
import re
from dataclasses import replace
from json.decoder import JSONDecoder, scanstring  # type: ignore[attr-defined]

from extproc.providers.content_coding import coding_name
from extproc.providers.requests import JsonObject, RequestFacts

_SPACE = re.compile(r"[ \t\n\r]*")
_STREAMING = ("openai_chat", "openai_completions")
_ASKING = '{"include_usage":true}'
_decoder = JSONDecoder()


def with_usage_asked(
    facts: RequestFacts, value: JsonObject, plain: bytes, *, content_encoding: str | None
) -> RequestFacts:
    """``facts`` with the body that asks for usage, where the client streams without asking.

    ``value`` and ``plain`` are the body, parsed and as bytes, and were read without an error.
    Bodies in another encoding than gzip are left alone; their usage is counted instead.
    """
    if not facts.stream or facts.wire_format not in _STREAMING:
        return facts
    options = value.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage") is True:
        return facts
    coding = coding_name(content_encoding)
    if coding not in ("", "gzip", "x-gzip"):
        return facts
    body = _asking(plain.decode("utf-8"), options, is_present="stream_options" in value).encode()
    if coding:
        body = gzip.compress(body, compresslevel=1, mtime=0)
    return replace(facts, new_body=body, hides_usage=True)


def _asking(text: str, options: object, *, is_present: bool) -> str:
    if not is_present:
        return _inserted(text, f'"stream_options":{_ASKING},')
    start, end = _member_span(text, "stream_options")
    if not isinstance(options, dict):
        asking = _ASKING  # it was null
    elif "include_usage" in options:
        within = text[start:end]
        inner_start, inner_end = _member_span(within, "include_usage")
        asking = f"{within[:inner_start]}true{within[inner_end:]}"
    else:
        asking = _inserted(text[start:end], '"include_usage":true' + ("," if options else ""))
    return text[:start] + asking + text[end:]


def _inserted(text: str, member: str) -> str:
    brace = text.index("{") + 1
    return text[:brace] + member + text[brace:]


def _member_span(text: str, key: str) -> tuple[int, int]:
    """Where the value of ``key``, which is there, stands in the JSON object ``text``."""
    at = _skip(text, text.index("{") + 1)
    while True:
        name, at = scanstring(text, at + 1, True)  # noqa: FBT003 - the C function takes no keywords
        start = _skip(text, _skip(text, at) + 1)
        _, end = _decoder.raw_decode(text, start)
        if name == key:
            return start, end
        at = _skip(text, _skip(text, end) + 1)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None  # it matches the empty string
    return space.end()
