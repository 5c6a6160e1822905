"""Mistral's paths that OpenAI does not have: filling in the middle, agents, and what is unmetered.

Chat, embeddings, moderations and transcription are OpenAI's formats. After docs.mistral.ai/api.
"""

from dataclasses import replace

from extproc.providers.fields import wrong
from extproc.providers.formats.openai_chat import OPENAI_CHAT
from extproc.providers.formats.openai_completions import OPENAI_COMPLETIONS
from extproc.providers.gemini_openai import variant
from extproc.providers.known_paths import known
from extproc.providers.paths import has_api_prefix
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.wire_formats import Target

_MISTRAL = "mistral"


def _is_fim(target: Target) -> bool:
    return target.before == "fim" and has_api_prefix(target, words=2)


def _is_agents(target: Target) -> bool:
    return target.before == "agents" and has_api_prefix(target, words=2)


def read_agents(body: JsonObject, limits: ReadLimits, target: Target) -> RequestFacts:
    """``POST /v1/agents/completions``: a chat whose model and instructions stand with Mistral."""
    agent = body.get("agent_id")
    if not isinstance(agent, str) or not agent.strip():
        raise wrong("agent_id", "a non-empty string")
    facts = OPENAI_CHAT.read({**body, "model": agent}, limits, target)
    return replace(facts, wire_format="mistral_agents", cap_path=("max_tokens",), hidden_input=True)


# Usage comes with the last chunk unasked.
MISTRAL_FIM = replace(
    variant(OPENAI_COMPLETIONS, name="mistral_fim", provider=_MISTRAL, matches=_is_fim),
    asks_usage=False,
)
MISTRAL_AGENTS = replace(
    OPENAI_CHAT,
    name="mistral_agents",
    provider=_MISTRAL,
    matches=_is_agents,
    read=read_agents,
    asks_usage=False,
)
# By the page.
MISTRAL_OCR = known("mistral_ocr", _MISTRAL, "ocr")
MISTRAL_CLASSIFIERS = known(
    "mistral_classifiers",
    _MISTRAL,
    *("classifications", "chat/classifications", "chat/moderations"),
)
MISTRAL_BATCHES = known("mistral_batches", _MISTRAL, "batch/jobs")
MISTRAL = (MISTRAL_FIM, MISTRAL_AGENTS, MISTRAL_OCR, MISTRAL_CLASSIFIERS, MISTRAL_BATCHES)
