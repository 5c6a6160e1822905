"""OpenAI's paths that are not metered: what never passes here (realtime sessions and batches), and
counting the tokens of a response before it is asked for, which is free.

Usage of the former is reported over a socket, or a day later in a file, so they follow the setting
on unmetered requests, each under a reason of its own. A WebSocket has no body and never reaches
admission at all: routes refuse upgrades.
"""

from extproc.providers.paths import has_api_prefix
from extproc.providers.wire_formats import KnownPath, Target


def _is_realtime(target: Target) -> bool:
    return target.lowered[-1] == "realtime" or "realtime" in target.lowered[-3:-1]


def _is_batches(target: Target) -> bool:
    return target.before in ("v1", "openai")


def _is_counting(target: Target) -> bool:
    return target.before == "responses" and has_api_prefix(target, words=2)


OPENAI_INPUT_TOKENS = KnownPath(
    name="openai_input_tokens",
    provider="openai",
    ends=("input_tokens",),
    matches=_is_counting,
    is_free=True,
)
OPENAI_REALTIME = KnownPath(
    name="openai_realtime",
    provider="openai",
    ends=("realtime", "sessions", "transcription_sessions", "client_secrets", "calls", "accept"),
    matches=_is_realtime,
    is_free=False,
)
OPENAI_BATCHES = KnownPath(
    name="openai_batches",
    provider="openai",
    ends=("batches",),
    matches=_is_batches,
    is_free=False,
)
