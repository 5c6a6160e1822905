"""Answers of Bedrock's InvokeModel and its stream: each model's own words, told by their shape.

A stream's message is ``{"bytes": base64}`` of the model's own event. The last one has
``amazon-bedrock-invocationMetrics``: AWS's numbers, whatever the model. Without a stream these
stand in headers, which nobody sees here; then the body's usage counts, or else its text.
Shapes after AWS's user guide, "Inference request parameters and response fields".
"""

import base64
from dataclasses import replace

from extproc.core.usage import Usage
from extproc.providers.anthropic_answers import AnthropicAnswer
from extproc.providers.bedrock_answers import ConverseAnswer, whole_input
from extproc.providers.counting import compact
from extproc.providers.json_answer import (
    child,
    children,
    first_positive,
    is_absurd,
    name_of,
    parse_object,
    token_number,
)
from extproc.providers.openai_answers import OpenAiAnswer
from extproc.providers.openai_usage import ReportedAnswer
from extproc.providers.requests import JsonObject
from extproc.providers.sse import SseEvent
from extproc.providers.tally import TextTally
from extproc.providers.wire_formats import Answer

_METRICS = "amazon-bedrock-invocationMetrics"
_METRIC_TOTALS = (
    "inputTokenCount",
    "outputTokenCount",
    "cacheReadInputTokenCount",
    "cacheWriteInputTokenCount",
)
_NOVA_EVENTS = (
    "contentBlockDelta",
    "contentBlockStart",
    "contentBlockStop",
    "messageStart",
    "messageStop",
    "metadata",
)
_VECTORS = ("embedding", "embeddings", "embeddingsByType")
_PICTURES = ("images", "artifacts", "videos")


class PlainAnswer(ReportedAnswer):
    """Models with a few words of their own: Titan, Llama, Mistral's and Cohere's completions,
    Cohere's chat, Jurassic; vectors and pictures."""

    def __init__(self, tally: TextTally) -> None:
        super().__init__(tally)
        self._has_pictures = False

    @property
    def unread(self) -> bool:
        """Pictures are billed by the piece."""
        return self._has_pictures

    def take_event(self, event: SseEvent) -> None:
        if event.value is not None:
            self._take(event.value)

    def take_json(self, value: JsonObject) -> None:
        self._take(value)

    def _take(self, value: JsonObject) -> None:
        if value.get("error"):
            self.error = True
        if self.response_id is None:
            self.response_id = name_of(value, "generation_id") or name_of(value, "id")
        self._take_texts(value)
        if any(value.get(key) for key in _PICTURES):
            self.saw_output = self._has_pictures = True
        if any(value.get(key) for key in _VECTORS):
            self.saw_output = self.input_only = True
        if value.get("is_finished") is True or value.get("stop_reason"):
            self._done = True
        self._take_counts(value)

    def _take_counts(self, value: JsonObject) -> None:
        results = children(value, "results")
        outputs = [token_number(result.get("tokenCount")) for result in results]
        meta = child(value, "meta") or child(child(value, "response"), "meta")
        cohere = child(meta, "tokens") or child(meta, "billed_units") or {}
        inputs = ("inputTextTokenCount", "prompt_token_count")
        running = ("totalOutputTextTokenCount", "generation_token_count")
        if is_absurd(value, (*inputs, *running)) or is_absurd(cohere, cohere):
            return
        usage = Usage(
            input_tokens=first_positive(
                *(value.get(name) for name in inputs), cohere.get("input_tokens")
            ),
            output_tokens=first_positive(
                sum(count for count in outputs if count) or None,
                *(value.get(name) for name in running),
                cohere.get("output_tokens"),
            ),
        )
        self._usage = self._usage.merged(usage)
        if usage.output_tokens:
            self.running_output_tokens = usage.output_tokens
            self._tally.restart()

    def _take_texts(self, value: JsonObject) -> None:
        raw_index = value.get("index")
        index = raw_index if isinstance(raw_index, int) else 0
        for key in ("generation", "outputText", "text", "completion"):
            self._add((key, index), value.get(key))
        for key in ("results", "outputs", "generations", "completions"):
            for at, item in enumerate(children(value, key)):
                self._add((key, at), item.get("outputText"))
                self._add((key, at), item.get("text"))
                self._add((key, at), (child(item, "data") or {}).get("text"))
                if "relevance_score" in item or "relevanceScore" in item:
                    self.saw_output = self.input_only = True
        for at, call in enumerate(children(value, "tool_calls")):
            self._add(("call", at), compact(call))


