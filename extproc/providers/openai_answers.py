"""OpenAI's answers: usage and text of chat completions, completions and embeddings."""

from typing import ClassVar

from extproc.providers.json_answer import child, children
from extproc.providers.openai_usage import ReportedAnswer
from extproc.providers.requests import JsonObject
from extproc.providers.sse import SseEvent
from extproc.providers.tally import TextTally

_MAX_TRACKED_CHOICES = 1024
_TEXT_KEYS = frozenset({"content", "reasoning_content", "reasoning", "refusal", "text"})


class OpenAiAnswer(ReportedAnswer):
    """What one answer said so far; also of the many providers that copy the format.

    ``running_output_tokens`` is the provider's last running number (vLLM's continuous usage); the
    tally then holds only the text that came after it. ``text_markers``: see ``HeldChunks``.
    """

    text_markers: ClassVar[tuple[bytes, ...] | None] = (b'"error"', b'"x_groq"', b"event:")

    def __init__(self, tally: TextTally) -> None:
        super().__init__(tally)
        self._choices: set[int] = set()
        self._finished: set[int] = set()
        self._has_media = False

    @property
    def complete(self) -> bool:
        """The end marker was seen, or every choice that began has its finish reason."""
        return self._done or (bool(self._choices) and self._choices == self._finished)

    @property
    def unread(self) -> bool:
        """Sound or pictures came, and no usage for them."""
        return self._has_media and not self._usage.is_known

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
        self._take(value, delta_key="message")

    def _take(self, value: JsonObject, *, delta_key: str) -> None:
        if value.get("error"):
            self.error = True
        if self.response_id is None:
            self._take_names(value)
        # Once per answer: the copies in choices and x_groq are the same numbers, never added.
        reports: list[object] = []
        choices = value.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._take_choice(choice, delta_key)
                if "usage" in choice:
                    reports.append(choice["usage"])
        if "x_groq" in value:
            reports.append((child(value, "x_groq") or {}).get("usage"))
        if "usage" in value:
            reports.append(value["usage"])
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
            self._add((index, "text"), choice.get("text"))
            delta = child(choice, "message") or child(choice, "delta") or {}
        for key, value in delta.items():
            if not value:  # most keys of most deltas are null or empty
                continue
            if key in _TEXT_KEYS and isinstance(value, str):
                self._add((index, key), value)
            else:
                self._take_member(index, key, value)

    def _take_member(self, index: int, key: str, value: object) -> None:
        if key in _TEXT_KEYS:
            for part in value if isinstance(value, list) else ():  # Mistral's lists of parts
                self._take_part(index, key, part)
        elif key == "tool_calls":
            for position, call in enumerate(value if isinstance(value, list) else ()):
                raw_at = call.get("index") if isinstance(call, dict) else None
                at = raw_at if isinstance(raw_at, int) else position
                self._take_function(index, at, child(call, "function"))
                self._take_function(index, at, child(call, "custom"))
        elif key == "function_call" and isinstance(value, dict):
            self._take_function(index, -1, value)
        elif key == "audio" and isinstance(value, dict):
            self._add((index, "transcript"), value.get("transcript"))
            if value.get("data"):
                self.saw_output = self._has_media = True
        elif key == "images":  # OpenRouter's, of models that answer with pictures
            self.saw_output = self._has_media = True

    def _take_part(self, index: int, key: str, part: object) -> None:
        if isinstance(part, dict):
            self._add((index, key), part.get("text"))
            for thought in children(part, "thinking"):
                self._add((index, "thinking"), thought.get("text"))

    def _take_function(self, index: int, call: int, function: JsonObject | None) -> None:
        if function is not None:
            self._add((index, call, "name"), function.get("name"))
            # A custom tool's input is text of any kind, a function's arguments are JSON.
            self._add((index, call, "arguments"), function.get("arguments"))
            self._add((index, call, "input"), function.get("input"))


class OpenAiEmbeddingsAnswer(OpenAiAnswer):
    """The same for embeddings and what else has no text: its usage has no output.

    ``output_key`` is where an answer holds what was produced.
    """

    text_markers = None
    input_only = True
    output_key = "data"

    def take_json(self, value: JsonObject) -> None:
        if value.get(self.output_key):
            self.saw_output = True
        super().take_json(value)
