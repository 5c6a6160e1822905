"""Counts what a provider will bill as input. Rules and their origin stand at each number."""

import json
import math

from extproc.core.errors import RequestError
from extproc.providers.media_rules import ImageRule, image_rule
from extproc.providers.media_sizes import base64_start, image_size, wav_seconds
from extproc.providers.requests import JsonObject
from extproc.providers.tokens import count_tokens

# OpenAI cookbook, "How to count tokens": 3 per message, 1 per name, 3 that prime the answer.
PER_MESSAGE, PER_NAME, PER_ANSWER = 3, 1, 3

# A document of unknown length: about two pages of Anthropic's 1,500 to 3,000 tokens a page.
DOCUMENT = 3000
# OpenAI documents 10 tokens a second of audio. Without a header that tells the seconds: 1,600 bytes
# are the least that a tenth of a second of 16-bit PCM takes, 400 bytes what it takes as MP3 with
# 32 kbit/s; base64 is 4/3 of that.
AUDIO_TOKENS_PER_SECOND = 10
AUDIO_WAV_BASE64_BYTES_PER_TOKEN, AUDIO_BASE64_BYTES_PER_TOKEN = 2133, 533

# Kinds of input whose tokens no tokenizer of ours made: no factor between tokenizers concerns them.
MEDIA_KINDS = frozenset({"images", "audio", "video", "documents", "token_ids", "sealed", "cached"})
# A real request of 16 MB has a tenth of that. Millions of empty messages take seconds to walk.
MOST_VALUES = 250_000

_IMAGES = frozenset({"image_url", "input_image", "image"})
_DOCUMENTS = frozenset({"file", "input_file", "document"})
# Never billed as text: marks, signatures, encrypted thoughts.
_UNBILLED_KEYS = frozenset({"cache_control", "signature", "tool_call_id", "tool_use_id", "id"})
_UNBILLED_PART_KEYS = _UNBILLED_KEYS | {"type"}


def compact(value: object) -> str:
    """JSON without spaces: over-estimates tools and schemas by 1.2 to 1.35, the safe side."""
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    except RecursionError:
        return ""


