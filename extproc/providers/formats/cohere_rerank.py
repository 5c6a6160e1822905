"""Cohere's rerank (docs.cohere.com/reference/rerank), which vLLM serves under the same path.

It is billed by search units (a query with up to 100 documents) and reports no tokens: the estimate
of the request, as for any rerank, is what is charged.
"""

from dataclasses import replace

from extproc.providers.error_bodies import cohere_error
from extproc.providers.formats.rerank import RerankAnswer, read_rerank
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.wire_formats import Target, WireFormat

_HOSTS = (".cohere.com", ".cohere.ai")


def read_cohere_rerank(body: JsonObject, limits: ReadLimits, target: Target) -> RequestFacts:
    """``POST /v2/rerank``; ``/v1/rerank`` where the host is Cohere's."""
    return replace(read_rerank(body, limits, target), wire_format="cohere_rerank")


def _matches(target: Target) -> bool:
    return target.before == "v2" or (target.before == "v1" and target.host.endswith(_HOSTS))


COHERE_RERANK = WireFormat(
    name="cohere_rerank",
    provider="cohere",
    ends=("rerank",),
    matches=_matches,
    error_shape=cohere_error,
    read=read_cohere_rerank,
    answer=RerankAnswer,
    has_text_output=False,
)
