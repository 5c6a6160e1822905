"""The fake provider's own token numbers: what a request's input was, and words that are countable.

On purpose this does not use the counting code of the product: the provider is the other side, and
the tour's drift means something only if the two sides count independently of each other.
"""

import base64
import json
import lzma
import math
from collections.abc import Iterator
from functools import cache
from importlib import resources
from itertools import cycle, islice
from typing import Any

import tiktoken

# Every one of these, with its leading space, is a single token in o200k_base and in cl100k_base,
# and stays one in any sequence, because both split text before a space (a test holds this).
_SENTENCE = (
    "the river carries every small boat past quiet stone towers while morning light moves across "
    "green fields and people walk along the water talking about weather bread music and long "
    "journeys home under open sky"
)
WORDS = tuple(_SENTENCE.split())

# Published split patterns of the two vocabularies (tiktoken_ext.openai_public): an Encoding built
# from them and from the packaged ranks needs no network.
_PATTERNS = {
    "o200k_base": "|".join(
        [
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        ]
    ),
    "cl100k_base": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
        r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    ),
}
# What a picture costs here: near neither provider's rule, so a client has to settle to it.
_PICTURE_TOKENS = 321
_PICTURES = ("image_url", "input_image", "image")
_OLDER_MODELS = ("gpt-3.5", "gpt-4-", "text-embedding", "davinci", "babbage")


@cache
def vocabulary(name: str) -> tiktoken.Encoding:
    """The named vocabulary, built from the package's own data file. KeyError for another name."""
    pattern = _PATTERNS[name]
    packed = resources.files("extproc").joinpath("data", f"{name}.tiktoken.xz").read_bytes()
    ranks = {
        base64.b64decode(token): int(rank)
        for token, rank in (line.split() for line in lzma.decompress(packed).splitlines() if line)
    }
    return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def encoding_of(model: str) -> str:
    """Which vocabulary OpenAI uses for ``model``: older ones cl100k_base, all others o200k_base."""
    older = model == "gpt-4" or model.startswith(_OLDER_MODELS)
    return "cl100k_base" if older else "o200k_base"


def words(count: int, *, start: int = 0) -> Iterator[str]:
    """``count`` pieces of text, one token each, for ever the same sequence. ``start`` shifts it."""
    shifted = islice(cycle(WORDS), start % len(WORDS), None)
    return (f" {word}" for word in islice(shifted, count))


def count(text: str, encoding: str) -> int:
    """Tokens of a text by itself."""
    return len(vocabulary(encoding).encode(text, disallowed_special=()))


def content_tokens(content: Any, encoding: str) -> int:
    """A message's content: a string, or a list of parts with text or pictures."""
    if isinstance(content, str):
        return count(content, encoding)
    total = 0
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            total += count(part["text"], encoding)
        elif isinstance(part, dict) and part.get("type") in _PICTURES:
            total += _PICTURE_TOKENS
    return total


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def chat_input_tokens(body: dict[str, Any], encoding: str) -> int:
    """OpenAI's published rule: 3 a message, every value, 1 a name, 3 for the reply's start."""
    total = 3
    for message in body["messages"]:
        total += 3 + count(str(message.get("role", "")), encoding)
        total += content_tokens(message.get("content"), encoding)
        if isinstance(message.get("name"), str):
            total += 1 + count(message["name"], encoding)
    if body.get("tools"):
        total += count(_compact(body["tools"]), encoding)
    return total


def prompt_tokens(prompt: Any, encoding: str) -> int:
    """A prompt or an embeddings input: a string, token ids, or a list of either."""
    if isinstance(prompt, str):
        return count(prompt, encoding)
    if isinstance(prompt, list):
        return sum(1 if isinstance(p, int) else prompt_tokens(p, encoding) for p in prompt)
    return 0


def anthropic_input_tokens(body: dict[str, Any]) -> int:
    """A made-up rule near the real one: no vocabulary is public, so this one differs from any guess
    on purpose, and a client of ours has to settle to it."""
    counted = content_tokens(body.get("system"), "o200k_base")
    for message in body["messages"]:
        counted += content_tokens(message.get("content"), "o200k_base")
    if body.get("tools"):
        counted += count(_compact(body["tools"]), "o200k_base")
    return math.ceil(counted * 1.2) + 4 * len(body["messages"])
