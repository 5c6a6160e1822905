"""The two vocabularies that are shipped as package data, checked before use.

tiktoken would download them at first use, which a closed network cannot do; so its encodings are
built here from our own copies. Files and split patterns are those that OpenAI published with
tiktoken (MIT licence); the hashes are the ones that tiktoken itself expects.
"""

import base64
import hashlib
import lzma
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

import tiktoken

EncodingName = Literal["o200k_base", "cl100k_base"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vocabulary:
    sha256: str
    pattern: str
    special_tokens: dict[str, int]


_VOCABULARIES: dict[EncodingName, _Vocabulary] = {
    "o200k_base": _Vocabulary(
        sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        pattern="|".join(
            [
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                r"\p{N}{1,3}",
                r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
                r"\s*[\r\n]+",
                r"\s+(?!\S)",
                r"\s+",
            ]
        ),
        special_tokens={"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
    ),
    "cl100k_base": _Vocabulary(
        sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        pattern=(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
            r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
        ),
        special_tokens={
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
}


class VocabularyError(RuntimeError):
    """A shipped vocabulary is not the file it should be: the installation is damaged."""


def read_ranks(name: EncodingName) -> dict[bytes, int]:
    """The merge ranks of one vocabulary. Raises VocabularyError when the file's hash is wrong."""
    packed = files("extproc").joinpath("data", f"{name}.tiktoken.xz").read_bytes()
    try:
        raw = lzma.decompress(packed)
    except lzma.LZMAError as error:
        raise VocabularyError(f"vocabulary {name} cannot be unpacked") from error
    if hashlib.sha256(raw).hexdigest() != _VOCABULARIES[name].sha256:
        raise VocabularyError(f"vocabulary {name} does not have the expected hash")
    ranks: dict[bytes, int] = {}
    for line in raw.splitlines():
        token, _, rank = line.partition(b" ")
        ranks[base64.b64decode(token)] = int(rank)
    return ranks


def build_encoding(name: EncodingName) -> tiktoken.Encoding:
    """A tiktoken encoding made without network; takes about half a second."""
    vocabulary = _VOCABULARIES[name]
    return tiktoken.Encoding(
        name,
        pat_str=vocabulary.pattern,
        mergeable_ranks=read_ranks(name),
        special_tokens=vocabulary.special_tokens,
    )
