"""What ``tokenweir up`` takes over of its caller's settings: whatever is about requests.

Where things listen and which stores they use is the stack's own, and so is how a service is known.
"""

import json
from collections.abc import Iterable

from extproc.core.header_names import IDENTITY_HEADER
from extproc.core.policies import Scope
from extproc.settings import ENV_PREFIX, HeaderSource, Settings

_SECTIONS = ("admission", "limits", "reaper")


def child_variables(settings: Settings) -> dict[str, str]:
    """Environment variables that tell these settings to the stack's processes.

    Lists and tables are JSON there; a setting that is not given is not told."""
    told = settings.model_dump(mode="json", exclude_unset=True)
    variables = {
        f"{ENV_PREFIX}{section}__{key}".upper(): (
            json.dumps(value) if isinstance(value, list) else str(value)
        )
        for section in _SECTIONS
        for key, value in told.get(section, {}).items()
        if value is not None
    }
    if scopes := told.get("identity", {}).get("scopes"):
        variables[f"{ENV_PREFIX}IDENTITY__SCOPES"] = json.dumps(scopes)
    if prices := told.get("prices"):
        variables[f"{ENV_PREFIX}PRICES"] = json.dumps(prices)
    return variables


def client_headers(settings: Settings) -> dict[Scope, tuple[str, ...]]:
    """By scope the request headers that say its value: in the stack only clients can set them."""
    return {
        scope: names
        for scope, sources in settings.identity.scopes.items()
        if (names := tuple(_header_names(sources)))
    }


def envoy_options(settings: Settings) -> dict[str, object]:
    """Fields of RenderOptions, so that admission sees what these settings ask for."""
    names = [name for each in client_headers(settings).values() for name in each]
    known = (IDENTITY_HEADER, settings.admission.idempotency_header)
    return {
        "front_headers": tuple(name for name in dict.fromkeys(names) if name not in known),
        "idempotency_header": settings.admission.idempotency_header,
    }


def _header_names(sources: Iterable[object]) -> Iterable[str]:
    return (source.name for source in sources if isinstance(source, HeaderSource))


def notice(settings: Settings) -> str:
    """What ``up`` says about it: paragraphs, or an empty text."""
    scopes = client_headers(settings)
    key = settings.admission.idempotency_header
    lines = []
    if scopes:
        named = ", ".join(f"{', '.join(names)} ({scope})" for scope, names in scopes.items())
        lines.append(
            f"Believed as clients send them, for trials only: {named}."
            " In front of real clients a filter sets such headers (docs/envoy.md)."
        )
    if key is not None:
        lines.append(f"A client's idempotency key: {key}")
    return "".join(f"{line}\n\n" for line in lines)
