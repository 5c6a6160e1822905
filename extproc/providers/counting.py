"""Counts what a provider will bill as input. Rules and their origin stand at each number."""

import json

from extproc.providers.requests import JsonObject
from extproc.providers.tokens import count_tokens

# OpenAI cookbook, "How to count tokens": 3 per message, 1 per name, 3 that prime the answer.
PER_MESSAGE, PER_NAME, PER_ANSWER = 3, 1, 3

# Fallbacks where the size of a picture would have to be read from its bytes. OpenAI's tile rule
# (vision guide, 2026): 85 for low detail, 85 + 170 x 4 tiles for 1024 x 1024 in high detail.
OPENAI_IMAGE_LOW, OPENAI_IMAGE = 85, 765
# Anthropic's vision page: at most 1,568 tokens a picture before model 4.7.
ANTHROPIC_IMAGE = 1568
# A document of unknown length: about two pages of Anthropic's 1,500 to 3,000 tokens a page.
DOCUMENT = 3000
# OpenAI documents 10 tokens a second of audio. 1,600 bytes are the least that a tenth of a second
# of 16-bit PCM takes, 400 bytes what it takes as MP3 with 32 kbit/s; base64 is 4/3 of that.
AUDIO_WAV_BASE64_BYTES_PER_TOKEN, AUDIO_BASE64_BYTES_PER_TOKEN = 2133, 533

_IMAGES = frozenset({"image_url", "input_image", "image"})
_DOCUMENTS = frozenset({"file", "input_file", "document"})
# Never billed as text: marks, signatures, encrypted thoughts.
_UNBILLED_KEYS = frozenset({"cache_control", "signature", "tool_call_id", "tool_use_id", "id"})


def compact(value: object) -> str:
    """JSON without spaces: over-estimates tools and schemas by 1.2 to 1.35, the safe side."""
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    except RecursionError:
        return ""


class Counter:
    """Counts one request's parts in one encoding."""

    def __init__(self, encoding: str, *, image_tokens: int) -> None:
        self._encoding = encoding
        self._image_tokens = image_tokens

    def text(self, value: str) -> int:
        return count_tokens(value, self._encoding)

    def json(self, value: object) -> int:
        """Tools, schemas, arguments that are objects; nothing for an absent one."""
        return self.text(compact(value)) if value else 0

    def message(self, message: JsonObject) -> int:
        """One message: every value in it, and what a message itself costs."""
        total = PER_MESSAGE + (PER_NAME if message.get("name") else 0)
        return total + self.content(message)

    def content(self, value: object) -> int:
        """Strings, numbers, lists of parts, objects; media by their flat fallbacks.

        The depth of what is walked was bounded when the body was read.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return sum(self.content(item) for item in value)
        if isinstance(value, dict):
            return self._part(value)
        return 0 if value is None or isinstance(value, bool) else self.text(str(value))

    def _part(self, part: JsonObject) -> int:
        kind = part.get("type")
        if kind in _IMAGES:
            return self._image(part)
        if kind in _DOCUMENTS:
            return self._document(part)
        if kind == "input_audio":
            return _audio(part)
        if kind == "redacted_thinking":
            return 0
        if kind == "tool_use":
            return self.content(part.get("name")) + self.json(part.get("input"))
        # The type of a part, where it is only a marker, is not text of the prompt.
        skipped = _UNBILLED_KEYS | {"type"} if isinstance(kind, str) else _UNBILLED_KEYS
        return sum(self.content(item) for key, item in part.items() if key not in skipped)

    def _image(self, part: JsonObject) -> int:
        source = part.get("image_url")
        detail = source.get("detail") if isinstance(source, dict) else part.get("detail")
        return OPENAI_IMAGE_LOW if detail == "low" else self._image_tokens

    def _document(self, part: JsonObject) -> int:
        source = part.get("source")
        if isinstance(source, dict) and source.get("type") in ("text", "content"):
            return (
                self.content(source.get("data"))
                + self.content(source.get("content"))
                + self.content(part.get("title"))
                + self.content(part.get("context"))
            )
        return DOCUMENT


def _audio(part: JsonObject) -> int:
    audio = part.get("input_audio")
    if not isinstance(audio, dict):
        return 0
    data = audio.get("data")
    size = len(data) if isinstance(data, str) else 0
    per_token = (
        AUDIO_WAV_BASE64_BYTES_PER_TOKEN
        if audio.get("format") == "wav"
        else AUDIO_BASE64_BYTES_PER_TOKEN
    )
    return -(-size // per_token)
