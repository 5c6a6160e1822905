"""OpenAI's images: generations, edits, variations.

Sizes and qualities after OpenAI's image generation guide; tokens of an image as its calculator and
table gave them in 2026 (1024 x 1024: 272, 1,056, 4,160 for gpt-image-1; 7,024 in high quality for
gpt-image-2; each partial image 100). They are reserves only: the answer reports what it took.
"""

import re

from extproc.core.usage import Usage
from extproc.providers.counting import Counter
from extproc.providers.fields import flag, model_of, positive_int, wrong
from extproc.providers.json_answer import child, children
from extproc.providers.multipart import FormFile
from extproc.providers.openai_usage import ReportedAnswer, usage_of
from extproc.providers.paths import has_api_prefix
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.sse import SseEvent
from extproc.providers.tally import TextTally
from extproc.providers.tokens import encoding_for
from extproc.providers.wire_formats import Target, WireFormat

_DEFAULT_MODEL = "gpt-image-1"
_BY_QUALITY = {"low": 450, "medium": 1800}
_BEST_QUALITY = 7100
_PARTIAL_IMAGE = 100
_MOST_PARTIAL_IMAGES = 3
# Larger sizes cost more, though not in proportion: 12,329 for 3584 x 2048 in high quality.
_USUAL_PIXELS = 1536 * 1024
# A picture that goes in: tiles of at most 600 tokens, and 6,240 more where it is read faithfully,
# which the later models always do.
_PICTURE, _FAITHFUL = 600, 6240
_SIZE = re.compile(r"(\d{2,5})x(\d{2,5})")
_NUMBER = re.compile(r"\d{1,4}")


def read_images(body: JsonObject, limits: ReadLimits, _target: Target) -> RequestFacts:
    """``POST /v1/images/generations``, ``/edits``, ``/variations``."""
    model = model_of(body, default=_DEFAULT_MODEL)
    fields = {name: _typed(body.get(name)) for name in ("n", "stream", "partial_images")}
    choices = positive_int(fields, "n", at_most=limits.max_choices) or 1
    prompt = body.get("prompt")
    if prompt is not None and not isinstance(prompt, str):
        raise wrong("prompt", "a string")
    encoding = encoding_for(model)
    counter = Counter(encoding)
    # DALL-E is billed by the image; it has no tokens.
    per_image = 0 if model.startswith("dall-e") else _tokens_of_an_image(body, fields)
    return RequestFacts(
        wire_format="openai_images",
        model=model,
        stream=flag(fields, "stream"),
        input_tokens=counter.text(prompt or "") + counter.media("images", _pictures(body, model)),
        output_cap_tokens=choices * per_image,
        choices=choices,
        encoding=encoding,
        reserves_cap=True,
        parts=counter.parts,
        media_tokens=counter.media_tokens,
    )


def _typed(value: object) -> object:
    """A form has texts only."""
    if not isinstance(value, str):
        return value
    if _NUMBER.fullmatch(value):
        return int(value)
    return {"true": True, "false": False}.get(value.lower(), value)


def _tokens_of_an_image(body: JsonObject, fields: JsonObject) -> int:
    quality, size = body.get("quality"), body.get("size")
    tokens = _BY_QUALITY.get(quality, _BEST_QUALITY) if isinstance(quality, str) else _BEST_QUALITY
    measured = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if measured and int(measured[1]) * int(measured[2]) > _USUAL_PIXELS:
        tokens *= 2
    partial = fields["partial_images"]
    if partial is not None:
        if type(partial) is not int or not 0 <= partial <= _MOST_PARTIAL_IMAGES:
            raise wrong("partial_images", f"an integer between 0 and {_MOST_PARTIAL_IMAGES}")
        tokens += partial * _PARTIAL_IMAGE
    return tokens


def _pictures(body: JsonObject, model: str) -> int:
    count = 0
    for name in ("image", "images", "mask"):
        value = body.get(name)
        if isinstance(value, list):
            count += len(value)
        elif isinstance(value, FormFile | str | dict):
            count += 1
    is_plain = model.startswith("gpt-image-1") and body.get("input_fidelity") != "high"
    return count * (_PICTURE if is_plain else _PICTURE + _FAITHFUL)


class ImagesAnswer(ReportedAnswer):
    """Pictures: usage comes behind them, or never (DALL-E, other servers)."""

    def __init__(self, tally: TextTally) -> None:
        super().__init__(tally)
        self._has_pictures = False

    @property
    def unread(self) -> bool:
        return self._has_pictures and not self._usage.is_known

    def take_event(self, event: SseEvent) -> None:
        value = event.value
        if value is None:
            self._done = self._done or event.done
            return
        kind = value.get("type")
        if isinstance(kind, str) and kind.startswith("image_"):
            self.saw_output = self._has_pictures = True
            self._done = self._done or kind.endswith(".completed")
        elif kind == "error" or event.name == "error" or value.get("error"):
            self.error = True
        self._take_report(value)

    def take_json(self, value: JsonObject) -> None:
        if value.get("error"):
            self.error = True
        if children(value, "data"):
            self.saw_output = self._has_pictures = True
        self._take_report(value)

    def _take_report(self, value: JsonObject) -> None:
        report = child(value, "usage")
        if report is not None:
            self._take_usage(report)
            if self._usage.image_output_tokens is None:
                produced = self._usage.output_tokens
                self._usage = self._usage.merged(Usage(image_output_tokens=produced))
        svg = child(value, "svg_usage")
        if svg is not None:  # of the model that writes the picture as text
            self._others = usage_of(svg)


def _matches(target: Target) -> bool:
    return target.before == "images" and has_api_prefix(target, words=2)


OPENAI_IMAGES = WireFormat(
    name="openai_images",
    provider="openai",
    ends=("generations", "edits", "variations"),
    matches=_matches,
    read=read_images,
    answer=ImagesAnswer,
    has_text_output=False,
    takes_forms=True,
    # One event holds a whole picture in base64, and the usage stands behind it.
    max_event_bytes=16 * 1024 * 1024,
)
