"""Cohere's answers: usage and text of chat (v2, v1) and embed.

Two numbers are reported. ``billed_units`` is what is charged here, ``tokens`` stands in only where
the other has none (or a zero): "the billed input and output tokens are the tokens that you're
actually billed for", the others include those that "Cohere adds under the hood", and "you are not
charged for them" (docs.cohere.com, How Does Cohere's Pricing Work). The two are never added.
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

# v1 and v2, "Chat": an answer that ended with one of these failed.
_FAILED = ("ERROR", "TIMEOUT")
_V1_TOOL_KEYS = ("name", "parameters", "text")


def units_usage(report: JsonObject | None) -> Usage:
    """What ``usage`` (v2 chat) or ``meta`` (all others) reports.

    Tokens of pictures are billed beside those of text, at a price of their own, so both are input
    (docs.cohere.com/reference/embed: "the number of billed image tokens"). Search units, which
    rerank is billed by, are calls that the provider ran. ``cached_tokens`` are part of the input.
    """
    if report is None:
        return Usage()
    billed, tokens = child(report, "billed_units") or {}, child(report, "tokens") or {}
    if is_absurd(billed, billed) or is_absurd(tokens, tokens):
        return Usage()
    text = first_positive(billed.get("input_tokens"), tokens.get("input_tokens"))
    images = token_number(billed.get("image_tokens"))
    return Usage(
        input_tokens=text if images is None else images + (text or 0),
        output_tokens=first_positive(billed.get("output_tokens"), tokens.get("output_tokens")),
        cached_input_tokens=token_number(report.get("cached_tokens")),
        image_input_tokens=images,
        server_tool_calls=token_number(billed.get("search_units")),
    )


class _CohereAnswer(ReportedAnswer):
    """What v1 and v2 have in common."""

    def _take_units(self, report: JsonObject | None) -> None:
        usage = units_usage(report)
        self._usage = self._usage.merged(usage)
        if usage.output_tokens:
            self.running_output_tokens = usage.output_tokens
            self._tally.restart()

    def _take_end(self, reason: object) -> None:
        if isinstance(reason, str):
            self._done = True
            self.error = self.error or reason.upper().startswith(_FAILED)


class CohereChatAnswer(_CohereAnswer):
    """v2: events told by their "type", the last of which carries the usage."""

    def take_event(self, event: SseEvent) -> None:
        value = event.value
        if value is None:
            return
        kind = value.get("type")
        delta = child(value, "delta") or {}
        if kind == "message-end":
            self._done = True
            self.error = self.error or bool(delta.get("error"))
            self._take_end(delta.get("finish_reason"))
            self._take_units(child(delta, "usage"))
        elif isinstance(kind, str) and kind.startswith(("content-", "tool-")):
            self._take_delta(value.get("index"), child(delta, "message"))
        elif kind == "message-start":
            self._take_names(value)
        elif event.name == "error" or value.get("error") or (kind is None and _is_error(value)):
            self.error = True

    def take_json(self, value: JsonObject) -> None:
        self._take_names(value)
        if _is_error(value):
            self.error = True
            return
        message = child(value, "message") or {}
        for index, part in enumerate(children(message, "content")):
            self._take_part(index, part)
        self._add("content", message.get("content"))
        self._add("tool_plan", message.get("tool_plan"))
        for index, call in enumerate(children(message, "tool_calls")):
            self._take_call(index, call)
        self._take_end(value.get("finish_reason"))
        self._take_units(child(value, "usage"))

    def _take_delta(self, raw_index: object, message: JsonObject | None) -> None:
        if message is None:
            return
        index = raw_index if isinstance(raw_index, int) else 0
        self._take_part(index, child(message, "content"))
        self._take_call(index, child(message, "tool_calls"))
        self._add("tool_plan", message.get("tool_plan"))

    def _take_part(self, index: int, part: JsonObject | None) -> None:
        for key in ("text", "thinking"):
            self._add((index, key), (part or {}).get(key))

    def _take_call(self, index: int, call: JsonObject | None) -> None:
        function = child(call, "function") or {}
        for key in ("name", "arguments"):
            self._add((index, key), function.get(key))


class CohereV1ChatAnswer(_CohereAnswer):
    """v1: a line for each "event_type"; the last repeats the whole answer."""

    def take_event(self, event: SseEvent) -> None:
        value = event.value
        if value is None:
            return
        kind = value.get("event_type")
        if kind == "text-generation":
            self._add("text", value.get("text"))
        elif kind == "tool-calls-chunk":
            self._add("text", value.get("text"))
            self._take_call(child(value, "tool_call_delta"))
        elif kind == "stream-end":
            self._take_response(child(value, "response") or {})
            self._take_end(value.get("finish_reason"))
            self._done = True
        elif kind is None:
            self.take_json(value)

    def take_json(self, value: JsonObject) -> None:
        if _is_error(value):
            self.error = True
            return
        self._take_response(value)

    def _take_response(self, response: JsonObject) -> None:
        for key in ("generation_id", "response_id"):
            self.response_id = name_of(response, key) or self.response_id
        if not self.saw_output:
            self._add("text", response.get("text"))
            for call in children(response, "tool_calls"):
                self._take_call(call)
        self._take_end(response.get("finish_reason"))
        self._take_units(child(response, "meta"))

    def _take_call(self, call: JsonObject | None) -> None:
        if call is None:
            return
        for key in _V1_TOOL_KEYS:
            value = call.get(key)
            text = compact(value) if isinstance(value, dict) else value
            self._add((call.get("index") if isinstance(call.get("index"), int) else 0, key), text)


class CohereEmbedAnswer(_CohereAnswer):
    """Embeddings of v1 and v2: no output."""

    input_only = True

    def take_event(self, event: SseEvent) -> None:
        """Embeddings are not streamed."""

    def take_json(self, value: JsonObject) -> None:
        self._take_names(value)
        if value.get("embeddings"):
            self.saw_output = True
        elif _is_error(value):
            self.error = True
        self._take_units(child(value, "meta"))


def _is_error(value: JsonObject) -> bool:
    """Errors are ``{"message": "..."}``; the message of an answer is an object."""
    return isinstance(value.get("message"), str) and "text" not in value
