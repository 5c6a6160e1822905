"""Google's Vertex AI: Gemini, Anthropic's models and OpenAI's API in Vertex's own paths.

``/v1/projects/P/locations/L/publishers/PUBLISHER/models/MODEL:verb``, in express mode without the
project; ``endpoints/NUMBER:verb`` for tuned models; ``endpoints/openapi/...`` for OpenAI's API.
"""

from dataclasses import replace

from extproc.providers.counting import Counter
from extproc.providers.error_bodies import anthropic_error, gemini_error
from extproc.providers.fields import wrong
from extproc.providers.formats.anthropic_messages import ANTHROPIC_MESSAGES
from extproc.providers.formats.gemini import GEMINI, GEMINI_EMBEDDINGS
from extproc.providers.formats.openai_chat import OPENAI_CHAT
from extproc.providers.formats.openai_embeddings import OPENAI_EMBEDDINGS
from extproc.providers.gemini_openai import GoogleOpenAiAnswer, variant
from extproc.providers.gemini_requests import (
    embedding_facts,
    has_model,
    is_vertex,
    path_model,
    path_verb,
    publisher_of,
)
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.tokens import encoding_for
from extproc.providers.wire_formats import KnownPath, Target, WireFormat

_VERTEX = "vertex"


def _has_vertex_model(target: Target) -> bool:
    return has_model(target) and is_vertex(target)


def _is_text_embedding(target: Target) -> bool:
    # multimodalembedding is billed by the picture and the second.
    name = target.lowered[-1]
    return "embedding" in name and "multimodal" not in name and publisher_of(target) == "google"


def _is_anthropic(target: Target) -> bool:
    return publisher_of(target) == "anthropic"


# Other endpoints than openapi are the user's own deployments, mostly vLLM.
def _is_chat(target: Target) -> bool:
    return target.before == "chat" and _is_below_endpoint(target.lowered[:-2])


def _is_openai_embedding(target: Target) -> bool:
    return _is_below_endpoint(target.lowered[:-1])


def _is_below_endpoint(lead: tuple[str, ...]) -> bool:
    return len(lead) > 1 and lead[-2] == "endpoints" and "locations" in lead


def read_anthropic(body: JsonObject, limits: ReadLimits, target: Target) -> RequestFacts:
    """Anthropic's messages without a model; the verb says whether to stream, and so may the body
    (Vertex AI, "Request predictions with Claude models", November 2026)."""
    named = {**body, "model": path_model(target)}
    facts = ANTHROPIC_MESSAGES.read(named, limits, target)
    streams = facts.stream or path_verb(target) == "streamrawpredict"
    return replace(facts, wire_format="vertex_anthropic_messages", stream=streams)


def read_predict(body: JsonObject, _limits: ReadLimits, target: Target) -> RequestFacts:
    """Text embeddings, the older way: ``{"instances": [{"content": "..."}]}``."""
    model = path_model(target)
    instances = body.get("instances")
    if not isinstance(instances, list):
        raise wrong("instances", "a list of objects")
    encoding = encoding_for(model)
    counter = Counter(encoding)
    input_tokens = counter.content(instances)
    return embedding_facts("vertex_embeddings_predict", model, input_tokens, encoding, counter)


VERTEX_GEMINI = variant(GEMINI, name="vertex_gemini", provider=_VERTEX, matches=_has_vertex_model)
VERTEX_EMBEDDINGS = variant(
    GEMINI_EMBEDDINGS, name="vertex_embeddings", provider=_VERTEX, matches=_has_vertex_model
)
VERTEX_EMBEDDINGS_PREDICT = WireFormat(
    name="vertex_embeddings_predict",
    provider=_VERTEX,
    ends=(":predict",),
    matches=_is_text_embedding,
    error_shape=gemini_error,
    read=read_predict,
    answer=GEMINI_EMBEDDINGS.answer,
    framings=GEMINI_EMBEDDINGS.framings,
    has_text_output=False,
)
VERTEX_ANTHROPIC = replace(
    ANTHROPIC_MESSAGES,
    name="vertex_anthropic_messages",
    provider=_VERTEX,
    ends=(":rawpredict", ":streamrawpredict"),
    matches=_is_anthropic,
    read=read_anthropic,
)
VERTEX_OPENAI_CHAT = replace(
    variant(OPENAI_CHAT, name="vertex_openai_chat", provider=_VERTEX, matches=_is_chat),
    answer=GoogleOpenAiAnswer,
)
VERTEX_OPENAI_EMBEDDINGS = variant(
    OPENAI_EMBEDDINGS,
    name="vertex_openai_embeddings",
    provider=_VERTEX,
    matches=_is_openai_embedding,
)
# "There is no cost for using the count-tokens endpoint" (Vertex AI, "Count tokens for Claude
# models", August 2025).
VERTEX_ANTHROPIC_COUNT_TOKENS = KnownPath(
    name="vertex_anthropic_count_tokens",
    provider=_VERTEX,
    ends=("count-tokens:rawpredict",),
    matches=_is_anthropic,
    error_shape=anthropic_error,
    is_free=True,
)
# Other publishers' formats, and whatever a user deployed.
VERTEX_RAW_PREDICT = KnownPath(
    name="vertex_raw_predict",
    provider=_VERTEX,
    ends=(":rawpredict", ":streamrawpredict", ":serverstreamingpredict"),
    matches=has_model,
    error_shape=gemini_error,
    is_free=False,
)
