"""A request's path as the most lenient upstream would see it."""

import re
from urllib.parse import unquote

from extproc.providers.wire_formats import Target

_QUERY_OR_FRAGMENT = re.compile(r"[?#]")
_MOST_DECODINGS = 3
_VERSION = re.compile(r"v\d+[a-z0-9]*")


def segments_of(path: str) -> list[str]:
    """Query and fragment off, percent-encoding decoded (also where it was encoded twice),
    parameters behind a semicolon and white space dropped, empty and dot segments resolved
    (RFC 3986, 5.2.4): a spelling that some upstream accepts must not pass unmetered.
    """
    bare = path
    for _ in range(_MOST_DECODINGS):
        bare = unquote(_QUERY_OR_FRAGMENT.split(bare, maxsplit=1)[0])
    segments: list[str] = []
    for part in _QUERY_OR_FRAGMENT.split(bare, maxsplit=1)[0].split("/"):
        segment = part.partition(";")[0].strip()
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    return segments


def target_of(path: str, *, host: str = "", media_type: str = "") -> Target:
    """Path, host (a port is dropped) and media type, ready to be matched."""
    segments = tuple(segments_of(path))
    bare_host = host.lower().partition(":")[0] if not host.startswith("[") else host.lower()
    return Target(segments, tuple(segment.lower() for segment in segments), bare_host, media_type)


def has_api_prefix(target: Target, *, words: int = 1) -> bool:
    """Whether what stands before the last ``words`` segments is how an OpenAI-like API begins.

    Nothing, ``/openai``, a version such as ``/v1``, Azure's ``/openai/deployments/NAME`` and
    ``/models``, DeepSeek's ``/beta``.
    """
    lead = target.lowered[: len(target.lowered) - words]
    if lead in ((), ("models",)) or lead[-1] in ("openai", "beta") or _VERSION.fullmatch(lead[-1]):
        return True
    return len(lead) > 1 and lead[-2] == "deployments"


def deployment_of(target: Target) -> str | None:
    """The model's name in Azure's ``/openai/deployments/NAME/...``, whose body may have none."""
    if "deployments" not in target.lowered[:-1]:
        return None
    return target.segments[target.lowered.index("deployments") + 1]
