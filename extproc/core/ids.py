"""Identifiers that enter Redis keys: validated once, at the edge."""

import re
import secrets

MAX_ID_LENGTH = 128
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)


def is_valid_id(value: str) -> bool:
    """True when ``value`` is 1 to 128 characters of letters, digits and ``. _ : -``.

    Braces are excluded, so an id can never end or open a Redis Cluster hash tag.
    """
    return _ID.fullmatch(value) is not None


def new_reservation_id() -> str:
    """A fresh reservation id: 128 random bits as 32 hex digits; unguessable, never a client's."""
    return secrets.token_hex(16)
