"""What Google counts as input: text, and media by published rules where the size is not read.

Sources, as of November 2026: the pages "Understand and count tokens" (258 tokens for each tile of
768 x 768, 32 a second of audio, about 300 a second of video with its sound), "Media resolution"
(the levels), "Document understanding" (a page is a picture, at most 1,000 pages) and "Context
caching" (4,096 tokens are the least that can be cached with current models).
"""

import base64
import re

from extproc.providers.counting import DOCUMENT, Counter
from extproc.providers.requests import JsonObject

# "Hi my name is Bob" and "Hi Bob!" are 10 tokens together on the page about counting, 8 as text.
PER_CONTENT = 1
CACHED_CONTENT = 4096
AUDIO_PER_SECOND = 32
# By level: tokens of a picture, of a second of video (a frame), of a page.
_GEMINI_3 = {
    "": (1120, 70, 560),
    "low": (280, 70, 280),
    "medium": (560, 70, 560),
    "high": (1120, 280, 1120),
    "ultra_high": (2240, 280, 1120),
}
# 1,032 are the four tiles of a picture of 1024 x 1024.
_GEMINI_2 = {
    "": (1032, 258, 258),
    "low": (64, 64, 64),
    "medium": (258, 258, 258),
    "high": (2048, 258, 258),
}
_GENERATION = re.compile(r"gemini-(\d+)")
# Guesses, on the safe side: characters of base64 for a second (16-bit PCM with 8 kHz, MP3 with 32
# kbit/s, video with 500 kbit/s) and for a page (30 KB).
_WAV_PER_SECOND, _AUDIO_CHARS_PER_SECOND, _VIDEO_CHARS_PER_SECOND = 21_333, 5_333, 83_333
_CHARS_PER_PAGE, _MOST_PAGES = 40_000, 1000
# A file that is only named: a minute, ten pages.
_NAMED_SECONDS, _NAMED_PAGES = 60, 10
_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/x-javascript")
_SKIPPED = frozenset({"thought", "thoughtsignature", "videometadata", "mediaresolution", "id"})


def _level(value: object) -> str:
    if isinstance(value, dict):
        value = value.get("level")
    return value.lower().removeprefix("media_resolution_") if isinstance(value, str) else ""


def folded(key: str) -> str:
    """A key without its spelling: JSON of protocol buffers may have inlineData or inline_data."""
    return key.replace("_", "").lower()


class GeminiCounter:
    """Counts one request's contents in one encoding. ``resolution`` is the request's own level."""

    def __init__(self, model: str, encoding: str, *, resolution: object = None) -> None:
        generation = _GENERATION.search(model)
        is_old = generation is not None and int(generation[1][:3]) < 3
        self._rules = _GEMINI_2 if is_old else _GEMINI_3
        self._level = _level(resolution)
        self._counter = Counter(encoding, image_tokens=self._rules[""][0])

    def json(self, value: object) -> int:
        """Tools and schemas."""
        return self._counter.json(value)

    def contents(self, value: object) -> int:
        """A list of contents, or one: Google takes a single object for a list of one."""
        if isinstance(value, list):
            self._counter.walk(1 + len(value))
            return sum(self.contents(item) for item in value)
        if not isinstance(value, dict):
            return self._counter.content(value)
        return PER_CONTENT + self._parts(value.get("parts"))

    def _parts(self, value: object) -> int:
        if isinstance(value, list):
            self._counter.walk(1 + len(value))
            return sum(self._parts(item) for item in value)
        return self._part(value) if isinstance(value, dict) else self._counter.content(value)

    def _part(self, part: JsonObject) -> int:
        self._counter.walk(1 + len(part))
        total = 0
        level = self._level
        for key, value in part.items():
            if folded(key) == "mediaresolution":
                level = _level(value) or level
        for key, value in part.items():
            name = folded(key)
            if name in _SKIPPED:
                continue
            if name in ("inlinedata", "filedata") and isinstance(value, dict):
                total += self._media(value, level)
            elif name in ("functioncall", "functionresponse") and isinstance(value, dict):
                total += self._function(value)
            else:
                total += self._counter.content(value)
        return total

    def _function(self, value: JsonObject) -> int:
        total = self._counter.content(value.get("name"))
        total += self.json(value.get("args")) + self.json(value.get("response"))
        return total + self._parts(value.get("parts"))

    def _media(self, blob: JsonObject, level: str) -> int:
        mime_type, data = "", None
        for key, value in blob.items():
            if folded(key) == "mimetype" and isinstance(value, str):
                mime_type = value.lower()
            elif key == "data" and isinstance(value, str):
                data = value
        image, frame, page = self._rules.get(level, self._rules[""])
        if mime_type.startswith("audio/"):
            per_second = _WAV_PER_SECOND if "wav" in mime_type else _AUDIO_CHARS_PER_SECOND
            return _units(data, per_second, _NAMED_SECONDS) * AUDIO_PER_SECOND
        if mime_type.startswith("video/"):
            seconds = _units(data, _VIDEO_CHARS_PER_SECOND, _NAMED_SECONDS)
            return seconds * (frame + AUDIO_PER_SECOND)
        if mime_type.startswith("application/pdf"):
            return min(_units(data, _CHARS_PER_PAGE, _NAMED_PAGES), _MOST_PAGES) * page
        if mime_type.startswith(_TEXT_TYPES):
            return DOCUMENT if data is None else self._counter.text(_decoded(data))
        return image


def _units(data: str | None, chars: int, named: int) -> int:
    """Seconds or pages in that much base64; ``named`` of a file that is elsewhere."""
    return named if data is None else max(1, -(-len(data) // chars))


def _decoded(data: str) -> str:
    """Text in base64, either alphabet; what is none counts as it is."""
    padded = data.translate(_URL_SAFE) + "=" * (-len(data) % 4)
    try:
        return base64.b64decode(padded).decode("utf-8", "replace")
    except ValueError:
        return data


_URL_SAFE = str.maketrans("-_", "+/")
