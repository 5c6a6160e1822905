"""One file per wire format. Their order is that in which paths with the same end are tried."""

from extproc.providers.formats.anthropic_messages import (
    ANTHROPIC_BATCHES,
    ANTHROPIC_COUNT_TOKENS,
    ANTHROPIC_MESSAGES,
)
from extproc.providers.formats.openai_chat import OPENAI_CHAT
from extproc.providers.formats.openai_completions import OPENAI_COMPLETIONS
from extproc.providers.formats.openai_embeddings import OPENAI_EMBEDDINGS
from extproc.providers.wire_formats import Route

BUILT_IN: tuple[Route, ...] = (
    OPENAI_CHAT,
    OPENAI_COMPLETIONS,
    OPENAI_EMBEDDINGS,
    ANTHROPIC_MESSAGES,
    ANTHROPIC_COUNT_TOKENS,
    ANTHROPIC_BATCHES,
)
