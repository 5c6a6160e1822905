"""OpenAI's moderations: free of charge, but limited in tokens by OpenAI itself, so they count.

No usage is reported by OpenAI, then the input is as we counted it; Mistral reports one.
"""

from extproc.providers.counting import Counter
from extproc.providers.fields import model_of, wrong
from extproc.providers.openai_answers import OpenAiEmbeddingsAnswer
from extproc.providers.paths import has_api_prefix
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.tokens import encoding_for
from extproc.providers.wire_formats import Target, WireFormat

# The API's own default.
_DEFAULT_MODEL = "omni-moderation-latest"


def read_moderations(body: JsonObject, limits: ReadLimits, _target: Target) -> RequestFacts:
    """``POST /v1/moderations``: a string, a list of strings, or parts with text and images."""
    del limits  # there are neither choices nor a cap
    model = model_of(body, default=_DEFAULT_MODEL)
    value = body.get("input")
    if not isinstance(value, str | list):
        raise wrong("input", "a string or a list")
    encoding = encoding_for(model)
    counter = Counter(encoding)
    return RequestFacts(
        wire_format="openai_moderations",
        model=model,
        stream=False,
        input_tokens=counter.content(value),
        output_cap_tokens=0,
        choices=1,
        encoding=encoding,
        parts=counter.parts,
        media_tokens=counter.media_tokens,
    )


class ModerationsAnswer(OpenAiEmbeddingsAnswer):
    """Verdicts, no text."""

    output_key = "results"


OPENAI_MODERATIONS = WireFormat(
    name="openai_moderations",
    provider="openai",
    ends=("moderations",),
    matches=has_api_prefix,
    read=read_moderations,
    answer=ModerationsAnswer,
    has_text_output=False,
)
