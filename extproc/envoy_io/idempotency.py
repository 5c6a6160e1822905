"""A client's own idempotency key: one request at a time, and the same request each time.

Source of the two errors: the IETF draft "The Idempotency-Key HTTP Header Field" (409 while the
first is under way, 422 for a key that was used with another request). Unlike it, an attempt that
has ended is not replayed: its answer was streamed through, not kept, so the same key begins a new
attempt, which is metered like any other and linked to the one before.
"""

import hashlib
import re

from extproc.core.errors import RequestError
from extproc.core.reservations import Conflict, IdConflict
from extproc.envoy_io.identity import Headers

_HASH_BYTES = 8
_KEY_BYTES = 16
# No comma: Envoy joins a header that comes twice by one (RFC 9110, section 5.3).
_KEY = re.compile(r"[!-+\--~]{1,255}")


def request_hash(path: str, body: bytes) -> str:
    """16 hex digits that name what a request asks."""
    digest = hashlib.blake2b(path.encode("utf-8", "replace"), digest_size=_HASH_BYTES)
    digest.update(b"\x00")
    digest.update(body)
    return digest.hexdigest()


def idempotency_digest(name: str | None, *, header: Headers) -> str:
    """A digest of the key in the header ``name``, empty when there is none.

    The key itself goes no further: it is a client's text. Raises RequestError for what is no key.
    """
    key = None if name is None else header(name)
    if not key:
        return ""
    if _KEY.fullmatch(key) is None:
        raise RequestError(
            400,
            "invalid_idempotency_key",
            f"{name} must be given once, 1 to 255 printable ASCII characters "
            "without spaces and commas.",
            param=name,
        )
    return hashlib.blake2s(key.encode(), digest_size=_KEY_BYTES).hexdigest()


def key_error(conflict: IdConflict, name: str | None) -> RequestError:
    """What the client is told about a key that may not be used now."""
    if conflict.what is Conflict.IN_FLIGHT:
        return RequestError(
            409,
            "idempotency_key_in_flight",
            f"A request with this {name} is still under way; nothing was sent to the provider. "
            "Try again when it has ended.",
            param=name,
        )
    return RequestError(
        422,
        "idempotency_key_reused",
        f"This {name} was used with another request. Use a new one for each new request.",
        param=name,
    )
