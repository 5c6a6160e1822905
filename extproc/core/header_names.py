"""Request headers that cannot hold a client's idempotency key."""

from collections.abc import Iterable

from extproc.core.errors import SettingsError

IDENTITY_HEADER = "x-tokenweir-service"

# They are the same in different requests, or Envoy and HTTP itself set them.
_TAKEN = frozenset(
    {
        "accept",
        "accept-encoding",
        "authorization",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "cookie",
        "host",
        "proxy-authorization",
        "te",
        "transfer-encoding",
        "user-agent",
        IDENTITY_HEADER,
    }
)


def check_idempotency_header(key: str, name: str | None, *, also_taken: Iterable[str] = ()) -> None:
    """Raise SettingsError, which names ``key``, for a header that means something else already:
    ``also_taken`` are those that say who is asking."""
    if name is not None and name in (_TAKEN | {other.lower() for other in also_taken}):
        raise SettingsError(key, f"{name} means something else; take one such as idempotency-key")
