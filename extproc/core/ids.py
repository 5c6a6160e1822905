"""Identifiers that enter Redis keys: validated once, at the edge."""

import hashlib
import re
import secrets

MAX_ID_LENGTH = 128
# Roots of counters that all tenants share begin so; no client can be one.
ACROSS_PREFIX = "across:"
_DIGEST_BYTES = 10
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)


def is_valid_id(value: str) -> bool:
    """True when ``value`` is 1 to 128 characters of letters, digits and ``. _ : -``.

    Braces are excluded, so an id can never end or open a Redis Cluster hash tag.
    """
    return _ID.fullmatch(value) is not None


def key_word(value: str) -> str:
    """``value`` in a key: itself if it is an id, else a digest of it.

    A colon begins what is no value itself, so the two cannot meet.
    """
    if is_valid_id(value) and not value.startswith(":"):
        return value
    return key_digest(value)


def key_digest(value: str) -> str:
    """A word of 21 characters that stands for any text."""
    # A client's JSON lets text hold lone surrogates.
    data = value.encode("utf-8", "surrogatepass")
    return ":" + hashlib.blake2s(data, digest_size=_DIGEST_BYTES).hexdigest()


def is_root_id(value: str) -> bool:
    """True for an id that a service or tenant may have: not one of a shared counter."""
    return is_valid_id(value) and not value.startswith(ACROSS_PREFIX)


def new_reservation_id() -> str:
    """A fresh reservation id: 128 random bits as 32 hex digits; unguessable, never a client's."""
    return secrets.token_hex(16)


def reservation_id_of(*, request_id: str, start_us: int, client: str) -> str:
    """The reservation id of one request that Envoy received, 32 hex digits.

    Both admission and the access log entry can compute it, so that a request which Envoy gave up
    before it took our answer can still be released. A client may be able to choose the request id,
    and meshes send one id with many calls; ``start_us`` (Unix microseconds at which Envoy received
    the request) and ``client`` (address and port) make it one request's own.
    """
    parts = "\x00".join((request_id, str(start_us), client))
    return hashlib.blake2s(parts.encode("utf-8", "replace"), digest_size=16).hexdigest()
