"""Ollama's own API: chat, generate, embed (docs/api.md and api/types.go of ollama/ollama)."""

from dataclasses import replace

from extproc.core.errors import RequestError
from extproc.core.usage import Usage
from extproc.providers.counting import Counter, compact, kind_of
from extproc.providers.error_bodies import ollama_error
from extproc.providers.fields import flag, model_of, objects, optional_list, optional_object, wrong
from extproc.providers.json_answer import child, children, is_absurd, name_of, token_number
from extproc.providers.media_rules import image_rule
from extproc.providers.ndjson import NDJSON
from extproc.providers.openai_usage import ReportedAnswer
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.sse import SseEvent
from extproc.providers.tokens import DEFAULT_ENCODING
from extproc.providers.wire_formats import Target, WireFormat

# What requests have at their top, as Ollama spells it.
_SPELLED = """
model messages prompt input suffix system template context images stream raw format tools think
options keep_alive truncate dimensions
"""
_FIELDS = frozenset(_SPELLED.split())
# Of a message: what is no plain text, and a key that Ollama does not know but the counter does.
_APART = ("images", "tool_calls", "type")
_NO_RUN = ("load", "unload")


def read_ollama_chat(body: JsonObject, limits: ReadLimits, _target: Target) -> RequestFacts:
    """``POST /api/chat``."""
    model, counter = _counted_by(body)
    messages = [] if body.get("messages") is None else objects(body, "messages")
    input_tokens = counter.json(optional_list(body, "tools"))
    for message in messages:
        rest = {key: value for key, value in message.items() if key not in _APART}
        input_tokens += counter.message(rest) + _images(message, counter)
        input_tokens += counter.json(message.get("tool_calls"), kind_of(message))
    facts = _facts(body, limits, model=model, input_tokens=input_tokens, counter=counter)
    return replace(facts, wire_format="ollama_chat")


def read_ollama_generate(body: JsonObject, limits: ReadLimits, _target: Target) -> RequestFacts:
    """``POST /api/generate``. ``context`` are the token ids of what was said before."""
    model, counter = _counted_by(body)
    input_tokens = _images(body, counter)
    input_tokens += counter.media("token_ids", len(optional_list(body, "context")))
    for name in ("prompt", "suffix", "system", "template"):
        text = body.get(name)
        if text is not None and not isinstance(text, str):
            raise wrong(name, "a string")
        input_tokens += counter.content(text, "system" if name == "system" else "text")
    facts = _facts(body, limits, model=model, input_tokens=input_tokens, counter=counter)
    return replace(facts, wire_format="ollama_generate")


def read_ollama_embed(body: JsonObject, limits: ReadLimits, target: Target) -> RequestFacts:
    """``POST /api/embed``, and ``/api/embeddings`` as it was before."""
    del limits  # an embedding has neither choices nor a cap
    model, counter = _counted_by(body)
    name = "prompt" if target.lowered[-1] == "embeddings" else "input"
    texts = body.get(name)
    for text in texts if isinstance(texts, list) else [texts]:
        if text is not None and not isinstance(text, str):
            raise wrong(name, "a string" if name == "prompt" else "a string or a list of strings")
    return RequestFacts(
        wire_format="ollama_embed",
        model=model,
        stream=False,
        input_tokens=counter.content(texts),
        output_cap_tokens=0,
        choices=1,
        encoding=DEFAULT_ENCODING,
        parts=counter.parts,
    )


def _counted_by(body: JsonObject) -> tuple[str, Counter]:
    """The model, and what counts by its rules."""
    _check_spelling(body)
    model = model_of(body)
    return model, Counter(DEFAULT_ENCODING, images=image_rule("ollama", model))


def _facts(
    body: JsonObject, limits: ReadLimits, *, model: str, input_tokens: int, counter: Counter
) -> RequestFacts:
    return RequestFacts(
        wire_format="",
        model=model,
        # "stream: if false the response will be returned as a single response object".
        stream=body.get("stream") is None or flag(body, "stream"),
        input_tokens=input_tokens,
        output_cap_tokens=_cap(body, limits),
        choices=1,
        encoding=DEFAULT_ENCODING,
        cap_path=("options", "num_predict"),
        parts=counter.parts,
        media_tokens=counter.media_tokens,
    )


