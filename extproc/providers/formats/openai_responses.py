"""OpenAI's Responses API, also served by xAI, OpenRouter, vLLM and others.

Request and stream after OpenAI's API reference ("Create a model response", "Streaming events").
What ``previous_response_id`` and ``conversation`` bring in is known to the provider only: the
reserve lacks it, the settlement has it.
"""

from extproc.core.usage import Usage
from extproc.providers.counting import (
    PER_ANSWER,
    PER_MESSAGE,
    Counter,
    compact,
)
from extproc.providers.fields import (
    flag,
    model_of,
    optional_list,
    optional_object,
    positive_int,
    wrong,
)
from extproc.providers.input_factors import factor_percent
from extproc.providers.json_answer import child, children, token_number
from extproc.providers.media_rules import image_rule_by_name
from extproc.providers.openai_usage import ReportedAnswer, pictures_of
from extproc.providers.paths import has_api_prefix
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.sse import SseEvent
from extproc.providers.tally import TextTally
from extproc.providers.tokens import encoding_for
from extproc.providers.wire_formats import Target, WireFormat

# Encrypted reasoning that comes back is billed as the tokens inside it: base64 makes four
# characters of three bytes, and a token is some 4.5 bytes of text. A guess.
_SEALED_CHARS_PER_TOKEN = 6
# Marks of an item, never text of the prompt.
_MARKS = frozenset({"id", "call_id", "status", "encrypted_content", "type"})
# A text alone is a message of a user or a developer: one token in all vocabularies.
_ROLE = 1
# What brings in text that stands with the provider.
_REMEMBERED = ("previous_response_id", "conversation", "prompt")
# Tuples, because what is looked for in them may be of any type, also one that has no hash.
_PICTURES = ("image_generation_call", "computer_call_output")
# Items of the output that are calls of the provider's own tools, billed by the call.
_SERVER_TOOLS = ("web_search_call", "file_search_call", "x_search_call")
_TERMINAL = ("completed", "incomplete", "failed", "cancelled")
_UNDER_WAY = ("queued", "in_progress")


def read_responses(body: JsonObject, limits: ReadLimits, _target: Target) -> RequestFacts:
    """``POST /v1/responses``, and ``/v1/responses/compact``, which has no cap of its own."""
    prompt = optional_object(body, "prompt") or {}
    # A prompt that is stored with the provider may bring its model: then its id stands for it.
    is_told = body.get("model") is not None or not isinstance(prompt.get("id"), str)
    model = model_of(body if is_told else {"model": prompt["id"]})
    stream = flag(body, "stream")
    cap = positive_int(body, "max_output_tokens", at_most=limits.max_output_tokens)
    encoding = encoding_for(model)
    counter = Counter(encoding, images=image_rule_by_name(model))
    input_tokens = PER_ANSWER + count_input(body.get("input"), counter)
    instructions = body.get("instructions")
    if instructions is not None:
        if not isinstance(instructions, str | list):
            raise wrong("instructions", "a string")
        input_tokens += PER_MESSAGE + count_input(instructions, counter, "system")
    input_tokens += counter.json(optional_list(body, "tools"))
    text = optional_object(body, "text") or {}
    input_tokens += counter.json(text.get("format"), "schema")
    input_tokens += counter.content(prompt.get("variables"))
    factor = factor_percent("openai", model)
    return RequestFacts(
        wire_format="openai_responses",
        model=model,
        stream=stream,
        input_tokens=counter.scaled(input_tokens, factor),
        output_cap_tokens=cap,
        choices=1,
        encoding=encoding,
        factor_percent=factor,
        cap_path=("max_output_tokens",),
        parts=counter.parts,
        media_tokens=counter.media_tokens,
        hidden_input=any(body.get(name) for name in _REMEMBERED),
    )


def count_input(value: object, counter: Counter, kind: str = "messages") -> int:
    """Tokens of ``input`` as text or items. Raises RequestError where it is neither."""
    if value is None:
        return 0
    if isinstance(value, str):
        return PER_MESSAGE + _ROLE + counter.text(value, kind)
    if not isinstance(value, list):
        raise wrong("input", "a string or a list of items")
    total = 0
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise wrong(f"input[{index}]", "an object")
        total += _item(item, counter)
    return total


