"""Anthropic's answers: usage and text of messages."""

from extproc.core.usage import Usage
from extproc.providers.anthropic_iterations import taken_beside
from extproc.providers.counting import compact
from extproc.providers.json_answer import child, children, is_absurd, name_of, token_number
from extproc.providers.requests import JsonObject
from extproc.providers.sse import SseEvent
from extproc.providers.tally import TextTally

_INPUT, _READ, _WRITE = "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"
_OUTPUT = "output_tokens"
# What is written to a cache, by how long it is kept there (Anthropic's page on prompt caching).
_WRITE_5M, _WRITE_1H = "ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"
_SEARCHES = "web_search_requests"
_TEXT_KEYS = ("text", "thinking", "partial_json")
_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
# A summary of what was said before, which the model writes.
_SUMMARIES = ("compaction", "compaction_delta")


class AnthropicAnswer:
    """What one answer said so far. Same attributes as OpenAiAnswer."""

    def __init__(self, tally: TextTally) -> None:
        self._tally = tally
        self._numbers: dict[str, int] = {}
        self._reasoning: int | None = None
        self._others = Usage()
        self.running_output_tokens = 0
        self.saw_output = False
        self.error = False
        self._has_sealed = False
        self.complete = False
        self.response_id: str | None = None
        self.response_model: str | None = None

    @property
    def unread(self) -> bool:
        """Thoughts came sealed, and no usage for them."""
        return self._has_sealed and not self._numbers.get(_OUTPUT)

    @property
    def usage(self) -> Usage:
        """What was reported. Anthropic counts cache reads and writes beside input_tokens, so the
        whole input is the sum of the three."""
        numbers = self._numbers
        input_tokens, output_tokens = numbers.get(_INPUT), numbers.get(_OUTPUT)
        cached, written = numbers.get(_READ), numbers.get(_WRITE)
        if input_tokens is not None:
            input_tokens += (cached or 0) + (written or 0)
        if self.saw_output:
            # Zero for something that was visibly produced is a placeholder, not a number.
            input_tokens, output_tokens = input_tokens or None, output_tokens or None
        reasoning = self._reasoning
        if reasoning is not None and output_tokens is not None:
            reasoning = min(reasoning, output_tokens)
        usage = Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_input_tokens=cached,
            cache_write_tokens=written,
            reasoning_tokens=reasoning,
            cache_write_5m_tokens=numbers.get(_WRITE_5M),
            cache_write_1h_tokens=numbers.get(_WRITE_1H),
            server_tool_calls=numbers.get(_SEARCHES),
        )
        return usage.beside(self._others) if usage.is_known else usage

    def take_event(self, event: SseEvent) -> None:
        """One event of a stream, told by its JSON "type" (the event name only repeats it)."""
        value = event.value
        if value is None:
            return
        kind = value.get("type")
        if kind == "content_block_delta":
            self._take_texts(value.get("index"), child(value, "delta"))
        elif kind == "content_block_start":
            self._take_texts(value.get("index"), child(value, "content_block"))
        elif kind == "message_start":
            # The output number here is a placeholder from before anything was produced.
            message = child(value, "message") or {}
            self._take_names(message)
            self._take_usage(child(message, "usage"), with_output=False)
        elif kind == "message_delta":
            if (child(value, "delta") or {}).get("stop_reason"):
                self.complete = True
            self._take_usage(child(value, "usage"), with_output=True)
        elif kind == "message_stop":
            self.complete = True
        elif kind == "error" or value.get("error") or event.name == "error":
            self.error = True

    def take_json(self, value: JsonObject) -> None:
        """A whole answer that is one JSON object."""
        if value.get("type") == "error" or value.get("error"):
            self.error = True
        for index, block in enumerate(children(value, "content")):
            self._take_texts(index, block)
        self._take_names(value)
        self._take_usage(child(value, "usage"), with_output=True)

    def _take_names(self, message: JsonObject) -> None:
        self.response_id, self.response_model = name_of(message, "id"), name_of(message, "model")

    def _take_texts(self, index: object, block: JsonObject | None) -> None:
        if block is None:
            return
        at = index if isinstance(index, int) else 0
        for key in _TEXT_KEYS:
            self._add(at, key, block.get(key))
        kind = block.get("type")
        if kind in _SUMMARIES:
            self._add(at, "content", block.get("content"))
        elif kind == "redacted_thinking":
            self.saw_output = self._has_sealed = True
        elif kind in _CALLS:
            self._add(at, "name", block.get("name"))
            if block.get("input"):
                self._add(at, "input", compact(block["input"]))

    def _add(self, index: int, kind: str, text: object) -> None:
        if isinstance(text, str) and text:
            self.saw_output = True
            self._tally.add((index, kind), text)

    def _take_usage(self, report: JsonObject | None, *, with_output: bool) -> None:
        if report is None or is_absurd(report, (_INPUT, _READ, _WRITE, _OUTPUT)):
            return
        names = (_INPUT, _READ, _WRITE, _OUTPUT) if with_output else (_INPUT, _READ, _WRITE)
        self._take_numbers(report, names)
        self._take_numbers(child(report, "cache_creation"), (_WRITE_5M, _WRITE_1H))
        self._take_numbers(child(report, "server_tool_use"), (_SEARCHES,))
        if report.get("iterations"):
            self._others = taken_beside(report)
        details = child(report, "output_tokens_details") or {}
        thinking = token_number(details.get("thinking_tokens"))
        self._reasoning = thinking or self._reasoning
        if with_output and (output := token_number(report.get(_OUTPUT))):
            self.running_output_tokens = output
            self._tally.restart()

    def _take_numbers(self, report: JsonObject | None, names: tuple[str, ...]) -> None:
        if report is None:
            return
        for name in names:
            number = token_number(report.get(name))
            # Reports are cumulative, never added; a later zero is a placeholder.
            if number or (number == 0 and name not in self._numbers):
                self._numbers[name] = number