def _cap(body: JsonObject, limits: ReadLimits) -> int | None:
    """``num_predict``; -1 means without end, -2 until the context is full, and the runner takes
    every number below 1 for no limit."""
    cap = (optional_object(body, "options") or {}).get("num_predict")
    if cap is None:
        return None
    if isinstance(cap, bool) or not isinstance(cap, int) or cap > limits.max_output_tokens:
        raise wrong("options.num_predict", f"an integer up to {limits.max_output_tokens}")
    return cap if cap > 0 else None


def _images(holder: JsonObject, counter: Counter) -> int:
    return sum(counter.picture(image) for image in optional_list(holder, "images"))


def _check_spelling(body: JsonObject) -> None:
    """Go takes a key in any case for the field ("If no exact match, a case-insensitive match",
    encoding/json), the last one wins: "Messages" beside "messages" would be read uncounted."""
    for key in body:
        name = key.casefold()
        if name in _FIELDS and key not in _FIELDS:
            shown = key[:64].encode("utf-8", "replace").decode()
            raise RequestError(
                400, "duplicate_key", f"the key '{shown}' must be spelled '{name}'", param=shown
            )


class OllamaAnswer(ReportedAnswer):
    """A line for each piece, the last with ``done`` and the counts; or one object with all.

    ``prompt_eval_count`` is left out where it is zero, and so it is for a prompt that was cached
    (ollama/ollama issue 3427): not reported, not zero. ``eval_count`` includes what was thought.
    """

    def take_event(self, event: SseEvent) -> None:
        if event.value is not None:
            self.take_json(event.value)

    def take_json(self, value: JsonObject) -> None:
        if value.get("error"):
            self.error = True
        self.response_model = name_of(value, "model") or self.response_model
        message = child(value, "message") or {}
        self._add("content", message.get("content"))
        self._add("content", value.get("response"))
        for holder in (message, value):
            self._add("thinking", holder.get("thinking"))
        for call in children(message, "tool_calls"):
            function = child(call, "function") or {}
            self._add("name", function.get("name"))
            if function.get("arguments"):
                self._add("arguments", compact(function["arguments"]))
        if value.get("done") is True:
            self._done = True
            self._take_counts(value)

    def _take_counts(self, value: JsonObject) -> None:
        if is_absurd(value, ("prompt_eval_count", "eval_count")):
            return
        input_tokens = token_number(value.get("prompt_eval_count"))
        output_tokens = token_number(value.get("eval_count"))
        reason = value.get("done_reason")
        if isinstance(reason, str) and reason in _NO_RUN and not self.saw_output:
            # The model was brought into memory or out of it, and not run.
            input_tokens, output_tokens = input_tokens or 0, output_tokens or 0
        elif input_tokens and output_tokens is None and not self.saw_output:
            output_tokens = 0  # left out, because it is zero
        self._usage = self._usage.merged(
            Usage(input_tokens=input_tokens, output_tokens=output_tokens)
        )
        if output_tokens:
            self.running_output_tokens = output_tokens
            self._tally.restart()


class OllamaEmbedAnswer(OllamaAnswer):
    """Embeddings: no output. The older path reports nothing."""

    input_only = True

    def take_json(self, value: JsonObject) -> None:
        self.error = self.error or bool(value.get("error"))
        self.response_model = name_of(value, "model") or self.response_model
        if value.get("embeddings") or value.get("embedding"):
            self.saw_output = True
        self._usage = Usage(input_tokens=token_number(value.get("prompt_eval_count")))


def _matches(target: Target) -> bool:
    return target.before == "api"


OLLAMA_CHAT = WireFormat(
    name="ollama_chat",
    provider="ollama",
    ends=("chat",),
    matches=_matches,
    error_shape=ollama_error,
    read=read_ollama_chat,
    answer=OllamaAnswer,
    framings=(NDJSON,),
)
OLLAMA_GENERATE = WireFormat(
    name="ollama_generate",
    provider="ollama",
    ends=("generate",),
    matches=_matches,
    error_shape=ollama_error,
    read=read_ollama_generate,
    answer=OllamaAnswer,
    framings=(NDJSON,),
)
OLLAMA_EMBED = WireFormat(
    name="ollama_embed",
    provider="ollama",
    ends=("embed", "embeddings"),
    matches=_matches,
    error_shape=ollama_error,
    read=read_ollama_embed,
    answer=OllamaEmbedAnswer,
    has_text_output=False,
)