class Counter:
    """Counts one request's parts in one encoding.

    ``parts`` says what was counted by kind, media apart from the messages that hold them.
    ``media_tokens`` are those of ``MEDIA_KINDS``. ``images`` is the rule for pictures; without it
    OpenAI's first, 765 tokens where the size is not known.
    """

    def __init__(self, encoding: str, *, images: ImageRule | None = None) -> None:
        self._encoding = encoding
        self.images = images or image_rule("openai", "")
        self.parts: dict[str, int] = {}
        self.media_tokens = 0
        self._values_left = MOST_VALUES
        self._is_inside = False  # of a message or content: what subclasses count there has a kind

    def text(self, value: str, kind: str = "text") -> int:
        self.walk(1)
        return self._took(kind, count_tokens(value, self._encoding), self.media_tokens)

    def json(self, value: object, kind: str = "tools") -> int:
        """Tools, schemas, arguments that are objects; nothing for an absent one."""
        return self._took(kind, self._json(value), self.media_tokens) if value else 0

    def message(self, message: JsonObject) -> int:
        """One message: every value in it, and what a message itself costs."""
        if "role" in message and "type" in message:
            # A message is no part, whatever it says of itself: its text would count as a picture.
            message = {key: value for key, value in message.items() if key != "type"}
        media = self.media_tokens
        self._is_inside = True
        total = PER_MESSAGE + (PER_NAME if message.get("name") else 0) + self._content(message)
        self._is_inside = False
        return self._took(kind_of(message), total, media)

    def content(self, value: object, kind: str = "text") -> int:
        """Strings, numbers, lists of parts, objects; media by their rules.

        The depth of what is walked was bounded when the body was read. Raises RequestError for
        more values than any real request has.
        """
        if self._is_inside:
            return self._content(value)
        media = self.media_tokens
        self._is_inside = True
        total = self._content(value)
        self._is_inside = False
        return self._took(kind, total, media)

    def picture(self, source: object, detail: object = None) -> int:
        """One picture: its base64, a ``data:`` URL or an address, or an object that holds these."""
        return self.media("images", self.images.cost(_size_of(source), detail))

    def media(self, kind: str, tokens: int) -> int:
        """Tokens of one of ``MEDIA_KINDS``, wherever they stand."""
        if tokens:
            self.parts[kind] = self.parts.get(kind, 0) + tokens
            self.media_tokens += tokens
        return tokens

    def repeated(self, counted: int, times: int) -> int:
        """All that was counted so far, which is ``counted``, so many times (0: not at all)."""
        self.parts = {kind: tokens * times for kind, tokens in self.parts.items() if times}
        self.media_tokens *= times
        return counted * times

    def scaled(self, counted: int, factor_percent: int) -> int:
        """``counted`` times a factor between tokenizers, rounded up; media stay as they are."""
        return -(-(counted - self.media_tokens) * factor_percent // 100) + self.media_tokens

    def _took(self, kind: str, total: int, media_before: int) -> int:
        own = total - (self.media_tokens - media_before)
        if own and not self._is_inside:
            self.parts[kind] = self.parts.get(kind, 0) + own
        return total

    def _json(self, value: object) -> int:
        return count_tokens(compact(value), self._encoding) if value else 0

    def _content(self, value: object) -> int:
        if isinstance(value, str):
            return count_tokens(value, self._encoding)
        if isinstance(value, list):
            self.walk(1 + len(value))
            total = 0
            for item in value:
                total += self._content(item)
            return total
        if isinstance(value, dict):
            return self._part(value)
        if value is None or isinstance(value, bool):
            return 0
        return count_tokens(str(value), self._encoding)

    def walk(self, count: int) -> None:
        """Bounds the time of the walk over ``count`` more values: text is counted fast however long
        it is, values are not. Raises RequestError."""
        self._values_left -= count
        if self._values_left < 0:
            raise RequestError(
                400, "too_many_values", f"the request has more than {MOST_VALUES} values"
            )

    def _part(self, part: JsonObject) -> int:
        self.walk(1 + len(part))
        kind = part.get("type")
        if not isinstance(kind, str):  # a list would not even be hashable
            kind = None
        if kind in _IMAGES:
            return self._image(part)
        if kind in _DOCUMENTS:
            return self._document(part)
        if kind == "input_audio":
            return self.media("audio", _audio(part))
        if kind == "redacted_thinking":
            return 0
        if kind == "tool_use":
            return self._content(part.get("name")) + self._json(part.get("input"))
        # The type of a part, where it is only a marker, is not text of the prompt.
        skipped = _UNBILLED_KEYS if kind is None else _UNBILLED_PART_KEYS
        total = 0
        for key, item in part.items():
            if key not in skipped:
                total += (
                    count_tokens(item, self._encoding)
                    if isinstance(item, str)
                    else self._content(item)
                )
        return total

    def _image(self, part: JsonObject) -> int:
        source = part.get("image_url")
        if source is None:
            source = part.get("source")  # Anthropic's
        detail = source.get("detail") if isinstance(source, dict) else None
        if detail is None:
            detail = part.get("detail")
        return self.picture(source, detail)

    def _document(self, part: JsonObject) -> int:
        source = part.get("source")
        if isinstance(source, dict) and source.get("type") in ("text", "content"):
            return (
                self._content(source.get("data"))
                + self._content(source.get("content"))
                + self._content(part.get("title"))
                + self._content(part.get("context"))
            )
        return self.media("documents", DOCUMENT)


def kind_of(message: JsonObject) -> str:
    """Whether a message is a system prompt or another, by its role."""
    role = message.get("role")
    is_system = isinstance(role, str) and role.lower() in ("system", "developer")
    return "system" if is_system else "messages"


def _size_of(source: object) -> tuple[int, int] | None:
    """The size of a picture whose bytes are in the request; None of one behind an address."""
    if isinstance(source, dict):
        inner = source.get("source")
        holder = inner if isinstance(inner, dict) else source
        for name in ("data", "bytes"):
            data = holder.get(name)
            if isinstance(data, str):
                return image_size(data)
        source = holder.get("url")
    if not isinstance(source, str):
        return None
    return image_size(source, base64_start(source) or 0)


def sound_tokens(data: str, form: object) -> int:
    """Sound in base64, by the header of a WAVE file or else by its length."""
    seconds = wav_seconds(data)
    if seconds is not None:
        return math.ceil(seconds * AUDIO_TOKENS_PER_SECOND)
    is_wav = form == "wav"
    per_token = AUDIO_WAV_BASE64_BYTES_PER_TOKEN if is_wav else AUDIO_BASE64_BYTES_PER_TOKEN
    return -(-len(data) // per_token)


def _audio(part: JsonObject) -> int:
    audio = part.get("input_audio")
    data = audio.get("data") if isinstance(audio, dict) else None
    if not isinstance(audio, dict) or not isinstance(data, str):
        return 0
    return sound_tokens(data, audio.get("format"))
