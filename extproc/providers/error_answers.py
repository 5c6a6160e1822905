"""Collects the body of an error answer: small, plain or compressed, JSON or not."""

from extproc.providers.content_coding import sniff_answer
from extproc.providers.inflaters import Inflater
from extproc.providers.json_answer import parse_json

_MAX_BYTES = 64 * 1024


class ErrorBody:
    """At most 64 KiB of it are kept; what is longer is no error description. Never raises."""

    def __init__(self, content_encoding: str | None) -> None:
        self._content_encoding = content_encoding
        self._data = b""
        self._is_long = False

    def add(self, chunk: bytes) -> None:
        self._is_long = self._is_long or len(self._data) + len(chunk) > _MAX_BYTES
        if not self._is_long:
            self._data += chunk

    def value(self) -> object:
        """Its JSON, None when it has none."""
        data = b"" if self._is_long else self._data
        kind = sniff_answer(data, self._content_encoding) if data else None
        if kind == "?":
            return None
        if kind is not None:
            data = Inflater(kind, max_bytes=_MAX_BYTES).feed(data)
        return parse_json(data)
