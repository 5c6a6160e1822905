"""Paths of Anthropic, Cohere, Ollama and servers of one's own that are known and not metered.

Free are only those for which no model runs and that change nothing.
"""

from extproc.providers.error_bodies import anthropic_error, cohere_error, ollama_error
from extproc.providers.known_paths import known
from extproc.providers.wire_formats import Route

# The API before messages.
ANTHROPIC_COMPLETE = known(
    "anthropic_complete", "anthropic", "v1/complete", anywhere=True, error_shape=anthropic_error
)
# Turns text into numbers and back, without a model: Cohere, vLLM, SGLang, xAI, Moonshot; vLLM's
# render makes the prompt and does not run it.
TOKENIZE = known(
    "tokenize",
    "openai",
    *("tokenize", "detokenize", "tokenize-text", "tokenizers/estimate-token-count"),
    *("chat/completions/render", "completions/render"),
    is_free=True,
)
# Billed by the classification, or tokens in older words than we read.
COHERE_UNMETERED = known(
    "cohere_unmetered",
    "cohere",
    *(f"v1/{name}" for name in ("classify", "generate", "summarize", "embed-jobs")),
    *("v2/classify", "v1/finetuning/finetuned-models"),
    anywhere=True,
    error_shape=cohere_error,
)
# No tokens, but kept for everybody with the same key.
COHERE_DATA = known(
    "cohere_data",
    "cohere",
    *("v1/datasets", "v1/connectors", "v1/check-api-key", "v1/embed-jobs/*/cancel"),
    anywhere=True,
    error_shape=cohere_error,
)
OLLAMA_SHOW = known(
    "ollama_show",
    "ollama",
    *("api/show", "api/tags", "api/ps", "api/version"),
    is_free=True,
    anywhere=True,
    error_shape=ollama_error,
)
# Costs no tokens, but changes the server for everybody: left to the setting, too.
OLLAMA_MANAGE = known(
    "ollama_manage",
    "ollama",
    *("api/pull", "api/push", "api/create", "api/copy", "api/delete", "api/blobs/*"),
    anywhere=True,
    error_shape=ollama_error,
)
OLLAMA_WEB = known(
    "ollama_web",
    "ollama",
    *("api/web_search", "api/web_fetch"),
    anywhere=True,
    error_shape=ollama_error,
)
# vLLM's and SGLang's own words: tokens are run, in formats that we do not read.
SERVER_POOLING = known(
    "server_pooling", "openai", "pooling", "classify", "score", "encode", "v1/score"
)
SERVER_GENERATE = known(
    "server_generate",
    "openai",
    *("generate", "generate_stream", "invocations"),
)
XAI_SEARCH = known("xai_search", "xai", "documents/search")
OTHERS_UNMETERED: tuple[Route, ...] = (
    ANTHROPIC_COMPLETE,
    TOKENIZE,
    COHERE_UNMETERED,
    COHERE_DATA,
    OLLAMA_SHOW,
    OLLAMA_MANAGE,
    OLLAMA_WEB,
    SERVER_POOLING,
    SERVER_GENERATE,
    XAI_SEARCH,
)
