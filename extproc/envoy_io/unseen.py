"""Requests that went on, or tried to, without admission: told by their access log entries.

An entry without a handle and without admission's own mark is of such a request. Reasons:

| reason | what Envoy saw |
| --- | --- |
| ``no_body`` | sent on, and the request had no body: Envoy makes no call for it |
| ``upgrade`` | an upgrade (WebSocket) or CONNECT; refused, or let through by a route that allows it |
| ``not_asked`` | sent on with a body: the route switches the filter off or its chain has none, or admission was away and the filter lets such requests pass |
| ``not_routed`` | no route: Envoy's own 404 |

What was answered before it was sent on (authentication, redirects, our own refusals) is no traffic.
"""  # noqa: E501 - a table

import re

from envoy.config.core.v3.base_pb2 import CONNECT
from envoy.data.accesslog.v3.accesslog_pb2 import HTTPAccessLogEntry

NO_BODY, UPGRADE, NOT_ASKED, NOT_ROUTED = "no_body", "upgrade", "not_asked", "not_routed"
REASONS = (NO_BODY, UPGRADE, NOT_ASKED, NOT_ROUTED)

_SWITCHING_PROTOCOLS = 101
# Envoy's detail of an upgrade that no route or connection manager allows.
_UPGRADE_REFUSED = "upgrade_failed"
_MAX_PATH = 100
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


def unseen_reason(entry: HTTPAccessLogEntry) -> tuple[str, bool] | None:
    """Why admission never saw the request, and whether it was sent on; None when it is nothing
    that could have been metered."""
    common, request, response = entry.common_properties, entry.request, entry.response
    is_upgrade = (
        response.response_code.value == _SWITCHING_PROTOCOLS or request.request_method == CONNECT
    )
    if common.HasField("time_to_first_upstream_tx_byte"):
        if is_upgrade:
            return UPGRADE, True
        return (NOT_ASKED if request.request_body_bytes else NO_BODY), True
    if common.response_flags.no_route_found:
        return NOT_ROUTED, False
    if is_upgrade or response.response_code_details.startswith(_UPGRADE_REFUSED):
        return UPGRADE, False
    return None


def logged_path(entry: HTTPAccessLogEntry) -> str:
    """The path without its query, which may hold a credential; short and printable."""
    path = entry.request.original_path or entry.request.path
    return _UNPRINTABLE.sub("?", path.partition("?")[0][:_MAX_PATH])
