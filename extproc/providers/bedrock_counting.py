"""Counts the content blocks of Bedrock's Converse, told by their one key instead of a type.

Bodies of InvokeModel are counted the same way; blocks with a type are Anthropic's or OpenAI's.
"""

from extproc.providers.counting import DOCUMENT, Counter, sound_tokens
from extproc.providers.json_answer import child
from extproc.providers.media_rules import image_rule_by_name
from extproc.providers.requests import JsonObject

# Nova's user guide, "Video understanding": 288 tokens a second, one frame each. A second is taken
# as 1 Mbit in base64, and video in S3 as a minute; guesses that the answer corrects.
VIDEO_TOKENS_PER_SECOND, VIDEO_BASE64_BYTES_PER_SECOND = 288, 166_667
VIDEO_BY_ADDRESS = 60 * VIDEO_TOKENS_PER_SECOND
# Sound in S3, as a minute of ten tokens a second.
AUDIO_BY_ADDRESS = 600
# As for the sealed thoughts of other providers: base64 makes four characters of three bytes.
SEALED_CHARS_PER_TOKEN = 6

_PICTURES = frozenset(
    {"image", "images", "inputImage", "maskImage", "conditionImage", "init_image", "mask"}
)
# Marks, addresses and signatures; the latter come back with thoughts and are not billed.
_MARKS = frozenset(
    {"cachePoint", "toolUseId", "status", "format", "signature", "s3Location", "qualifiers", "id"}
)


class BlockCounter(Counter):
    """Counts one request's blocks in one encoding."""

    def __init__(self, model: str, encoding: str) -> None:
        super().__init__(encoding, images=image_rule_by_name(model, default="bedrock"))

    def body(self, members: JsonObject) -> int:
        """Text, pictures and the like that stand at the top of a body."""
        return sum(self._member(key, value) for key, value in members.items())

    def _part(self, part: JsonObject) -> int:
        if isinstance(part.get("type"), str):
            return super()._part(part)
        self.walk(1 + len(part))
        return sum(self._member(key, value) for key, value in part.items())

    def _member(self, key: str, value: object) -> int:
        if not value or key in _MARKS:
            return 0
        if key in _PICTURES:
            pictures = value if isinstance(value, list) else [value]
            return sum(self.picture(picture) for picture in pictures)
        if key in ("json", "input"):
            return self.content(value) if isinstance(value, str) else self.json(value, "text")
        if key in ("redactedContent", "bytes"):
            chars = len(value) if isinstance(value, str) else 0
            return self.media("sealed", -(-chars // SEALED_CHARS_PER_TOKEN))
        if isinstance(value, dict):
            if key == "document":
                return self._file(value)
            if key == "video":
                return self.media("video", _video(value))
            if key == "audio":
                return self.media("audio", _sound(value))
        return self.content(value, "system" if key == "system" else "text")

    def _file(self, block: JsonObject) -> int:
        source = child(block, "source") or {}
        named = self.content(block.get("name")) + self.content(block.get("context"))
        if "text" in source or "content" in source:
            return named + self.content(source.get("text")) + self.content(source.get("content"))
        return named + self.media("documents", DOCUMENT)


def _video(block: JsonObject) -> int:
    data = _bytes(block)
    if data is None:
        return VIDEO_BY_ADDRESS
    return -(-len(data) * VIDEO_TOKENS_PER_SECOND // VIDEO_BASE64_BYTES_PER_SECOND)


def _sound(block: JsonObject) -> int:
    data = _bytes(block)
    return AUDIO_BY_ADDRESS if data is None else sound_tokens(data, block.get("format"))


def _bytes(block: JsonObject) -> str | None:
    """The base64 of a block; None when it has an address instead."""
    data = (child(block, "source") or {}).get("bytes")
    return data if isinstance(data, str) else None
