"""Usage objects in OpenAI's words and those of its copies, and what all such answers keep.

Chat speaks of prompt and completion, Responses of input and output; audio of
``input_token_details`` where the others write ``input_tokens_details``.
"""

from collections.abc import Hashable
from dataclasses import replace

from extproc.core.usage import Usage
from extproc.providers.json_answer import child, first_positive, is_absurd, name_of, token_number
from extproc.providers.requests import JsonObject
from extproc.providers.tally import TextTally

_INPUT_DETAILS = ("prompt_tokens_details", "input_tokens_details", "input_token_details")
_OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details", "output_token_details")

_TOTALS = frozenset({"prompt_tokens", "completion_tokens", "total_tokens"})
_ALL_TOTALS = (*sorted(_TOTALS), "input_tokens", "output_tokens")


class ReportedAnswer:
    """The common part of answers that report usage in OpenAI's words.

    ``running_output_tokens`` is the provider's last running number (vLLM's continuous usage); the
    tally then holds only the text that came after it. ``input_only`` is for formats without output.
    """

    input_only = False

    def __init__(self, tally: TextTally) -> None:
        self._tally = tally
        self._usage = Usage()
        # What other models took on the way: reported beside the usage, not inside it.
        self._others = Usage()
        self._done = False
        self.running_output_tokens = 0
        self.saw_output = False
        self.error = False
        self.response_id: str | None = None
        self.response_model: str | None = None

    @property
    def complete(self) -> bool:
        """The end was seen."""
        return self._done

    @property
    def unread(self) -> bool:
        """Nothing was produced that its bytes do not tell."""
        return False

    @property
    def usage(self) -> Usage:
        """What was reported, with placeholders removed and details clipped to their totals."""
        usage = self._usage
        input_tokens, output_tokens = usage.input_tokens, usage.output_tokens
        if self.input_only:
            if input_tokens is not None and output_tokens is None:
                output_tokens = 0
        elif self.saw_output:
            # Zero for something that was visibly produced is a placeholder, not a number.
            input_tokens, output_tokens = input_tokens or None, output_tokens or None
        whole = replace(
            usage,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_input_tokens=_clipped(usage.cached_input_tokens, input_tokens),
            cache_write_tokens=_clipped(usage.cache_write_tokens, input_tokens),
            reasoning_tokens=_clipped(usage.reasoning_tokens, output_tokens),
        )
        return whole.beside(self._others) if whole.is_known else whole

    def _take_names(self, value: JsonObject) -> None:
        self.response_id = name_of(value, "id") or self.response_id
        self.response_model = name_of(value, "model") or self.response_model

    def _add(self, stream: Hashable, text: object) -> None:
        if isinstance(text, str) and text:
            self.saw_output = True
            self._tally.add(stream, text)

    def _take_usage(self, report: JsonObject) -> None:
        usage = usage_of(report, input_only=self.input_only)
        self._usage = self._usage.merged(usage)
        if usage.output_tokens:
            # A running or final number covers all text up to and including this event.
            self.running_output_tokens = usage.output_tokens
            self._tally.restart()


def pictures_of(report: JsonObject) -> Usage:
    """The usage of what makes pictures: all output that is not said to be text is one."""
    usage = usage_of(report)
    if usage.image_output_tokens is None:
        usage = replace(usage, image_output_tokens=usage.output_tokens)
    return usage


def _clipped(part: int | None, whole: int | None) -> int | None:
    return part if part is None or whole is None else min(part, whole)


def _details(report: JsonObject, names: tuple[str, ...]) -> list[JsonObject]:
    return [details for name in names if (details := child(report, name)) is not None]


def _part(details: list[JsonObject], name: str, *others: object) -> int | None:
    return first_positive(*(found.get(name) for found in details), *others)


def usage_of(report: JsonObject, *, input_only: bool = False) -> Usage:
    """One usage object, with its totals completed from one another where one is missing."""
    prompt = first_positive(report.get("prompt_tokens"), report.get("input_tokens"))
    output = first_positive(report.get("completion_tokens"), report.get("output_tokens"))
    total = token_number(report.get("total_tokens"))
    if prompt and output and total is not None and report.keys() == _TOTALS:
        # vLLM's continuous usage comes with every chunk.
        return Usage(input_tokens=prompt, output_tokens=output)
    if is_absurd(report, _ALL_TOTALS):
        return Usage()
    input_details = _details(report, _INPUT_DETAILS)
    output_details = _details(report, _OUTPUT_DETAILS)
    # SGLang has the number beside the totals.
    reasoning = _part(output_details, "reasoning_tokens", report.get("reasoning_tokens"))
    if input_only:
        prompt = total if prompt is None else prompt
    elif total is not None:
        prompt, output = _completed(prompt, output, total)
    if output is not None and reasoning and _is_additive(prompt, output, reasoning, total):
        output += reasoning
    return Usage(
        input_tokens=prompt,
        output_tokens=output,
        cached_input_tokens=_part(
            input_details,
            "cached_tokens",
            report.get("prompt_cache_hit_tokens"),  # DeepSeek
            report.get("cached_tokens"),  # Moonshot
        ),
        cache_write_tokens=_part(input_details, "cache_write_tokens"),  # OpenRouter
        reasoning_tokens=reasoning,
        audio_input_tokens=_part(input_details, "audio_tokens"),
        audio_output_tokens=_part(output_details, "audio_tokens"),
        image_input_tokens=_part(input_details, "image_tokens"),
        image_output_tokens=_part(output_details, "image_tokens"),
        server_tool_calls=_server_tool_calls(report),
    )


def _completed(prompt: int | None, output: int | None, total: int) -> tuple[int | None, int | None]:
    """Both parts of a total, where one is missing, or is zero beside a total that has more."""
    if output is None and prompt is not None and total >= prompt:
        return prompt, total - prompt
    if prompt is None and output is not None and total >= output:
        return total - output, output
    if prompt and output == 0 and total > prompt:
        return prompt, total - prompt
    if output and prompt == 0 and total > output:
        return total - output, output
    return prompt, output


def _server_tool_calls(report: JsonObject) -> int | None:
    return first_positive(
        (child(report, "server_tool_use") or {}).get("web_search_requests"),  # OpenRouter
        report.get("num_search_queries"),  # Perplexity
        report.get("num_server_side_tools_used"),  # xAI
    )


def _is_additive(prompt: int | None, output: int, reasoning: int, total: int | None) -> bool:
    """Whether reasoning is reported beside the output instead of inside it, as xAI does.

    The total decides; without one, reasoning that is larger than the output cannot be inside.
    """
    if total is None or prompt is None:
        return reasoning > output
    return total >= prompt + output + reasoning
