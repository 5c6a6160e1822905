"""What a client asked of the fake provider: the four request formats read into one value."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from extproc.demo.fake_shapes import Shape, anthropic_shape, openai_shape
from extproc.demo.fake_tokens import (
    anthropic_input_tokens,
    chat_input_tokens,
    encoding_of,
    prompt_tokens,
)
from extproc.demo.provider_script import Script

Wire = Literal["chat", "completions", "embeddings", "anthropic"]
WIRE_OF_PATH: dict[str, Wire] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
    "/v1/messages": "anthropic",
}


class OrderError(ValueError):
    """The request is not one that a provider of this format would take. ``param`` is the field."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One accepted request. ``output_tokens`` is per choice, the client's own cap applied;
    ``capped`` says that the cap cut it. ``reasoning`` of the output is thought, not said, and is
    shown where the client ``shows_thinking``. ``inputs`` is the number of texts to embed,
    ``as_base64`` how it wants the vectors."""

    wire: Wire
    model: str
    stream: bool
    asks_usage: bool
    input_tokens: int
    output_tokens: int
    capped: bool
    choices: int = 1
    reasoning: int = 0
    shows_thinking: bool = False
    shape: Shape = field(default_factory=Shape)
    others: tuple[tuple[str, int, int], ...] = ()
    inputs: int = 1
    as_base64: bool = False


def required(body: dict[str, Any], field: str, kind: type) -> Any:
    """A field that must be there and not be empty. Raises OrderError."""
    value = body.get(field)
    if not isinstance(value, kind) or isinstance(value, bool) or not value:
        raise OrderError(f"Missing or invalid required parameter: '{field}'.", param=field)
    return value


def positive(body: dict[str, Any], field: str) -> int | None:
    """A number of at least 1, None where it is left out. Raises OrderError."""
    value = body.get(field)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise OrderError(f"Invalid value for '{field}': expected at least 1.", param=field)
    return value


def _input_tokens(wire: Wire, body: dict[str, Any], model: str) -> tuple[int, int]:
    """Input tokens, and how many separate inputs there are."""
    if wire in ("chat", "anthropic"):
        messages = required(body, "messages", list)
        if not all(isinstance(message, dict) for message in messages):
            raise OrderError("Every message must be an object.", param="messages")
        if wire == "anthropic":
            return anthropic_input_tokens(body), 1
        return chat_input_tokens(body, encoding_of(model)), 1
    field = "input" if wire == "embeddings" else "prompt"
    prompt = body.get(field)
    if not isinstance(prompt, str | list) or not prompt:
        raise OrderError(f"Missing required parameter: '{field}'.", param=field)
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    return prompt_tokens(prompt, encoding_of(model)), len(prompt) if several else 1


def _output_cap(wire: Wire, body: dict[str, Any]) -> int | None:
    cap = positive(body, "max_tokens")
    if wire == "anthropic" and cap is None:
        raise OrderError("max_tokens: Field required", param="max_tokens")
    if wire == "chat":
        newer = positive(body, "max_completion_tokens")
        return newer if newer is not None else cap
    return cap


def _shape(wire: Wire, body: dict[str, Any]) -> Shape:
    if wire == "anthropic":
        return anthropic_shape(body)
    return openai_shape(body, body.get("response_format")) if wire == "chat" else Shape()


def _others(body: dict[str, Any]) -> tuple[tuple[str, int, int], ...]:
    edits = (body.get("context_management") or {}).get("edits") or ()
    compacts = any(str(edit.get("type")).startswith("compact") for edit in edits)
    advises = any(str(tool.get("type")).startswith("advisor") for tool in body.get("tools") or ())
    found = (("compaction", 1800, 35),) if compacts else ()
    return (*found, ("advisor_message", 700, 80)) if advises else found


def json_object(raw: bytes) -> dict[str, Any]:
    """A body that has to be a JSON object. Raises OrderError."""
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise OrderError("We could not parse the JSON body of your request.") from error
    if not isinstance(body, dict):
        raise OrderError("The body must be a JSON object.")
    return body


def read_order(wire: Wire, raw: bytes, script: Script, *, model: str | None = None) -> Order:
    """Read a request body; ``model`` stands in for the body's own.

    Raises OrderError, for which a provider answers 400."""
    body = json_object(raw)
    model = model or required(body, "model", str)
    counted, inputs = _input_tokens(wire, body, model)
    cap = _output_cap(wire, body)
    wanted = 0 if wire == "embeddings" else script.output
    output = wanted if cap is None else min(wanted, cap)
    options = body.get("stream_options")
    return Order(
        wire=wire,
        model=model,
        stream=body.get("stream") is True and wire != "embeddings",
        asks_usage=isinstance(options, dict) and options.get("include_usage") is True,
        input_tokens=counted if script.input is None else script.input,
        output_tokens=output,
        capped=cap is not None and cap < wanted,
        choices=(positive(body, "n") or 1) if wire in ("chat", "completions") else 1,
        reasoning=min(script.reasoning, output),
        shows_thinking=bool(body.get("thinking")),
        shape=_shape(wire, body),
        others=_others(body) if wire == "anthropic" else (),
        inputs=inputs,
        as_base64=body.get("encoding_format") == "base64",
    )
