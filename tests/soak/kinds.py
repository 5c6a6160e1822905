"""The kinds of requests of the soak, how often each comes, and what its books may differ by.

The kind is the label in the provider's journal. ``guess``: in these profiles tokenweir cannot know
what was used, and charges what core/outcomes.py says: the reserve, or an estimate that is at least
that; everything else has to be right to the token.
"""

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from extproc.demo.provider_script import SCRIPT_HEADER
from extproc.demo.stack import demo_key
from tests.soak.client import Request

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
IDEMPOTENCY_HEADER = "idempotency-key"
_WORDS = "please tell me where the two lamps are that I have ordered last week and what they cost"
_SLOW_SECONDS = 66
_HUGE_BYTES, _TOO_LARGE_BYTES = 1_500_000, 17_000_000
_KNOWN_TO = frozenset({"inline", "observe"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """``weight`` of 1,000 requests; ``statuses`` are the answers that are right. ``is_long`` runs
    for more than a minute. ``service``: whose it is ("any" of the many, or a fixed one)."""

    weight: float
    body: Callable[[random.Random], dict[str, Any] | bytes]
    path: str = CHAT
    script: str = ""
    statuses: frozenset[str] = frozenset({"200"})
    headers: Callable[[random.Random], dict[str, str]] = lambda _: {}
    guess: frozenset[str] = frozenset()
    profiles: frozenset[str] = frozenset({"inline", "observe", "native"})
    leave_after_bytes: int | None = None
    leave_after_seconds: float = 0.0
    is_long: bool = False
    service: str = "any"


def _text(some: random.Random) -> str:
    words = _WORDS.split()
    return " ".join(some.choices(words, k=some.randint(5, 60)))


def chat(some: random.Random, **more: Any) -> dict[str, Any]:
    """A chat of some words; now and then of a model whose name nobody has sent before."""
    name = f"gpt-4o-{some.randrange(10**9)}" if some.random() < 0.1 else "gpt-4o"
    return {"model": name, "messages": [{"role": "user", "content": _text(some)}], **more}


def stream(some: random.Random) -> dict[str, Any]:
    return chat(some, stream=True, stream_options={"include_usage": True})


def silent_stream(some: random.Random) -> dict[str, Any]:
    return chat(some, stream=True)


def _claude(some: random.Random, **more: Any) -> dict[str, Any]:
    chatted = {**chat(some), "model": "claude-sonnet-5-5", "max_tokens": 200}
    return {**chatted, **more}


def _gemini(some: random.Random) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"text": _text(some)}]}]}


