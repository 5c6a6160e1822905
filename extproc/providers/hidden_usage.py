"""The usage event that we asked for and the client did not: it is taken out of the stream."""

from extproc.providers.requests import JsonObject

_USAGE, _NO_USAGE = b'"usage"', (b'"usage":null', b'"usage": null')
_EMPTY_LINES = (b"\n\n", b"\n\r\n")


def is_usage_only(value: JsonObject | None) -> bool:
    """The event that ``stream_options.include_usage`` adds: no choices, and the usage."""
    return value is not None and value.get("choices") == [] and isinstance(value.get("usage"), dict)


def hides_nothing(chunk: bytes) -> bool:
    """Whether a chunk that begins with an event has whole events, and none that is to be hidden:
    told without reading them."""
    if not chunk.endswith(_EMPTY_LINES):
        return False
    named = chunk.count(_USAGE)
    return not named or named == sum(map(chunk.count, _NO_USAGE))
