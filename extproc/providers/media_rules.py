"""What a picture costs at a provider, by rules that stand with date and source in a data file.

``media_rules.json``: for each provider the first rule whose pattern is found in the model's name.
Numbers that a provider changes are changed there, not here.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

Size = tuple[int, int]

# OpenAI's tiles: the square that a picture is fitted into, its short side after that, a tile.
_FIT, _SHORT_SIDE, _TILE = 2048, 768, 512
# Whose pictures a model's name tells, where another's API is spoken (gateways, OpenRouter).
_BY_NAME = (
    (re.compile("claude"), "anthropic"),
    (re.compile("gemini|gemma"), "gemini"),
    (re.compile("amazon.?nova"), "bedrock"),
    (re.compile("command-a|aya-vision"), "cohere"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRule:
    """How one family of models bills pictures. Sides in pixels; see the notes in the data file.

    ``kind`` tells which fields count: tiles (``base``, ``tile``), patches (``side``, ``edge``,
    ``most``, ``percent``, ``base``), crops (``small``, ``least``, ``most_side``, ``tokens``), grid
    (``small``, ``side``, ``fit``, ``most``, ``tokens``), area (``edge``, ``side``, ``most``), flat.
    ``levels`` are flat numbers by detail or resolution, whatever the kind; ``frame`` and ``page``
    those of a second of film and of a page, "" for no level.
    """

    kind: Literal["tiles", "patches", "crops", "grid", "area", "flat"]
    base: int = 0
    tile: int = 0
    side: int = 1
    edge: int = 0
    most: int = 0
    most_high: int = 0
    most_original: int = 0
    percent: int = 100
    small: int = 0
    least: int = 1
    most_side: int = 1
    tokens: int = 0
    fit: Size = (1, 1)
    levels: Mapping[str, int] = field(default_factory=dict)
    frame: Mapping[str, int] = field(default_factory=dict)
    page: Mapping[str, int] = field(default_factory=dict)
    when_unknown: Size | None = None  # None: as many as a picture can have

    def cost(self, size: Size | None, detail: object = None) -> int:
        """Tokens of one picture; ``detail`` is low, high, auto, original, or Google's level."""
        if isinstance(detail, str) and detail in self.levels:
            return self.levels[detail]
        known = size or self.when_unknown
        match self.kind:
            case "flat":
                return self.tokens
            case "tiles":
                tiles = 0 if detail == "low" else _tiles(known or (_FIT, _FIT))
                return self.base + self.tile * tiles
            case "crops":
                return self.tokens * self._crops(known or (self.most_side, self.most_side))
            case "grid":
                return self.tokens * self._grid(known, detail)
            case "area":
                return self.most if known is None else self._area(known)
        most = self.most
        if detail == "high":
            most = self.most_high or most
        elif detail == "original":
            most = self.most_original or most
        patches = most if known is None else _patches(known, self.side, self.edge, most)
        return self.base + -(-patches * self.percent // 100)

    def _crops(self, size: Size) -> int:
        width, height = size
        if max(width, height) <= self.small:
            return 1
        side = min(max(int(min(width, height) / 1.5), self.least), self.most_side)
        return -(-width // side) * -(-height // side)

    def _grid(self, size: Size | None, detail: object) -> int:
        """Tiles, and one more of the whole; that one alone for a small picture."""
        if size is None:
            return self.most + 1
        long, short = float(max(size)), float(min(size))
        if detail != "high" and long <= self.small:
            return 1
        if long * short > self.fit[0] * self.fit[1]:
            scale = min(max(self.fit) / long, min(self.fit) / short)
            long, short = long * scale, short * scale
        tiles = math.ceil(long / self.side - 1e-6) * math.ceil(short / self.side - 1e-6)
        return 1 + min(self.most, max(1, tiles))

    def _area(self, size: Size) -> int:
        """A token for ``side`` pixels of a picture whose long side is at least ``edge``."""
        width, height = size
        scale = max(1.0, self.edge / max(size))
        return min(self.most, math.ceil(width * height * scale * scale / self.side))


def _tiles(size: Size) -> int:
    width, height = size
    scale = min(1.0, _FIT / max(width, height))
    scale = min(scale, _SHORT_SIDE / min(width, height))
    # A hair of room: 768 must not become 768.0000001 and two tiles.
    across, down = (math.ceil(side * scale / _TILE - 1e-6) for side in (width, height))
    return max(1, across) * max(1, down)


def _patches(size: Size, side: int, edge: int, most: int) -> int:
    """Patches that cover the picture after it was made small enough, after OpenAI's example."""
    width, height = float(size[0]), float(size[1])
    if edge and max(width, height) > edge:
        scale = edge / max(width, height)
        width, height = width * scale, height * scale
    across, down = math.ceil(width / side - 1e-6), math.ceil(height / side - 1e-6)
    if across * down <= most:
        return across * down
    scale = math.sqrt(most * side * side / (width * height))
    across_exact, down_exact = width * scale / side, height * scale / side
    scale = min(
        math.floor(exact) / exact if exact >= 1 else 1.0 for exact in (across_exact, down_exact)
    )
    across, down = math.ceil(across_exact * scale - 1e-6), math.ceil(down_exact * scale - 1e-6)
    return min(most, max(1, across) * max(1, down))


@lru_cache(maxsize=1)
def _rules() -> dict[str, list[tuple[re.Pattern[str], ImageRule]]]:
    raw: dict[str, Any] = json.loads(
        files("extproc.providers").joinpath("media_rules.json").read_text("utf-8")
    )
    found: dict[str, list[tuple[re.Pattern[str], ImageRule]]] = {}
    for provider, table in raw.items():
        unknown = table["when_unknown"]
        size = None if unknown == "most" else (int(unknown[0]), int(unknown[1]))
        found[provider] = [
            (re.compile(rule.pop("models")), ImageRule(**rule, when_unknown=size))
            for rule in table["rules"]
        ]
    return found


@lru_cache(maxsize=512)
def image_rule(provider: str, model: str) -> ImageRule:
    """The rule of a model's name; ``provider`` is a name in the data file."""
    name = model.lower()
    return next(rule for pattern, rule in _rules()[provider] if pattern.search(name))


@lru_cache(maxsize=512)
def image_rule_by_name(model: str, *, default: str = "openai") -> ImageRule:
    """The rule of whose model the name says it is, whichever API is spoken."""
    name = model.lower()
    provider = next((found for mark, found in _BY_NAME if mark.search(name)), default)
    return image_rule(provider, model)
