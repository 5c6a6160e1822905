"""OpenAI: ``/v1/organization/usage/...`` and ``/v1/organization/costs``.

Source: the reference of the API, Usage. ``input_tokens`` include cached tokens. A line item of
costs is "MODEL, input" where it is a model's, and words such as "web search tool calls" where it is
not; ``amount.value`` is a number in some answers and text in others.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from extproc.core.exports import Export
from extproc.core.ledger_rows import CACHED_INPUT, INPUT, OUTPUT
from extproc.providers.exports.collect import Collector
from extproc.providers.exports.documents import an_object
from extproc.providers.exports.pages import content, results
from extproc.providers.exports.values import Place

NAME = "openai"
_COSTS = "organization.costs.result"
_USAGE = {
    "organization.usage.completions.result",
    "organization.usage.embeddings.result",
}
_CLASSES = (INPUT, CACHED_INPUT, OUTPUT)


def read_openai(data: bytes, file: str) -> Export:
    """Usage of completions and embeddings, or costs: a file holds one of them."""
    into = Collector(file, NAME)
    kinds: set[bool] = set()
    left_out: set[str] = set()
    for place, bucket, result in results(data, file, into):
        into.look(place, content(bucket, result))
        kind = place.text("object", result.get("object"))
        day = place.unix_day("start_time", bucket.get("start_time"))
        if kind == _COSTS:
            amount = an_object(result.get("amount"), place, "amount")
            cost = place.dollars(
                "amount.value", amount.get("value"), amount.get("currency"), "amount.currency"
            )
            item = place.text("line_item", result.get("line_item"))
            into.add(day=day, model=_model(item), key=_key(place, result), tokens={}, cost=cost)
        elif kind in _USAGE:
            into.add(
                day=day,
                model=place.text("model", result.get("model")),
                key=_key(place, result),
                tokens=_tokens(place, result),
                requests=place.count("num_model_requests", result.get("num_model_requests")),
            )
        else:
            left_out.add(kind or "without an object")
            continue
        kinds.add(kind == _COSTS)
    if len(kinds) > 1:
        Place(file).wrong("", "holds usage and costs: keep them in two files")
    if left_out:
        into.warnings.append(f"results that are not read: {', '.join(sorted(left_out)[:5])}")
    is_cost = True in kinds
    return into.export(
        classes=() if is_cost else _CLASSES, tells_cost=is_cost, tells_requests=not is_cost
    )


def _tokens(place: Place, result: Mapping[str, Any]) -> Mapping[str, Decimal | int]:
    if "input_tokens" not in result:
        place.wrong("input_tokens", "is missing")
    whole_input = place.count("input_tokens", result["input_tokens"])
    cached = place.count("input_cached_tokens", result.get("input_cached_tokens"))
    if cached > whole_input:
        place.wrong("input_cached_tokens", "is more than input_tokens, which include it")
    return {
        INPUT: whole_input - cached,
        CACHED_INPUT: cached,
        OUTPUT: place.count("output_tokens", result.get("output_tokens")),
    }


def _key(place: Place, result: Mapping[str, Any]) -> str:
    """The finest that the report was grouped by."""
    key = place.text("api_key_id", result.get("api_key_id"))
    return key or place.text("project_id", result.get("project_id"))


def _model(line_item: str) -> str:
    """The model of "priority | gpt-5.5, output, long context"; a line item of none is its own."""
    return line_item.rpartition("|")[2].partition(",")[0].strip()
