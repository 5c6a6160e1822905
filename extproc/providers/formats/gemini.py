"""Google's Gemini API (generativelanguage.googleapis.com)."""

from collections.abc import Callable
from dataclasses import replace

from extproc.providers.error_bodies import gemini_error
from extproc.providers.formats.openai_chat import OPENAI_CHAT
from extproc.providers.formats.openai_embeddings import OPENAI_EMBEDDINGS
from extproc.providers.formats.openai_images import OPENAI_IMAGES
from extproc.providers.gemini_answers import GeminiAnswer, GeminiEmbeddingsAnswer
from extproc.providers.gemini_openai import GoogleOpenAiAnswer, variant
from extproc.providers.gemini_requests import has_model, read_embeddings, read_generate
from extproc.providers.json_array import JSON_ARRAY
from extproc.providers.unread_answers import PROTOBUF_OR_SCRIPT
from extproc.providers.wire_formats import Target, WireFormat

# https://generativelanguage.googleapis.com/v1beta/openai/; other hosts have /v1/openai/.
_OPENAI_BASE = ("v1beta", "openai")


def _below(*words: str) -> Callable[[Target], bool]:
    """Paths whose last segment stands directly below these."""

    def matches(target: Target) -> bool:
        return target.lowered[-1 - len(words) : -1] == words

    return matches


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
