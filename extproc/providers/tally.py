"""Collects the text of an answer and counts it when asked, in bounded memory."""

from collections.abc import Hashable

from extproc.providers.tokens import count_tokens, safe_cut

FLUSH_CHARS = 64 * 1024
_MAX_STREAMS = 256


class TextTally:
    """The text of one answer, by stream: choice, and text or reasoning or arguments.

    Deltas of different streams arrive interleaved, and a token never spans two of them. Adding is
    a list append; counting happens when asked, or in pieces when much text has gathered.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._streams: dict[Hashable, list[str]] = {}
        self._chars = 0
        self._counted = 0
        self._pending: int | None = 0
        self.saw_text = False

    def add(self, stream: Hashable, text: str) -> None:
        """Append a delta."""
        if not text:
            return
        self.saw_text = True
        self._pending = None
        self._chars += len(text)
        parts = self._streams.get(stream)
        if parts is None:
            self._streams[stream] = [text]
        else:
            parts.append(text)
        if self._chars > FLUSH_CHARS or len(self._streams) > _MAX_STREAMS:
            self._flush()

    def restart(self) -> None:
        """Forget all text so far: the provider said how many tokens it was."""
        self._streams.clear()
        self._chars = self._counted = 0
        self._pending = 0

    def count(self) -> int:
        """Tokens of all text since the last restart."""
        if self._pending is None:
            self._pending = sum(
                count_tokens("".join(parts), self._encoding) for parts in self._streams.values()
            )
        return self._counted + self._pending

    def _flush(self) -> None:
        """Count all but a short tail of each stream, whose last token may still grow."""
        keep_tails = len(self._streams) <= _MAX_STREAMS
        kept: dict[Hashable, list[str]] = {}
        for stream, parts in self._streams.items():
            text = "".join(parts)
            cut = safe_cut(text, max(1, len(text) - 64)) if keep_tails else len(text)
            self._counted += count_tokens(text[:cut], self._encoding)
            if text[cut:]:
                kept[stream] = [text[cut:]]
        self._streams = kept
        self._chars = sum(len(parts[0]) for parts in kept.values())
        self._pending = None
