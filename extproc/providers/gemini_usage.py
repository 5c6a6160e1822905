"""Google's ``usageMetadata``.

By the API reference (GenerateContentResponse.UsageMetadata, November 2026): promptTokenCount
includes cachedContentTokenCount; toolUsePromptTokenCount and thoughtsTokenCount are counted beside
prompt and candidates; the total is the sum of those four. Zeros are left out, as JSON of protocol
buffers does. Each chunk of a stream repeats the numbers so far; the last ones count.
"""

from collections.abc import Iterator

from extproc.core.usage import Usage
from extproc.providers.json_answer import children, first_positive, is_absurd, token_number
from extproc.providers.requests import JsonObject

# Google's words, and those that gateways and SDKs write in their place: what we call it.
_NAMES = {
    "promptTokenCount": "prompt",
    "prompt_token_count": "prompt",
    "cachedContentTokenCount": "cached",
    "cached_content_token_count": "cached",
    "toolUsePromptTokenCount": "tool",
    "tool_use_prompt_token_count": "tool",
    "candidatesTokenCount": "candidates",
    "candidates_token_count": "candidates",
    "responseTokenCount": "candidates",  # the Live API's word
    "thoughtsTokenCount": "thoughts",
    "thoughts_token_count": "thoughts",
    "totalTokenCount": "total",
    "total_token_count": "total",
}
# Lists of parts by modality: on which side they are.
_DETAILS = {
    "promptTokensDetails": "input",
    "prompt_tokens_details": "input",
    "promptTokenDetails": "input",  # of embeddings
    "toolUsePromptTokensDetails": "input",
    "tool_use_prompt_tokens_details": "input",
    "candidatesTokensDetails": "output",
    "candidates_tokens_details": "output",
    "responseTokensDetails": "output",
}
_COUNTED_MODALITIES = ("AUDIO", "IMAGE")


class ReportedUsage:
    """What an answer's reports say together. Later numbers overwrite, a later zero does not."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._parts: dict[tuple[str, str], int] = {}

    def take(self, report: JsonObject) -> None:
        if is_absurd(report, _NAMES):
            return
        parts: dict[tuple[str, str], int] = {}
        for key, value in report.items():
            name = _NAMES.get(key)
            if name is not None:
                number = token_number(value)
                if number or (number == 0 and name not in self._numbers):
                    self._numbers[name] = number
            elif key in _DETAILS:
                for modality, tokens in _parts_of(children(report, key)):
                    at = _DETAILS[key], modality
                    parts[at] = parts.get(at, 0) + tokens
        self._parts.update(parts)

    @property
    def total(self) -> int | None:
        return self._numbers.get("total")

    @property
    def is_thoughts_only(self) -> bool:
        """Whether nothing but thoughts is in the output that was reported."""
        output = self.totals()[1]
        has_candidates = bool(self._numbers.get("candidates"))
        return not has_candidates and (output or 0) <= self._numbers.get("thoughts", 0)

    def totals(self) -> tuple[int | None, int | None]:
        """Input and output, by these rules:

        - The four parts add up, unless the total says that thoughts are inside the candidates
          (seen with previews of 2.5: github.com/BerriAI/litellm/pull/10141) or the tools' prompt
          inside the prompt.
        - A part that is not reported is what the total leaves for it. What the total has beyond
          all parts is output: thoughts are what is left out most often, and the dearest.
        - More from the cache than the whole prompt was reported beside the prompt, if the total
          has room for both.
        """
        get = self._numbers.get
        prompt, candidates, total = get("prompt"), get("candidates"), get("total")
        tool, thoughts, cached = get("tool", 0), get("thoughts", 0), get("cached", 0)
        output = None if candidates is None else candidates + thoughts
        if prompt is None:
            rest = -1 if total is None or output is None else total - output
            return (rest if rest >= 0 else None), output
        whole = prompt + tool
        if output is None:
            left = 0 if total is None else max(0, total - whole)
            is_told = total is not None or "thoughts" in self._numbers
            return whole, max(left, thoughts) if is_told else None
        if total is None or whole + output == total:
            return whole, output
        if whole + output > total:
            assert candidates is not None
            return _reading(total, prompt=prompt, tool=tool, seen=candidates, thoughts=thoughts)
        if cached > prompt and whole + cached + output <= total:
            whole += cached
        return whole, total - whole

    def usage(self, input_tokens: int | None, output_tokens: int | None) -> Usage:
        """All of it, with details clipped to the totals."""
        thoughts = self._numbers.get("thoughts")
        return Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_input_tokens=_clipped(self._numbers.get("cached"), input_tokens),
            reasoning_tokens=_clipped(thoughts, output_tokens),
            audio_input_tokens=_clipped(self._parts.get(("input", "AUDIO")), input_tokens),
            image_input_tokens=_clipped(self._parts.get(("input", "IMAGE")), input_tokens),
            audio_output_tokens=_clipped(self._parts.get(("output", "AUDIO")), output_tokens),
            image_output_tokens=_clipped(self._parts.get(("output", "IMAGE")), output_tokens),
        )


def _reading(total: int, *, prompt: int, tool: int, seen: int, thoughts: int) -> tuple[int, int]:
    """The reading of which the sum is ``total``; that of Google's documents when none is."""
    if thoughts <= seen and prompt + tool + seen == total:
        return prompt + tool, seen
    if tool <= prompt:
        if prompt + seen + thoughts == total:
            return prompt, seen + thoughts
        if thoughts <= seen and prompt + seen == total:
            return prompt, seen
    return prompt + tool, seen + thoughts


def _parts_of(entries: list[JsonObject]) -> Iterator[tuple[str, int]]:
    for entry in entries:
        modality = entry.get("modality")
        number = first_positive(entry.get("tokenCount"), entry.get("token_count"))
        if isinstance(modality, str) and modality in _COUNTED_MODALITIES and number:
            yield modality, number


def _clipped(part: int | None, whole: int | None) -> int | None:
    return part if part is None or whole is None else min(part, whole)
