"""Collects an answer that is one JSON document, in bounded memory."""

import re

from extproc.providers.json_answer import parse_object
from extproc.providers.large_json import bounded
from extproc.providers.requests import JsonObject

MAX_JSON_BYTES = 8 * 1024 * 1024
_TAIL_BYTES = 64 * 1024
# Inside a JSON string the quotes would be escaped, so this matches a key (or its look-alike in a
# nested object, which the last match makes unlikely: usage stands at the end).
_USAGE_KEY = re.compile(rb'(?<!\\)"usage(?:Metadata)?"\s*:\s*(?=\{)')


class JsonCollector:
    """Keeps the whole document up to ``max_bytes``, of a larger one only the end. One of too many
    values is taken for a larger one when it is asked for.

    Embeddings of many texts take tens of megabytes, and their usage stands behind them.
    """

    def __init__(self, *, max_bytes: int = MAX_JSON_BYTES) -> None:
        self._max_bytes = max_bytes
        self._kept = bytearray()  # in one piece: small ones would take many times their size
        self.overflowed = False

    def add(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > self._max_bytes:
            self.overflowed = True
        if self.overflowed and len(self._kept) > 2 * _TAIL_BYTES:
            self._kept = self._kept[-_TAIL_BYTES:]

    @property
    def size(self) -> int:
        """How many bytes are kept."""
        return len(self._kept)

    def raw(self) -> bytes:
        """The bytes that are kept."""
        return bytes(self._kept)

    def value(self) -> JsonObject | None:
        """The document; of a larger one an object with its usage only; None when incomplete."""
        raw = self.raw()
        if not self.overflowed:
            few = bounded(raw)
            if few is not None:
                return parse_object(few)
            self.overflowed = True
            self._kept = self._kept[-_TAIL_BYTES:]
            raw = self.raw()
        keys = list(_USAGE_KEY.finditer(raw))
        if not keys:
            return None
        # "usage": {...} and what follows it up to the document's last brace.
        return parse_object(b"{" + raw[keys[-1].start() :])
