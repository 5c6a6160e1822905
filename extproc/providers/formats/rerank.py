"""Reranking as vLLM, SGLang, Jina, Voyage, SiliconFlow and others serve it.

Each document is read together with the query: vLLM reports the tokens of all pairs, and so does
Jina ("query x documents + documents"). Where a server counts the query once, that is too much, and
the answer corrects it.
"""

from extproc.core.usage import Usage
from extproc.providers.counting import Counter
from extproc.providers.fields import model_of, wrong
from extproc.providers.json_answer import child, token_number
from extproc.providers.media_rules import image_rule_by_name
from extproc.providers.openai_answers import OpenAiEmbeddingsAnswer
from extproc.providers.paths import has_api_prefix
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.tokens import encoding_for
from extproc.providers.wire_formats import Target, WireFormat

# Servers with one model need no name.
_DEFAULT_MODEL = "rerank"


def read_rerank(body: JsonObject, limits: ReadLimits, _target: Target) -> RequestFacts:
    """``POST /v1/rerank`` (also ``/rerank``)."""
    del limits  # there are neither choices nor a cap
    model = model_of(body, default=_DEFAULT_MODEL)
    query = body.get("query")
    if not isinstance(query, str | dict | list):
        raise wrong("query", "a string")
    # Hugging Face's text-embeddings-inference calls them texts.
    name = "texts" if "documents" not in body and "texts" in body else "documents"
    documents = body.get(name)
    if not isinstance(documents, list):
        raise wrong(name, "a list of strings or objects")
    encoding = encoding_for(model)
    counter = Counter(encoding, images=image_rule_by_name(model))
    asked = counter.repeated(counter.content(query), len(documents))
    return RequestFacts(
        wire_format="rerank",
        model=model,
        stream=False,
        input_tokens=asked + counter.content(documents),
        output_cap_tokens=0,
        choices=1,
        encoding=encoding,
        parts=counter.parts,
        media_tokens=counter.media_tokens,
    )


class RerankAnswer(OpenAiEmbeddingsAnswer):
    """Scores. Usage stands in ``usage``, or in ``meta`` as Cohere has it (SiliconFlow too)."""

    output_key = "results"

    def take_json(self, value: JsonObject) -> None:
        super().take_json(value)
        meta = child(value, "meta")
        if self._usage.input_tokens is None:
            for name in ("tokens", "billed_units"):
                report = child(meta, name)
                if report is not None:
                    self._take_usage(report)
        # Cohere bills by a query with up to 100 documents, not by tokens.
        units = token_number((child(meta, "billed_units") or {}).get("search_units"))
        self._usage = self._usage.merged(Usage(server_tool_calls=units))


RERANK = WireFormat(
    name="rerank",
    provider="openai",
    ends=("rerank",),
    matches=has_api_prefix,
    read=read_rerank,
    answer=RerankAnswer,
    has_text_output=False,
)