class InvokeAnswer:
    """One answer, whichever model gave it."""

    def __init__(self, tally: TextTally) -> None:
        self._tally = tally
        self._anthropic = AnthropicAnswer(tally)
        self._openai = OpenAiAnswer(tally)
        self._nova = ConverseAnswer(tally)
        self._plain = PlainAnswer(tally)
        self._all: tuple[Answer, ...] = (self._anthropic, self._openai, self._nova, self._plain)
        self._metrics = Usage()
        self._has_metrics = False
        self._failed = False
        self._is_lost = False

    @property
    def running_output_tokens(self) -> int:
        running = [answer.running_output_tokens for answer in self._all]
        return max(*running, self._metrics.output_tokens or 0)

    @property
    def saw_output(self) -> bool:
        return any(answer.saw_output for answer in self._all)

    @property
    def error(self) -> bool:
        return self._failed or any(answer.error for answer in self._all)

    @property
    def complete(self) -> bool:
        return self._has_metrics or any(answer.complete for answer in self._all)

    @property
    def unread(self) -> bool:
        is_lost = self._is_lost and not self.usage.is_known
        return is_lost or any(answer.unread for answer in self._all)

    @property
    def response_id(self) -> str | None:
        return next((found for answer in self._all if (found := answer.response_id)), None)

    @property
    def response_model(self) -> str | None:
        return next((found for answer in self._all if (found := answer.response_model)), None)

    @property
    def usage(self) -> Usage:
        """The model's own report, and over it AWS's, field by field.

        AWS's input is without the cache, and some models' metrics do not tell the cache at all; the
        model's own total then has it, so the larger input counts.
        """
        own = Usage()
        for answer in self._all:
            own = own.merged(answer.usage)
        usage = own.merged(self._metrics)
        inputs = [own.input_tokens, self._metrics.input_tokens]
        usage = replace(usage, input_tokens=max((n for n in inputs if n is not None), default=None))
        if self._plain.input_only or not self.saw_output:
            return usage
        # Zero for something that was visibly produced is a placeholder, not a number.
        return replace(
            usage,
            input_tokens=usage.input_tokens or None,
            output_tokens=usage.output_tokens or None,
        )

    def take_event(self, event: SseEvent) -> None:
        value = event.value
        if event.name == "error":
            self._failed = True
        elif value is not None and "bytes" in value:
            value = _unpacked(value["bytes"])
            self._is_lost = self._is_lost or value is None
        if value is None:
            return
        nova = next((name for name in _NOVA_EVENTS if name in value), None)
        if nova is not None:
            inner = child(value, nova)
            self._nova.take_event(SseEvent(b"", inner or {}, name=nova))
        else:
            self._speaker_of(value).take_event(SseEvent(b"", value))
        # Last, because its number covers the text beside it.
        self._take_metrics(value)

    def take_json(self, value: JsonObject) -> None:
        self._speaker_of(value).take_json(value)
        self._take_metrics(value)

    def _speaker_of(self, value: JsonObject) -> Answer:
        report = child(value, "usage") or {}
        if "choices" in value or "prompt_tokens" in report:
            return self._openai
        if "completion" in value:  # Claude 2, though it has a type as well
            return self._plain
        if isinstance(value.get("type"), str) or "input_tokens" in report:
            return self._anthropic
        is_nova = child(value, "output") or "Output" in value or "inputTokens" in report
        return self._nova if is_nova else self._plain

    def _take_metrics(self, value: JsonObject) -> None:
        metrics = child(value, _METRICS)
        if metrics is None:
            return
        self._has_metrics = True
        if is_absurd(metrics, _METRIC_TOTALS):
            return
        read = token_number(metrics.get("cacheReadInputTokenCount"))
        written = token_number(metrics.get("cacheWriteInputTokenCount"))
        plain = token_number(metrics.get("inputTokenCount"))
        self._metrics = self._metrics.merged(
            Usage(
                input_tokens=whole_input(plain, read, written),
                output_tokens=token_number(metrics.get("outputTokenCount")),
                cached_input_tokens=read,
                cache_write_tokens=written,
            )
        )
        if self._metrics.output_tokens:
            self._tally.restart()


def _unpacked(data: object) -> JsonObject | None:
    """The model's event; None when it cannot be read."""
    if not isinstance(data, str):
        return None
    try:
        return parse_object(base64.b64decode(data))
    except ValueError:
        return None
