"""What Google counts as input: text, and media by published rules where the size is not read.

Sources, as of November 2026: the pages "Understand and count tokens" (32 a second of audio, about
300 a second of video with its sound), "Document understanding" (a page is a picture, at most 1,000
pages) and "Context caching" (4,096 tokens are the least that can be cached with current models).
Pictures, frames and pages stand in media_rules.json.
"""

import base64
import math
from collections.abc import Mapping

from extproc.providers.counting import DOCUMENT, Counter
from extproc.providers.media_rules import image_rule
from extproc.providers.media_sizes import wav_seconds
from extproc.providers.requests import JsonObject

# "Hi my name is Bob" and "Hi Bob!" are 10 tokens together on the page about counting, 8 as text.
PER_CONTENT = 1
CACHED_CONTENT = 4096
AUDIO_PER_SECOND = 32
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


class GeminiCounter(Counter):
    """Counts one request's contents in one encoding. ``resolution`` is the request's own level."""

    def __init__(self, model: str, encoding: str, *, resolution: object = None) -> None:
        super().__init__(encoding, images=image_rule("gemini", model))
        self._level = _level(resolution)

    def contents(self, value: object, kind: str = "messages") -> int:
        """A list of contents, or one: Google takes a single object for a list of one."""
        if isinstance(value, list):
            self.walk(1 + len(value))
            return sum(self.contents(item, kind) for item in value)
        media = self.media_tokens
        self._is_inside = True
        if isinstance(value, dict):
            total = PER_CONTENT + self._parts(value.get("parts"))
        else:
            total = self._content(value)
        self._is_inside = False
        return self._took(kind, total, media)

    def _parts(self, value: object) -> int:
        if isinstance(value, list):
            self.walk(1 + len(value))
            return sum(self._parts(item) for item in value)
        return self._one_part(value) if isinstance(value, dict) else self._content(value)

    def _one_part(self, part: JsonObject) -> int:
        self.walk(1 + len(part))
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
                total += self._blob(value, level)
            elif name in ("functioncall", "functionresponse") and isinstance(value, dict):
                total += self._function(value)
            else:
                total += self._content(value)
        return total

    def _function(self, value: JsonObject) -> int:
        total = self._content(value.get("name"))
        total += self._json(value.get("args")) + self._json(value.get("response"))
        return total + self._parts(value.get("parts"))

    def _blob(self, blob: JsonObject, level: str) -> int:
        mime_type, data = "", None
        for key, value in blob.items():
            if folded(key) == "mimetype" and isinstance(value, str):
                mime_type = value.lower()
            elif key == "data" and isinstance(value, str):
                data = value
        if mime_type.startswith("audio/"):
            return self.media("audio", _seconds_of_sound(data, mime_type) * AUDIO_PER_SECOND)
        if mime_type.startswith("video/"):
            seconds = _units(data, _VIDEO_CHARS_PER_SECOND, _NAMED_SECONDS)
            frame = _by_level(self.images.frame, level)
            return self.media("video", seconds * (frame + AUDIO_PER_SECOND))
        if mime_type.startswith("application/pdf"):
            pages = min(_units(data, _CHARS_PER_PAGE, _NAMED_PAGES), _MOST_PAGES)
            return self.media("documents", pages * _by_level(self.images.page, level))
        if mime_type.startswith(_TEXT_TYPES):
            return self.media("documents", DOCUMENT) if data is None else self.text(_decoded(data))
        return self.picture(data, level)


def _by_level(tokens: Mapping[str, int], level: str) -> int:
    return tokens.get(level, tokens[""])


def _seconds_of_sound(data: str | None, mime_type: str) -> int:
    """By the header of a WAVE file; else by the length."""
    seconds = None if data is None else wav_seconds(data)
    if seconds is not None:
        return max(1, math.ceil(seconds))
    per_second = _WAV_PER_SECOND if "wav" in mime_type else _AUDIO_CHARS_PER_SECOND
    return _units(data, per_second, _NAMED_SECONDS)


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
