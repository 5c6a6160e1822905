"""Several JSON objects where an answer should have been one: a line each, or a list of them.

So answer servers that label a stream as a document or leave its framing out, and gateways that put
``[DONE]`` behind a document. Formats of which this is the usual way have framings of their own.
"""

from extproc.providers.json_answer import first_object
from extproc.providers.requests import JsonObject

# 20,000 take 0.1 s. Longer streams of one token each are none that anybody sends so.
MAX_OBJECTS = 20_000


def objects_of(data: bytes) -> list[JsonObject]:
    """The objects in ``data``, in order, up to one that is broken or cut; none at all if they are
    more than MAX_OBJECTS."""
    text = data.decode("utf-8", "replace")
    found: list[JsonObject] = []
    at = 0
    while (one := first_object(text, at)) is not None:
        value, at = one
        found.append(value)
        if len(found) > MAX_OBJECTS:
            return []
    return found
