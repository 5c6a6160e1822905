"""Google behind OpenAI's API, and how a format is made for another provider's paths."""

from collections.abc import Callable
from dataclasses import replace

from extproc.providers.json_answer import token_number
from extproc.providers.openai_answers import OpenAiAnswer
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.wire_formats import Target, WireFormat


class GoogleOpenAiAnswer(OpenAiAnswer):
    """Google leaves thoughts out of ``completion_tokens``; only the total has them.

    Seen with 758 + 102 of 1,725 (discuss.ai.google.dev/t/98760, August 2025). They are billed as
    output.
    """

    text_markers = None

    def _take_usage(self, report: JsonObject) -> None:
        super()._take_usage(_with_thoughts(report))


def _with_thoughts(report: JsonObject) -> JsonObject:
    prompt, output, total = (
        token_number(report.get(name))
        for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    )
    if prompt is None or output is None or total is None or total <= prompt + output:
        return report
    thoughts = {"reasoning_tokens": total - prompt - output}
    return report | {"completion_tokens": total - prompt, "output_tokens_details": thoughts}


def variant(
    spoken: WireFormat, *, name: str, provider: str, matches: Callable[[Target], bool]
) -> WireFormat:
    """``spoken`` as another provider serves it, under a name of its own."""

    def read(body: JsonObject, limits: ReadLimits, target: Target) -> RequestFacts:
        return replace(spoken.read(body, limits, target), wire_format=name)

    return replace(spoken, name=name, provider=provider, matches=matches, read=read)
