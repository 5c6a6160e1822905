"""OpenAI's embeddings."""

from extproc.providers.openai_answers import OpenAiEmbeddingsAnswer
from extproc.providers.openai_requests import read_embeddings
from extproc.providers.paths import has_api_prefix
from extproc.providers.wire_formats import WireFormat

OPENAI_EMBEDDINGS = WireFormat(
    name="openai_embeddings",
    provider="openai",
    ends=("embeddings",),
    matches=has_api_prefix,
    read=read_embeddings,
    answer=OpenAiEmbeddingsAnswer,
    has_text_output=False,
)
