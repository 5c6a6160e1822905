"""What the provider gets instead of the client's body, by the smallest change of its bytes.

Usage of a stream is asked for on the client's behalf; in strict mode a cap of the output is written
where the client gave none, because only then what was reserved cannot be passed.
"""

import gzip
from dataclasses import replace

from extproc.core.errors import RequestError
from extproc.providers.content_coding import coding_name
from extproc.providers.json_edit import with_member
from extproc.providers.requests import JsonObject, RequestFacts, UsageEvents

_ASKING = ("stream_options", "include_usage")


def rewritten(
    facts: RequestFacts,
    value: JsonObject,
    plain: bytes,
    *,
    asks_usage: bool,
    content_encoding: str | None,
    strict_cap_tokens: int | None,
    usage_events: UsageEvents = "hide",
) -> RequestFacts:
    """``facts`` with the body to forward, if it is another than the client's.

    ``value`` and ``plain`` are the body, parsed and as bytes, and were read without an error.
    ``strict_cap_tokens`` is the cap for each choice that strict mode writes. A body in another
    encoding than gzip cannot be changed: its usage is counted, and in strict mode RequestError 415
    asks for a cap.
    """
    cap_name = ".".join(facts.cap_path)
    needs_cap = strict_cap_tokens is not None and cap_name != "" and facts.output_cap_tokens is None
    needs_usage = asks_usage and usage_events != "leave" and _needs_usage(facts, value)
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
        text = with_member(text, value, facts.cap_path, str(strict_cap_tokens))
        facts = replace(facts, output_cap_tokens=strict_cap_tokens * facts.choices)
    if needs_usage:
        text = with_member(text, value, _ASKING, "true")
    body = text.encode()
    if coding:
        body = gzip.compress(body, compresslevel=1, mtime=0)
    return replace(facts, new_body=body, hides_usage=needs_usage and usage_events == "hide")


def _needs_usage(facts: RequestFacts, value: JsonObject) -> bool:
    if not facts.stream:
        return False
    options = value.get("stream_options")
    return not (isinstance(options, dict) and options.get("include_usage") is True)
