"""OpenAI's answers: usage and text of chat completions, completions and embeddings."""

from dataclasses import replace

from extproc.core.usage import Usage
from extproc.providers.json_answer import child, children, first_positive, name_of, token_number
from extproc.providers.requests import JsonObject
from extproc.providers.sse import SseEvent
from extproc.providers.tally import TextTally

_MAX_TRACKED_CHOICES = 1024
_TEXT_KEYS = frozenset({"content", "reasoning_content", "reasoning", "refusal", "text"})


class OpenAiAnswer:
    """What one answer said so far; also of the many providers that copy the format.

    ``running_output_tokens`` is the provider's last running number (vLLM's continuous usage); the
    tally then holds only the text that came after it.
    """

    is_embedding = False

    def __init__(self, tally: TextTally) -> None:
        self._tally = tally
        self._usage = Usage()
        self._choices: set[int] = set()
        self._finished: set[int] = set()
        self._done = False
        self.running_output_tokens = 0
        self.saw_output = False
        self.error = False
        self.unread = False
        self.response_id: str | None = None
        self.response_model: str | None = None

    @property
    def complete(self) -> bool:
        """The end marker was seen, or every choice that began has its finish reason."""
        return self._done or (bool(self._choices) and self._choices == self._finished)

    @property
    def usage(self) -> Usage:
        """What was reported, with placeholders removed and details clipped to their totals."""
        usage = self._usage
        input_tokens, output_tokens = usage.input_tokens, usage.output_tokens
        if self.is_embedding:
            if input_tokens is not None and output_tokens is None:
                output_tokens = 0
        elif self.saw_output:
            # Zero for something that was visibly produced is a placeholder, not a number.
            input_tokens, output_tokens = input_tokens or None, output_tokens or None
        return replace(
            usage,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_input_tokens=_clipped(usage.cached_input_tokens, input_tokens),
            cache_write_tokens=_clipped(usage.cache_write_tokens, input_tokens),
            reasoning_tokens=_clipped(usage.reasoning_tokens, output_tokens),
        )

    def take_event(self, event: SseEvent) -> None:
        """One event of a stream."""
        if event.done:
            self._done = True
        if event.value is not None:
            if event.name == "error":
                self.error = True
            self._take(event.value, delta_key="delta")

    def take_json(self, value: JsonObject) -> None:
        """A whole answer that is one JSON object."""
        if self.is_embedding and value.get("data"):
            self.saw_output = True
        self._take(value, delta_key="message")

    def _take(self, value: JsonObject, *, delta_key: str) -> None:
        if value.get("error"):
            self.error = True
        if self.response_id is None:
            self.response_id, self.response_model = name_of(value, "id"), name_of(value, "model")
        # Once per answer: the copies in choices and x_groq are the same numbers, never added.
        reports = []
        for choice in children(value, "choices"):
            self._take_choice(choice, delta_key)
            reports.append(choice.get("usage"))
        if "x_groq" in value:
            reports.append((child(value, "x_groq") or {}).get("usage"))
        reports.append(value.get("usage"))
        for report in reports:
            if isinstance(report, dict):
                self._take_usage(report)

    def _take_choice(self, choice: JsonObject, delta_key: str) -> None:
        raw_index = choice.get("index")
        index = raw_index if isinstance(raw_index, int) else 0
        if len(self._choices) < _MAX_TRACKED_CHOICES:
            self._choices.add(index)
        if choice.get("finish_reason") is not None and index in self._choices:
            self._finished.add(index)
        delta = choice.get(delta_key)
        if not isinstance(delta, dict):
            # Completions have the text itself; some servers use the other word.
            self._add(index, "text", choice.get("text"))
            delta = child(choice, "message") or child(choice, "delta") or {}
        for key, value in delta.items():
            if value:  # most keys of most deltas are null or empty
                self._take_member(index, key, value)

    def _take_member(self, index: int, key: str, value: object) -> None:
        if key in _TEXT_KEYS:
            if isinstance(value, list):  # Mistral's lists of parts
                for part in value:
                    self._add(index, key, part.get("text") if isinstance(part, dict) else None)
            else:
                self._add(index, key, value)
        elif key == "tool_calls":
            for position, call in enumerate(value if isinstance(value, list) else ()):
                raw_at = call.get("index") if isinstance(call, dict) else None
                at = raw_at if isinstance(raw_at, int) else position
                self._take_function(index, at, child(call, "function"))
        elif key == "function_call" and isinstance(value, dict):
            self._take_function(index, -1, value)
        elif key == "audio" and isinstance(value, dict):
            self._add(index, "transcript", value.get("transcript"))

    def _take_function(self, index: int, call: int, function: JsonObject | None) -> None:
        if function is not None:
            self._add((index, call), "name", function.get("name"))
            self._add((index, call), "arguments", function.get("arguments"))

    def _add(self, index: int | tuple[int, int], kind: str, text: object) -> None:
        if isinstance(text, str) and text:
            self.saw_output = True
            self._tally.add((index, kind), text)

    def _take_usage(self, report: JsonObject) -> None:
        usage = _usage_of(report, is_embedding=self.is_embedding)
        self._usage = self._usage.merged(usage)
        if usage.output_tokens:
            # A running or final number covers all text up to and including this event.
            self.running_output_tokens = usage.output_tokens
            self._tally.restart()


class OpenAiEmbeddingsAnswer(OpenAiAnswer):
    """The same for embeddings, whose usage has no output."""

    is_embedding = True


def _clipped(part: int | None, whole: int | None) -> int | None:
    return part if part is None or whole is None else min(part, whole)


def _usage_of(report: JsonObject, *, is_embedding: bool) -> Usage:
    """One usage object. Field names are those of OpenAI and of its copies."""
    input_details = child(report, "prompt_tokens_details") or {}
    other_input_details = child(report, "input_tokens_details") or {}
    output_details = child(report, "completion_tokens_details") or {}
    other_output_details = child(report, "output_tokens_details") or {}
    prompt = first_positive(report.get("prompt_tokens"), report.get("input_tokens"))
    output = first_positive(report.get("completion_tokens"), report.get("output_tokens"))
    total = token_number(report.get("total_tokens"))
    reasoning = first_positive(
        output_details.get("reasoning_tokens"),
        other_output_details.get("reasoning_tokens"),
        report.get("reasoning_tokens"),
    )
    if is_embedding:
        prompt = total if prompt is None else prompt
    elif total is not None:
        if output is None and prompt is not None and total >= prompt:
            output = total - prompt
        elif prompt is None and output is not None and total >= output:
            prompt = total - output
    if output is not None and reasoning and _is_additive(prompt, output, reasoning, total):
        output += reasoning
    return Usage(
        input_tokens=prompt,
        output_tokens=output,
        cached_input_tokens=first_positive(
            input_details.get("cached_tokens"),
            other_input_details.get("cached_tokens"),
            report.get("prompt_cache_hit_tokens"),  # DeepSeek
            report.get("cached_tokens"),  # Moonshot
        ),
        cache_write_tokens=first_positive(
            input_details.get("cache_write_tokens"),  # OpenRouter
            other_input_details.get("cache_write_tokens"),
        ),
        reasoning_tokens=reasoning,
    )


def _is_additive(prompt: int | None, output: int, reasoning: int, total: int | None) -> bool:
    """Whether reasoning is reported beside the output instead of inside it, as xAI does.

    The total decides; without one, reasoning that is larger than the output cannot be inside.
    """
    if total is None or prompt is None:
        return reasoning > output
    return total >= prompt + output + reasoning
