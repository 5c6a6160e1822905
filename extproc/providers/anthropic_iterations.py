"""What other models took within one of Anthropic's messages, which its totals leave out.

Compaction and advisors are samplings of their own. Their tokens are billed, and stand only in
``usage.iterations`` (Anthropic's page on compaction, "Understanding usage", and the SDK's
``BetaUsage``).
"""

from extproc.core.usage import Usage
from extproc.providers.json_answer import children, token_number
from extproc.providers.requests import JsonObject

_INPUT, _READ, _WRITE = "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"
_OUTPUT = "output_tokens"
_BESIDE = ("compaction", "advisor_message")


def taken_beside(report: JsonObject) -> Usage:
    """The sum over the iterations that are not inside the report's own totals.

    A total that holds all iterations was made by a gateway that has added them already.
    """
    iterations = list(children(report, "iterations"))
    others = [one for one in iterations if one.get("type") in _BESIDE]
    if not others or _number(report, _OUTPUT) >= sum(_number(one, _OUTPUT) for one in iterations):
        return Usage()
    read = sum(_number(one, _READ) for one in others)
    written = sum(_number(one, _WRITE) for one in others)
    return Usage(
        input_tokens=sum(_number(one, _INPUT) for one in others) + read + written,
        output_tokens=sum(_number(one, _OUTPUT) for one in others),
        cached_input_tokens=read,
        cache_write_tokens=written,
    )


def _number(report: JsonObject, name: str) -> int:
    return token_number(report.get(name)) or 0