def _huge(size: int) -> Callable[[random.Random], bytes]:
    text = (_WORDS + " ") * (size // (len(_WORDS) + 1))
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": text}]}
    whole = json.dumps(body).encode()
    return lambda _: whole


def _attempt(some: random.Random) -> dict[str, str]:
    return {IDEMPOTENCY_HEADER: f"key-{some.randrange(10**12)}"}


def _codes(*codes: int) -> frozenset[str]:
    return frozenset(map(str, codes))


_GEMINI = "/v1beta/models/gemini-3-flash"
_EMBEDDING = {"model": "text-embedding-3-small", "input": ["hello world", "good morning"]}
_ALWAYS = frozenset({"inline", "observe", "native"})
_NATIVE = frozenset({"native"})

KINDS: dict[str, Kind] = {
    "json": Kind(weight=330, body=chat, script="output=20"),
    "stream": Kind(weight=150, body=stream, script="output=30;chunk_delay_ms=5"),
    "no-usage-asked": Kind(weight=50, body=silent_stream, script="output=25", profiles=_KNOWN_TO),
    "pieces": Kind(weight=30, body=stream, script="output=12;chunk=7,13,2"),
    "gzip": Kind(
        weight=40,
        body=lambda some: gzip.compress(json.dumps(chat(some)).encode()),
        headers=lambda _: {"content-encoding": "gzip"},
        script="output=9",
    ),
    "messages": Kind(weight=50, path=MESSAGES, body=_claude, script="output=15"),
    "messages-stream": Kind(
        weight=50, path=MESSAGES, body=lambda some: _claude(some, stream=True), script="output=21"
    ),
    "gemini": Kind(weight=30, path=f"{_GEMINI}:generateContent", body=_gemini, script="output=14"),
    "gemini-stream": Kind(
        weight=30,
        path=f"{_GEMINI}:streamGenerateContent?alt=sse",
        body=_gemini,
        script="output=14",
    ),
    "embeddings": Kind(weight=20, path="/v1/embeddings", body=lambda _: _EMBEDDING),
    "once": Kind(weight=30, body=chat, headers=_attempt, script="output=8"),
    "provider-429": Kind(
        weight=15, body=chat, script="status=429;retry_after=1", statuses=_codes(429)
    ),
    "provider-500": Kind(weight=15, body=stream, script="status=500", statuses=_codes(500)),
    "hung-up": Kind(weight=10, body=chat, script="reset=before_headers", statuses=_codes(502, 503)),
    # An answer with a length that is not reached, or a stream without its end.
    "broken": Kind(
        weight=20,
        body=stream,
        script="output=50;break_after=4;chunk_delay_ms=20",
        # It may break before Envoy has passed anything on.
        statuses=frozenset({"lost", "502"}),
        guess=_NATIVE,
    ),
    # The provider hangs until its client has gone, so both know how far it came.
    "left-hanging": Kind(
        weight=20,
        body=stream,
        script="output=200;hang_after=3",
        leave_after_bytes=700,
        leave_after_seconds=0.5,
        statuses=frozenset({"left"}),
        guess=_NATIVE,
    ),
    # The provider goes on writing for a moment into buffers that nobody reads.
    "left-streaming": Kind(
        weight=20,
        body=stream,
        script="output=200;chunk_delay_ms=20",
        leave_after_bytes=700,
        statuses=frozenset({"left"}),
        guess=_ALWAYS,
    ),
    # Nobody knows what a provider does that was left before its answer.
    "left-before": Kind(
        weight=20,
        body=stream,
        script="output=5;delay_ms=1500",
        leave_after_bytes=0,
        leave_after_seconds=0.3,
        statuses=frozenset({"left"}),
        guess=_ALWAYS,
    ),
    # Around the decision: before Envoy has it, while it is made, after it.
    "left-at-once": Kind(
        weight=20,
        body=stream,
        script="output=3;delay_ms=50",
        leave_after_bytes=0,
        leave_after_seconds=0.003,
        statuses=frozenset({"left"}),
        guess=_ALWAYS,
    ),
    "slow": Kind(
        weight=3,
        body=stream,
        script=f"output={_SLOW_SECONDS};chunk_delay_ms=1000",
        is_long=True,
    ),
    "refused": Kind(
        weight=20, body=chat, statuses=_codes(200, 429), service="small", script="output=2"
    ),
    "in-turn": Kind(
        weight=20,
        body=stream,
        statuses=_codes(200, 429),
        service="turns",
        script="output=10;chunk_delay_ms=30",
    ),
    "unknown-service": Kind(weight=40, body=chat, statuses=_codes(401, 403), service="ghost"),
    "no-json": Kind(weight=10, body=lambda _: b'{"model": "gpt-4o", "messag', statuses=_codes(400)),
    "elsewhere": Kind(weight=10, path="/v1/elsewhere", body=chat, statuses=_codes(403)),
    "huge": Kind(weight=2, body=_huge(_HUGE_BYTES), script="output=3"),
    "too-large": Kind(
        weight=0.4, body=_huge(_TOO_LARGE_BYTES), statuses=frozenset({"413", "lost"})
    ),
}


def request_of(name: str, service: str, some: random.Random, *, profile: str) -> Request:
    """One request of a kind, with what differs from one to the next."""
    kind = KINDS[name]
    body = kind.body(some)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {
        "host": "soak.test",
        "authorization": f"Bearer {demo_key(service)}",
        "content-type": "application/json",
        SCRIPT_HEADER: f"label={profile}/{name};{kind.script}",
        "content-length": str(len(data)),
        **kind.headers(some),
    }
    lines = [f"POST {kind.path} HTTP/1.1", *(f"{key}: {value}" for key, value in headers.items())]
    return Request(
        kind=name,
        raw="\r\n".join([*lines, "", ""]).encode() + data,
        leave_after_bytes=kind.leave_after_bytes,
        leave_after_seconds=kind.leave_after_seconds,
    )
