"""One file per wire format. Their order is that in which paths with the same end are tried."""

from extproc.providers.formats.anthropic_messages import (
    ANTHROPIC_BATCHES,
    ANTHROPIC_COUNT_TOKENS,
    ANTHROPIC_MESSAGES,
)
from extproc.providers.formats.bedrock import BEDROCK
from extproc.providers.formats.cohere_chat import COHERE_V1, COHERE_V2
from extproc.providers.formats.cohere_embed import COHERE_EMBED
from extproc.providers.formats.cohere_rerank import COHERE_RERANK
from extproc.providers.formats.gemini import (
    GEMINI,
    GEMINI_EMBEDDINGS,
    GEMINI_OPENAI_CHAT,
    GEMINI_OPENAI_EMBEDDINGS,
    GEMINI_OPENAI_IMAGES,
)
from extproc.providers.formats.gemini_unmetered import GOOGLE_UNMETERED
from extproc.providers.formats.mistral import MISTRAL
from extproc.providers.formats.ollama import OLLAMA_CHAT, OLLAMA_EMBED, OLLAMA_GENERATE
from extproc.providers.formats.openai_audio import OPENAI_SPEECH, OPENAI_TRANSCRIPTION
from extproc.providers.formats.openai_chat import OPENAI_CHAT
from extproc.providers.formats.openai_completions import OPENAI_COMPLETIONS
from extproc.providers.formats.openai_decisions import OPENAI_DECISIONS
from extproc.providers.formats.openai_embeddings import OPENAI_EMBEDDINGS
from extproc.providers.formats.openai_images import OPENAI_IMAGES
from extproc.providers.formats.openai_moderations import OPENAI_MODERATIONS
from extproc.providers.formats.openai_responses import OPENAI_RESPONSES
from extproc.providers.formats.openai_unmetered import OPENAI_UNMETERED
from extproc.providers.formats.others_unmetered import OTHERS_UNMETERED
from extproc.providers.formats.rerank import RERANK
from extproc.providers.formats.vertex import (
    VERTEX_ANTHROPIC,
    VERTEX_ANTHROPIC_COUNT_TOKENS,
    VERTEX_EMBEDDINGS,
    VERTEX_EMBEDDINGS_PREDICT,
    VERTEX_GEMINI,
    VERTEX_OPENAI_CHAT,
    VERTEX_OPENAI_EMBEDDINGS,
    VERTEX_RAW_PREDICT,
)
from extproc.providers.wire_formats import Route

# Google behind OpenAI's API: its paths are OpenAI's with another beginning, so they come first.
_GOOGLE_OPENAI: tuple[Route, ...] = (
    GEMINI_OPENAI_CHAT,
    GEMINI_OPENAI_EMBEDDINGS,
    GEMINI_OPENAI_IMAGES,
    VERTEX_OPENAI_CHAT,
    VERTEX_OPENAI_EMBEDDINGS,
)
_GOOGLE: tuple[Route, ...] = (
    VERTEX_GEMINI,
    VERTEX_EMBEDDINGS,
    VERTEX_EMBEDDINGS_PREDICT,
    VERTEX_ANTHROPIC,
    VERTEX_ANTHROPIC_COUNT_TOKENS,
    VERTEX_RAW_PREDICT,
    GEMINI,
    GEMINI_EMBEDDINGS,
    *GOOGLE_UNMETERED,
)
BUILT_IN: tuple[Route, ...] = (
    *_GOOGLE_OPENAI,
    OPENAI_CHAT,
    OPENAI_COMPLETIONS,
    OPENAI_RESPONSES,
    OPENAI_DECISIONS,
    OPENAI_EMBEDDINGS,
    OPENAI_IMAGES,
    OPENAI_TRANSCRIPTION,
    OPENAI_SPEECH,
    OPENAI_MODERATIONS,
    ANTHROPIC_MESSAGES,
    ANTHROPIC_COUNT_TOKENS,
    ANTHROPIC_BATCHES,
    COHERE_RERANK,
    RERANK,
    *_GOOGLE,
    *BEDROCK,
    COHERE_V2,
    COHERE_V1,
    COHERE_EMBED,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    OLLAMA_EMBED,
    *MISTRAL,
    *OPENAI_UNMETERED,
    *OTHERS_UNMETERED,
)
