"""What the provider gets instead of the client's body, by the smallest change of its bytes.

Usage of a stream is asked for on the client's behalf; in strict mode a cap of the output is written
where the client gave none, because only then what was reserved cannot be passed.
"""

import gzip
from dataclasses import replace

from extproc.core.errors import RequestError
from extproc.providers.content_coding import coding_name
from extproc.providers.json_edit import inserted, member_span
from extproc.providers.requests import JsonObject, RequestFacts

_STREAMING = ("openai_chat", "openai_completions")
_ASKING = '{"include_usage":true}'
# The name of the cap by wire format; Anthropic's clients must give one.
_CAP_NAMES = {"openai_chat": "max_completion_tokens", "openai_completions": "max_tokens"}


def rewritten(
    facts: RequestFacts,
    value: JsonObject,
    plain: bytes,
    *,
    content_encoding: str | None,
    strict_cap_tokens: int | None,
) -> RequestFacts:
    """``facts`` with the body to forward, if it is another than the client's.

    ``value`` and ``plain`` are the body, parsed and as bytes, and were read without an error.
    ``strict_cap_tokens`` is the cap for each choice that strict mode writes. A body in another
    encoding than gzip cannot be changed: its usage is counted, and in strict mode RequestError 415
    asks for a cap.
    """
    cap_name = _CAP_NAMES.get(facts.wire_format)
    needs_cap = (
        strict_cap_tokens is not None and cap_name is not None and facts.output_cap_tokens is None
    )
    needs_usage = _needs_usage(facts, value)
    coding = coding_name(content_encoding)
    if not (needs_cap or needs_usage):
        return facts
    if coding not in ("", "gzip", "x-gzip"):
        if needs_cap:
            raise RequestError(
                415,
                "cap_required",
                f"This gateway needs '{cap_name}' in a request with this content encoding.",
                param=cap_name,
            )
        return facts
    text = plain.decode("utf-8")
    if needs_cap:
        assert strict_cap_tokens is not None
        assert cap_name is not None
        text = _capped(text, cap_name, strict_cap_tokens, is_present=cap_name in value)
        facts = replace(facts, output_cap_tokens=strict_cap_tokens * facts.choices)
    if needs_usage:
        options = value.get("stream_options")
        text = _asking(text, options, is_present="stream_options" in value)
    body = text.encode()
    if coding:
        body = gzip.compress(body, compresslevel=1, mtime=0)
    return replace(facts, new_body=body, hides_usage=needs_usage)


def _needs_usage(facts: RequestFacts, value: JsonObject) -> bool:
    if not facts.stream or facts.wire_format not in _STREAMING:
        return False
    options = value.get("stream_options")
    return not (isinstance(options, dict) and options.get("include_usage") is True)


def _capped(text: str, name: str, cap: int, *, is_present: bool) -> str:
    if not is_present:
        return inserted(text, f'"{name}":{cap},')
    start, end = member_span(text, name)  # it was null
    return f"{text[:start]}{cap}{text[end:]}"


def _asking(text: str, options: object, *, is_present: bool) -> str:
    if not is_present:
        return inserted(text, f'"stream_options":{_ASKING},')
    start, end = member_span(text, "stream_options")
    if not isinstance(options, dict):
        asking = _ASKING  # it was null
    elif "include_usage" in options:
        within = text[start:end]
        inner_start, inner_end = member_span(within, "include_usage")
        asking = f"{within[:inner_start]}true{within[inner_end:]}"
    else:
        asking = inserted(text[start:end], '"include_usage":true' + ("," if options else ""))
    return text[:start] + asking + text[end:]
