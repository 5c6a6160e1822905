"""Answers of Bedrock's Converse and ConverseStream; Nova speaks the same under InvokeModel.

Shapes after AWS's API reference (ConverseResponse, ConverseStreamOutput, TokenUsage). The input is
``inputTokens`` + ``cacheReadInputTokens`` + ``cacheWriteInputTokens``: AWS counts what is read from
or written to a cache beside the input (user guide, "Prompt caching"; the reported totals agree).
"""

from extproc.core.usage import Usage
from extproc.providers.counting import compact
from extproc.providers.json_answer import (
    child,
    children,
    first_positive,
    is_absurd,
    name_of,
    token_number,
)
from extproc.providers.openai_usage import ReportedAnswer
from extproc.providers.requests import JsonObject
from extproc.providers.sse import SseEvent
from extproc.providers.tally import TextTally

_MEDIA = ("image", "video", "audio", "document")


class ConverseAnswer(ReportedAnswer):
    """What one answer said so far. The usage of a stream stands behind its ``messageStop``."""

    def __init__(self, tally: TextTally) -> None:
        super().__init__(tally)
        self._has_unreadable = False

    @property
    def unread(self) -> bool:
        """Pictures, sound and sealed thoughts, of which no usage came."""
        return self._has_unreadable and not self._usage.is_known

    def take_event(self, event: SseEvent) -> None:
        value = event.value
        if value is None:
            return
        if event.name == "error":
            self.error = True
        elif event.name == "messageStop":
            self._done = True
        elif event.name in ("contentBlockStart", "contentBlockDelta"):
            raw_index = value.get("contentBlockIndex")
            index = raw_index if isinstance(raw_index, int) else 0
            self._take_block(index, child(value, "start") or child(value, "delta"))
        elif event.name == "metadata":
            self._take_metadata(value)

    def take_json(self, value: JsonObject) -> None:
        # A service that does not know the operation answers 200 with a type of its own.
        if "__type" in value or "__type" in (child(value, "Output") or {}):
            self.error = True
        message = child(child(value, "output"), "message") or {}
        for index, block in enumerate(children(message, "content")):
            self._take_block(index, block)
        self._take_metadata(value)

    def _take_block(self, index: int, block: JsonObject | None) -> None:
        if block is None:
            return
        self._add((index, "text"), block.get("text"))
        tool = child(block, "toolUse")
        if tool is not None:
            self._add((index, "name"), tool.get("name"))
            arguments = tool.get("input")  # text in a stream, else an object
            is_text = isinstance(arguments, str)
            self._add(
                (index, "input"), arguments if is_text or not arguments else compact(arguments)
            )
        thought = child(block, "reasoningContent")
        if thought is not None:
            inner = child(thought, "reasoningText") or thought
            self._add((index, "thought"), inner.get("text"))
            if thought.get("redactedContent"):
                self.saw_output = self._has_unreadable = True
        # Text with citations; what those quote is the prompt's.
        for part in children(child(block, "citationsContent") or {}, "content"):
            self._add((index, "text"), part.get("text"))
        if any(block.get(kind) for kind in _MEDIA):
            self.saw_output = self._has_unreadable = True

    def _take_metadata(self, value: JsonObject) -> None:
        report = child(value, "usage")
        if report is not None:
            self._take_usage(report)
        router = child(child(value, "trace"), "promptRouter")
        if router is not None:
            self.response_model = name_of(router, "invokedModelId") or self.response_model

    def _take_usage(self, report: JsonObject) -> None:
        if is_absurd(report, report):
            return
        # Under InvokeModel Nova's own words end in Count.
        read = _either(report, "cacheReadInputTokens", "cacheReadInputTokenCount")
        written = _either(report, "cacheWriteInputTokens", "cacheWriteInputTokenCount")
        by_lifetime = {
            str(part.get("ttl")): token_number(part.get("inputTokens"))
            for part in children(report, "cacheDetails")
        }
        usage = Usage(
            output_tokens=token_number(report.get("outputTokens")),
            cached_input_tokens=read,
            cache_write_tokens=written,
            cache_write_5m_tokens=by_lifetime.get("5m"),
            cache_write_1h_tokens=by_lifetime.get("1h"),
        )
        usage = self._usage.merged(usage)
        plain = token_number(report.get("inputTokens"))
        self._usage = usage.merged(Usage(input_tokens=whole_input(plain, read, written)))
        if usage.output_tokens:
            self.running_output_tokens = usage.output_tokens
            self._tally.restart()


def whole_input(plain: int | None, read: int | None, written: int | None) -> int | None:
    """The input with what was read from and written to a cache; None when it was not reported."""
    if plain is None:
        return None
    return plain + (read or 0) + (written or 0)


def _either(report: JsonObject, *names: str) -> int | None:
    return first_positive(*(report.get(name) for name in names))
