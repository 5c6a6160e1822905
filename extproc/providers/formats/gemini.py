"""Google's Gemini API (generativelanguage.googleapis.com), and its paths that are not metered."""

from collections.abc import Callable
from dataclasses import replace

from extproc.providers.error_bodies import gemini_error
from extproc.providers.formats.openai_chat import OPENAI_CHAT
from extproc.providers.formats.openai_embeddings import OPENAI_EMBEDDINGS
from extproc.providers.formats.openai_images import OPENAI_IMAGES
from extproc.providers.gemini_answers import GeminiAnswer, GeminiEmbeddingsAnswer
from extproc.providers.gemini_openai import GoogleOpenAiAnswer, variant
from extproc.providers.gemini_requests import holder_at, read_embeddings, read_generate
from extproc.providers.json_array import JSON_ARRAY
from extproc.providers.unread_answers import PROTOBUF_OR_SCRIPT
from extproc.providers.wire_formats import KnownPath, Target, WireFormat

_SERVICE = "google.ai.generativelanguage.{}.generativeservice.bidigeneratecontent"
# https://generativelanguage.googleapis.com/v1beta/openai/; other hosts have /v1/openai/.
_OPENAI_BASE = ("v1beta", "openai")


def has_model(target: Target) -> bool:
    """Whether the path ends with MODEL:verb."""
    return holder_at(target) is not None


def _below(*words: str) -> Callable[[Target], bool]:
    """Paths whose last segment stands directly below these."""

    def matches(target: Target) -> bool:
        return target.lowered[-1 - len(words) : -1] == words

    return matches


def _is_versioned(target: Target) -> bool:
    return target.before.startswith("v1")


GEMINI = WireFormat(
    name="gemini",
    provider="gemini",
    ends=(":generatecontent", ":streamgeneratecontent"),
    matches=has_model,
    error_shape=gemini_error,
    read=read_generate,
    answer=GeminiAnswer,
    framings=(JSON_ARRAY, PROTOBUF_OR_SCRIPT),
    max_event_bytes=16 * 1024 * 1024,  # pictures come in events
)
GEMINI_EMBEDDINGS = WireFormat(
    name="gemini_embeddings",
    provider="gemini",
    ends=(":embedcontent", ":batchembedcontents"),
    matches=has_model,
    error_shape=gemini_error,
    read=read_embeddings,
    answer=GeminiEmbeddingsAnswer,
    framings=(PROTOBUF_OR_SCRIPT,),
    has_text_output=False,
)
GEMINI_OPENAI_CHAT = replace(
    variant(
        OPENAI_CHAT,
        name="gemini_openai_chat",
        provider="gemini",
        matches=_below(*_OPENAI_BASE, "chat"),
    ),
    answer=GoogleOpenAiAnswer,
)
GEMINI_OPENAI_EMBEDDINGS = variant(
    OPENAI_EMBEDDINGS,
    name="gemini_openai_embeddings",
    provider="gemini",
    matches=_below(*_OPENAI_BASE),
)
GEMINI_OPENAI_IMAGES = variant(
    OPENAI_IMAGES,
    name="gemini_openai_images",
    provider="gemini",
    matches=_below(*_OPENAI_BASE, "images"),
)
# Not billed, by the pages on billing (Gemini API) and on counting (Vertex AI).
GEMINI_COUNT_TOKENS = KnownPath(
    name="gemini_count_tokens",
    provider="gemini",
    ends=(":counttokens", ":computetokens"),
    matches=has_model,
    error_shape=gemini_error,
    is_free=True,
)
# Answered in a file, hours later.
GEMINI_BATCHES = KnownPath(
    name="gemini_batches",
    provider="gemini",
    ends=(":batchgeneratecontent", ":asyncbatchembedcontent", "batchpredictionjobs"),
    error_shape=gemini_error,
    is_free=False,
)
# Filling a cache bills its tokens, and its storage by the hour.
GEMINI_CACHES = KnownPath(
    name="gemini_caches",
    provider="gemini",
    ends=("cachedcontents",),
    error_shape=gemini_error,
    is_free=False,
)
# A WebSocket, which normally never reaches admission: routes refuse upgrades.
GEMINI_LIVE = KnownPath(
    name="gemini_live",
    provider="gemini",
    ends=(
        "bidigeneratecontent",
        *(_SERVICE.format(version) for version in ("v1", "v1alpha", "v1beta")),
        _SERVICE.format("v1alpha") + "constrained",
    ),
    error_shape=gemini_error,
    is_free=False,
)
# The API that follows generateContent; in beta, with usage in words of its own.
GEMINI_INTERACTIONS = KnownPath(
    name="gemini_interactions",
    provider="gemini",
    ends=("interactions",),
    matches=_is_versioned,
    error_shape=gemini_error,
    is_free=False,
)
# Pictures and films, billed by the piece or the second.
GEMINI_PREDICT = KnownPath(
    name="gemini_predict",
    provider="gemini",
    ends=(":predict", ":predictlongrunning"),
    matches=has_model,
    error_shape=gemini_error,
    is_free=False,
)
