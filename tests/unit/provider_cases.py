"""Loads recorded requests and answers from tests/data; also ways to cut bytes."""

import base64
import gzip
import json
import random
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import brotli

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

DATA = Path(__file__).parent.parent / "data"


@dataclass(frozen=True, slots=True)
class RequestCase:
    """A request and what must come of it; ``must`` is "count", "reject_400" or "pass_through"."""

    name: str
    path: str
    headers: dict[str, str]
    body: bytes
    expect: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerCase:
    """An answer as it arrived, and its true usage (None: unknown)."""

    name: str
    wire_format: str
    status: int
    content_type: str | None
    content_encoding: str | None
    chunks: list[bytes]
    expect: dict[str, Any]

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)


def pack(plain: bytes, coding: str) -> bytes:
    """``plain`` in a content coding."""
    if coding == "deflate":
        return zlib.compress(plain)
    if coding == "br":
        packed: bytes = brotli.compress(plain, quality=5)
        return packed
    return zstd.compress(plain) if coding == "zstd" else gzip.compress(plain, mtime=0)


def request_cases() -> list[RequestCase]:
    cases = []
    for file in sorted((DATA / "requests").glob("*.json")):
        raw = json.loads(file.read_text())
        body = base64.b64decode(raw["body_b64"])
        cases.append(RequestCase(file.stem, raw["path"], raw["headers"], body, raw["expect"]))
    return cases


def answer_cases() -> list[AnswerCase]:
    cases = []
    for file in sorted((DATA / "responses").glob("*.json")):
        raw = json.loads(file.read_text())
        cases.append(
            AnswerCase(
                file.stem,
                raw["provider_format"],
                raw["http_status"],
                raw["content_type"],
                raw["content_encoding"],
                [base64.b64decode(chunk) for chunk in raw["chunks_b64"]],
                raw["expect"],
            )
        )
    return cases


def random_cuts(body: bytes, rng: random.Random, *, at_most: int = 40) -> list[bytes]:
    """``body`` in pieces, some of them empty."""
    count = rng.randint(0, at_most)
    marks = sorted(rng.randint(0, len(body)) for _ in range(count))
    edges = [0, *marks, len(body)]
    return [body[a:b] for a, b in pairwise(edges)]


def ways_to_cut(case: AnswerCase) -> Iterator[list[bytes]]:
    """As recorded, whole, whole and then empty, byte by byte, and five random ways."""
    body = case.body
    yield case.chunks
    yield [body]
    yield [body, b""]
    step = 1 if len(body) < 100_000 else 4093
    yield [body[i : i + step] for i in range(0, len(body), step)]
    rng = random.Random(case.name)
    for _ in range(5):
        yield random_cuts(body, rng)