def _item(item: JsonObject, counter: Counter) -> int:
    kind = item.get("type")
    if kind == "item_reference":
        return 0
    if kind in _PICTURES:
        return counter.picture(None)
    sealed = item.get("encrypted_content")
    chars = len(sealed) if isinstance(sealed, str) else 0
    tokens = counter.media("sealed", -(-chars // _SEALED_CHARS_PER_TOKEN))
    return tokens + counter.message({k: v for k, v in item.items() if k not in _MARKS})


class ResponsesAnswer(ReportedAnswer):
    """One answer. Usage stands in the response object, which the last event carries whole."""

    def __init__(self, tally: TextTally) -> None:
        super().__init__(tally)
        self._is_under_way = False
        self._has_media = False

    @property
    def unread(self) -> bool:
        """Made in the background, or images and sound, and no usage came."""
        return (self._is_under_way or self._has_media) and not self._usage.is_known

    def take_event(self, event: SseEvent) -> None:
        value = event.value
        if value is None:
            return
        kind = value.get("type")
        if not isinstance(kind, str):
            kind = event.name
        if kind.endswith(".delta"):
            self._take_delta(kind, value)
        elif (response := child(value, "response")) is not None:
            self._take_response(response)
        elif kind == "response.output_item.added":
            item = child(value, "item") or {}
            self._add((_index(value, "output_index"), "name"), item.get("name"))
        elif kind == "response.output_item.done":
            # Calls of a shell or a screen have no deltas.
            self._take_action(_index(value, "output_index"), child(value, "item") or {})
        elif kind == "response.image_generation_call.partial_image":
            self.saw_output = self._has_media = True
        elif kind == "error" or event.name == "error" or value.get("error"):
            self.error = True

    def take_json(self, value: JsonObject) -> None:
        self._take_response(value)
        # Of a stream's first event "in_progress" says nothing; of a whole answer it says that the
        # work goes on in the background, and its usage will never pass here.
        self._is_under_way = value.get("status") in _UNDER_WAY
        self.saw_output = self.saw_output or self._is_under_way

    def _take_delta(self, kind: str, value: JsonObject) -> None:
        if kind == "response.audio.delta":
            self.saw_output = self._has_media = True
        else:
            at = (_index(value, "output_index"), _index(value, "content_index"), kind)
            self._add(at, value.get("delta"))

    def _take_action(self, at: int, item: JsonObject) -> None:
        action = item.get("action")
        if action and item.get("type") not in _SERVER_TOOLS:
            self._add((at, "action"), compact(action))

    def _take_response(self, response: JsonObject) -> None:
        self._take_names(response)
        status = response.get("status")
        if status == "failed" or response.get("error"):
            self.error = True
        if status in _TERMINAL:
            self._done = True
        if not self.saw_output:  # a stream without deltas, or one JSON document
            self._take_output(response)
        report = child(response, "usage")
        if report is not None:
            self._take_usage(report)
        self._take_tools(response, child(response, "tool_usage") or {})

    def _take_tools(self, response: JsonObject, tools: JsonObject) -> None:
        """``tool_usage`` stands beside the model's own usage, and may be missing."""
        drawn = child(tools, "image_gen")
        if drawn is not None:
            self._others = pictures_of(drawn)
        calls = [item["type"] for item in children(response, "output") if _is_server_tool(item)]
        # Of the items some are only pages that were opened; this number is what is billed.
        searches = token_number((child(tools, "web_search") or {}).get("num_requests"))
        if searches is not None:
            calls = [kind for kind in calls if kind != "web_search_call"]
        if count := len(calls) + (searches or 0):
            self._usage = self._usage.merged(Usage(server_tool_calls=count))

    def _take_output(self, response: JsonObject) -> None:
        for at, item in enumerate(children(response, "output")):
            if item.get("type") in _PICTURES:
                self.saw_output = self._has_media = True
            for key in ("name", "arguments", "input", "code"):
                self._add((at, key), item.get(key))
            self._take_action(at, item)
            for key in ("content", "summary"):
                for part, content in enumerate(children(item, key)):
                    self._add((at, key, part, "text"), content.get("text"))
                    self._add((at, key, part, "refusal"), content.get("refusal"))


def _index(value: JsonObject, key: str) -> int:
    index = value.get(key)
    return index if isinstance(index, int) else 0


def _is_server_tool(item: JsonObject) -> bool:
    kind = item.get("type")
    return isinstance(kind, str) and kind in _SERVER_TOOLS


def _matches(target: Target) -> bool:
    if target.lowered[-1] == "compact":
        return target.before == "responses" and has_api_prefix(target, words=2)
    return has_api_prefix(target)


OPENAI_RESPONSES = WireFormat(
    name="openai_responses",
    provider="openai",
    ends=("responses", "compact"),
    matches=_matches,
    read=read_responses,
    answer=ResponsesAnswer,
    # The first and last event repeat instructions and tools; images come in events.
    max_event_bytes=16 * 1024 * 1024,
)
