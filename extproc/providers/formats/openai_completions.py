"""OpenAI's older completions, which vLLM, SGLang and others still serve."""

from extproc.providers.openai_answers import OpenAiAnswer
from extproc.providers.openai_requests import read_completions
from extproc.providers.paths import has_api_prefix
from extproc.providers.wire_formats import WireFormat

OPENAI_COMPLETIONS = WireFormat(
    name="openai_completions",
    provider="openai",
    ends=("completions",),
    matches=has_api_prefix,
    read=read_completions,
    answer=OpenAiAnswer,
    asks_usage=True,
)
