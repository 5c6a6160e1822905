"""Anthropic: ``/v1/organizations/usage_report/messages`` and ``/v1/organizations/cost_report``.

Source: the reference of the Admin API. Classes of input are told apart, none is a part of another.
``amount`` is a text in cents. Neither report counts requests.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from extproc.core.exports import Export
from extproc.core.ledger_rows import (
    CACHE_WRITE_1H,
    CACHE_WRITE_5M,
    CACHED_INPUT,
    CALLS,
    INPUT,
    OUTPUT,
)
from extproc.providers.exports.collect import Collector
from extproc.providers.exports.documents import an_object
from extproc.providers.exports.pages import content, results
from extproc.providers.exports.values import EXACT, Place

NAME = "anthropic"
_CENTS = Decimal("0.01")
_CLASSES = (INPUT, CACHED_INPUT, CACHE_WRITE_5M, CACHE_WRITE_1H, OUTPUT, CALLS)


def read_anthropic(data: bytes, file: str) -> Export:
    """Usage of messages, or costs: a file holds one of them."""
    into = Collector(file, NAME)
    kinds: set[bool] = set()
    for place, bucket, result in results(data, file, into):
        into.look(place, content(bucket, result))
        day = place.day("starting_at", bucket.get("starting_at"))
        is_cost = "amount" in result
        kinds.add(is_cost)
        model = place.text("model", result.get("model"))
        key = place.text("api_key_id", result.get("api_key_id"))
        key = key or place.text("workspace_id", result.get("workspace_id"))
        if not is_cost:
            into.add(day=day, model=model, key=key, tokens=_tokens(place, result))
            continue
        cents = place.dollars("amount", result["amount"], result.get("currency"), "currency")
        kind = place.text("cost_type", result.get("cost_type"))
        if kind not in ("", "tokens"):
            model = model or f"({kind})"
        into.add(day=day, model=model, key=key, tokens={}, cost=EXACT.multiply(cents, _CENTS))
    if len(kinds) > 1:
        Place(file).wrong("", "holds usage and costs: keep them in two files")
    tells_cost = True in kinds
    return into.export(
        classes=() if tells_cost else _CLASSES, tells_cost=tells_cost, tells_requests=False
    )


def _tokens(place: Place, result: Mapping[str, Any]) -> Mapping[str, Decimal | int]:
    if "uncached_input_tokens" not in result:
        place.wrong("uncached_input_tokens", "is missing")
    written = an_object(result.get("cache_creation") or {}, place, "cache_creation")
    tools = an_object(result.get("server_tool_use") or {}, place, "server_tool_use")
    fields = {
        INPUT: ("", result, "uncached_input_tokens"),
        CACHED_INPUT: ("", result, "cache_read_input_tokens"),
        CACHE_WRITE_5M: ("cache_creation.", written, "ephemeral_5m_input_tokens"),
        CACHE_WRITE_1H: ("cache_creation.", written, "ephemeral_1h_input_tokens"),
        OUTPUT: ("", result, "output_tokens"),
        CALLS: ("server_tool_use.", tools, "web_search_requests"),
    }
    return {
        token_class: place.count(prefix + name, holder.get(name))
        for token_class, (prefix, holder, name) in fields.items()
    }
