"""How many tokens a text has. No network, nothing escapes, long runs stay quick.

Two counters give the same numbers: toktok (4 to 13 times faster, releases the GIL, but young) and
tiktoken (the reference). toktok is used for an encoding only after it agreed with numbers that
tiktoken gave for a sample; otherwise tiktoken is loaded. The sample's numbers are recorded here, so
that a server which uses toktok never loads tiktoken's tables (memory); a test recomputes them.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from sys import getsizeof

from extproc.providers.vocabularies import EncodingName, build_encoding

DEFAULT_ENCODING: EncodingName = "o200k_base"
ENCODING_NAMES: tuple[EncodingName, ...] = ("o200k_base", "cl100k_base")

# The longest run of characters that tiktoken is given at once. Its time grows faster than the
# length of a run without a break, and above a million spaces it panics. A cut costs at most a
# few tokens in 100,000 characters.
_TIKTOKEN_PIECE = 100_000
# toktok is linear; this bounds only what one call allocates.
_TOKTOK_PIECE = 4_000_000
_MENDED_PIECE = 64 * 1024
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

# Text -> tokens in (o200k_base, cl100k_base), as tiktoken 0.14 counts them.
SELF_CHECK: tuple[tuple[str, int, int], ...] = (
    ("", 0, 0),
    ("hello world", 2, 2),
    ("Explain <|endoftext|> and <|im_start|> and <|fim_prefix|> to me", 24, 23),
    ("a" * 1000, 125, 125),
    ("^" * 1000, 125, 250),
    ("汉字测试文本长" * 20, 100, 140),
    ("It's 12,345.67 €, they'LL see\r\n\r\n\t 👩‍👩‍👧 naïve café\u0301 ", 27, 33),
    ("def f(x):\n    return {'a': [1, 2.5, None]}  # done\n", 23, 23),
)

_OLD_MODELS = re.compile(r"gpt-(3\.5|35|4(?!o|\.1|\.5))|text-embedding|davinci-002|babbage-002")


def encoding_for(model: str) -> EncodingName:
    """The encoding that fits a model's name best.

    cl100k_base for GPT-3.5, GPT-4 (not 4o, 4.1, 4.5) and the text-embedding models, as tiktoken's
    own table has it; o200k_base for everything else, as the best guess for unknown models.
    """
    return "cl100k_base" if _OLD_MODELS.search(model.lower()) else DEFAULT_ENCODING


def count_tokens(text: str, encoding: str = DEFAULT_ENCODING) -> int:
    """Tokens of ``text``, all of it ordinary text (spellings of special tokens too).

    Lone surrogates count as U+FFFD. An unknown encoding's name counts as the default. Never
    raises for any text. Thread-safe; with toktok the GIL is free while a long text is counted.
    """
    length = len(text)
    if length == 0:
        return 0
    name: EncodingName = "cl100k_base" if encoding == "cl100k_base" else "o200k_base"
    if _CACHED_FROM <= length <= _CACHED_TO:
        return _cache.count(name, text)
    return _counter(name)(text)


def warm_up() -> dict[str, str]:
    """Load all encodings now (0.5 to 1 s). Returns encoding -> the library that counts it.

    Not at first use, and not in a thread: both libraries hold the GIL for as long as it takes to
    load one (toktok 0.3 s), and every call to Redis that is under way then times out.
    """
    return {name: getattr(_counter(name), "library", "tiktoken") for name in ENCODING_NAMES}


class TiktokenCounter:
    """The reference counter."""

    library = "tiktoken"

    def __init__(self, name: EncodingName) -> None:
        self._encode = build_encoding(name).encode_ordinary

    def __call__(self, text: str) -> int:
        text = _LONE_SURROGATE.sub("\ufffd", text)
        return sum(self._count_piece(piece) for piece in pieces_of(text, _TIKTOKEN_PIECE))

    def _count_piece(self, piece: str) -> int:
        try:
            return len(self._encode(piece))
        except BaseException as error:
            # tiktoken's PanicException derives from BaseException and cannot be imported.
            if type(error).__name__ != "PanicException":
                raise
            return len(piece.encode())  # a text never has more tokens than bytes


class ToktokCounter:
    """The fast counter. Raises when the package is missing or disagrees with the sample."""

    library = "toktok"

    def __init__(self, name: EncodingName) -> None:
        import toktok  # noqa: PLC0415 - a wheel that does not load must not stop the server

        # The public batch call costs 28 us, this one 0.1 us; the version is pinned for it.
        self._count: Callable[[str], int] = toktok._encoding(name).count
        column = 1 + ENCODING_NAMES.index(name)
        for row in SELF_CHECK:
            if self(row[0]) != row[column]:
                raise ValueError(f"toktok disagrees with tiktoken in {name}")

    def __call__(self, text: str) -> int:
        if len(text) > _TOKTOK_PIECE:
            return sum(self._count_piece(piece) for piece in pieces_of(text, _TOKTOK_PIECE))
        return self._count_piece(text)

    def _count_piece(self, piece: str) -> int:
        try:
            return self._count(piece)
        except UnicodeEncodeError:
            # In short pieces: the GIL is held while one is mended.
            mended = (
                _LONE_SURROGATE.sub("\ufffd", piece[at : at + _MENDED_PIECE])
                for at in range(0, len(piece), _MENDED_PIECE)
            )
            return self._count("".join(mended))


def safe_cut(text: str, limit: int) -> int:
    """Where to cut ``text`` at or before ``limit`` so that the parts count like the whole.

    That is before a single space between a letter or digit and something that is not a space
    (measured: exact in both encodings). Without such a place nearby the cut is at ``limit`` and
    may cost a token or two.
    """
    if len(text) <= limit:
        return len(text)
    at = limit
    for _ in range(64):
        at = text.rfind(" ", 1, at)
        if at < limit // 2:
            break
        before = text[at - 1]
        if before.isascii() and before.isalnum() and not text[at + 1].isspace():
            return at
    return limit


def pieces_of(text: str, limit: int) -> list[str]:
    """``text`` in parts of ``limit`` characters at most, cut as ``safe_cut`` does."""
    pieces: list[str] = []
    start = 0
    while len(text) - start > limit:
        end = start + safe_cut(text[start : start + limit + 2], limit)
        pieces.append(text[start:end])
        start = end
    pieces.append(text[start:])
    return pieces


_counters: dict[EncodingName, TiktokenCounter | ToktokCounter] = {}
_loading = threading.Lock()


def _counter(name: EncodingName) -> TiktokenCounter | ToktokCounter:
    counter = _counters.get(name)
    if counter is None:
        with _loading:
            counter = _counters.get(name)
            if counter is None:
                counter = _counters[name] = _load(name)
    return counter


def _load(name: EncodingName) -> TiktokenCounter | ToktokCounter:
    try:
        return ToktokCounter(name)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, the reference is at hand
        return TiktokenCounter(name)


# Below, the look-up costs as much as counting; above, one text would fill the cache.
_CACHED_FROM, _CACHED_TO = 256, 64 * 1024
CACHE_MAX_BYTES = 8 * 1024 * 1024


class CountCache:
    """Least recently used texts and their counts, bounded by the memory that the texts take.

    A fixed system prompt, sent with every request, is then nearly free.
    """

    def __init__(self, max_bytes: int = CACHE_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._counts: OrderedDict[tuple[EncodingName, str], int] = OrderedDict()
        self._lock = threading.Lock()
        self.used_bytes = 0

    def count(self, name: EncodingName, text: str) -> int:
        """The tokens of ``text``, from the cache or counted now."""
        key = (name, text)
        with self._lock:
            known = self._counts.get(key)
            if known is not None:
                self._counts.move_to_end(key)
                return known
        tokens = _counter(name)(text)  # outside the lock: several threads may count
        with self._lock:
            if key not in self._counts:
                self._counts[key] = tokens
                self.used_bytes += getsizeof(text)
            while self.used_bytes > self._max_bytes:
                (_, oldest), _ = self._counts.popitem(last=False)
                self.used_bytes -= getsizeof(oldest)
        return tokens


_cache = CountCache()
