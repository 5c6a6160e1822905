"""Sizes of pictures and length of sound, read from the first bytes of their base64.

A handful of bytes is decoded wherever the answer is, never the whole: a request may hold many
megabytes of them. The bytes are trusted, labels are not. What cannot be read is None.
"""

import binascii
from collections.abc import Callable

Read = Callable[[int, int], bytes]

# A picture that claims more is damaged or made to deceive.
_LONGEST_SIDE = 100_000
# Cameras write some ten segments before the frame's; a chopped colour profile takes more.
_MOST_SEGMENTS = 64
_LONGEST_PREFIX = 256
# Frames that hold a size: all starts of frame but the tables and reserved codes among them.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
# Sound with less than this is a mistake or a lie (32 kbit/s, as MP3 has it).
_LEAST_BYTES_PER_SECOND = 4000
_URL_SAFE = str.maketrans("-_", "+/")


def base64_start(text: str) -> int | None:
    """Where the base64 of a ``data:`` URL begins; None when it is none."""
    if text[:5].lower() != "data:":
        return None
    comma = text.find(",", 5, _LONGEST_PREFIX)
    if comma < 0 or not text[5:comma].rstrip().lower().endswith(";base64"):
        return None
    return comma + 1


def image_size(text: str, start: int = 0) -> tuple[int, int] | None:
    """Width and height of a PNG, GIF, WebP or JPEG whose base64 begins at ``start``."""

    def read(offset: int, count: int) -> bytes:
        return _decoded(text, start, offset, count)

    head = read(0, 30)
    if head.startswith(b"\x89PNG\r\n\x1a\n") and head[12:16] == b"IHDR":
        size = (int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big"))
    elif head[:6] in (b"GIF87a", b"GIF89a"):
        size = (int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little"))
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        size = _webp(head)
    elif head[:2] == b"\xff\xd8":
        size = _jpeg(read)
    else:
        return None
    return size if all(1 <= side <= _LONGEST_SIDE for side in size) else None


def wav_seconds(text: str) -> float | None:
    """How long a RIFF/WAVE file lasts whose base64 is ``text``."""
    head = _decoded(text, 0, 0, 36)
    if head[:4] != b"RIFF" or head[8:16] != b"WAVEfmt " or len(head) < 36:
        return None
    rate = max(int.from_bytes(head[28:32], "little"), _LEAST_BYTES_PER_SECOND)
    return len(text) * 3 / 4 / rate


def _webp(head: bytes) -> tuple[int, int]:
    kind = head[12:16]
    if kind == b"VP8 ":
        both = int.from_bytes(head[26:30], "little")
        return both & 0x3FFF, both >> 16 & 0x3FFF
    if kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X" and len(head) == 30:
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    return 0, 0


def _jpeg(read: Read) -> tuple[int, int]:
    """Jumps from segment to segment: each says how long it is."""
    offset = 2
    for _ in range(_MOST_SEGMENTS):
        segment = read(offset, 9)
        if len(segment) < 9 or segment[0] != 0xFF:
            break
        marker = segment[1]
        if marker in _FRAMES:
            return int.from_bytes(segment[7:9], "big"), int.from_bytes(segment[5:7], "big")
        if marker == 0xFF:  # filling
            offset += 1
        elif marker in _ALONE:
            offset += 2
        else:
            offset += 2 + int.from_bytes(segment[2:4], "big")
    return 0, 0


def _decoded(text: str, start: int, offset: int, count: int) -> bytes:
    """``count`` bytes at ``offset`` of what the base64 means; fewer where it ends or breaks."""
    first, skipped = start + offset // 3 * 4, offset % 3
    piece = text[first : first + -(-(count + skipped) // 3) * 4]
    try:
        return binascii.a2b_base64(piece.translate(_URL_SAFE) + "==")[skipped : skipped + count]
    except ValueError:
        return b""
