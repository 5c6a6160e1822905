"""What InvokeModel carries: each family's own body, answer and events.

Shapes follow AWS's user guide, "Inference request parameters and response fields".
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from extproc.demo.fake_apis.api import Job
from extproc.demo.fake_apis.reading import cap_of, required, scaled_tokens
from extproc.demo.fake_orders import OrderError
from extproc.demo.fake_tokens import words
from extproc.demo.provider_script import Script

Body = dict[str, Any]
_PERCENT, _MORE = 133, 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """``read`` gives input tokens and cap. ``stream`` gives the model's events, and the tokens
    that each carries; a family without it has no output. ``reports``: whether the body has usage
    (the number in AWS's headers aside)."""

    mark: str
    read: Callable[[Body], tuple[int, int | None]]
    plain: Callable[[Job, Script, int], Body]
    stream: Callable[[Job, Script, int], Iterator[tuple[Body, int]]] | None = None
    reports: bool = True

    def tells_usage(self, script: Script) -> bool:
        """Whether a plain answer's body says what was used."""
        return self.reports and script.usage not in ("none", "null")


def text_input(value: object) -> int:
    """A made-up rule, like those of the other APIs."""
    return scaled_tokens(value, percent=_PERCENT, more=_MORE)


def stop_reason(job: Job) -> str:
    """In the words of Converse, Nova and Anthropic."""
    return "max_tokens" if job.capped else "end_turn"


def _of_cache(job: Job, script: Script) -> tuple[int, int]:
    """What is read from a cache and what is written to one, both parts of the input."""
    read = min(script.cached, job.input_tokens)
    return read, min(script.written, job.input_tokens - read)


def aws_usage(job: Job, script: Script, output: int, *, end: str = "") -> Body:
    """``TokenUsage``: what the cache has stands beside the input. ``end``: Nova's own words for
    the cache end so."""
    if script.usage == "zero":
        return {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
    read, written = _of_cache(job, script)
    return {
        "inputTokens": job.input_tokens - read - written,
        "outputTokens": output,
        "totalTokens": job.input_tokens + output,
        f"cacheReadInputToken{end or 's'}": read,
        f"cacheWriteInputToken{end or 's'}": written,
    }


def invocation_metrics(job: Job, script: Script) -> Body:
    """What AWS adds to the last event of a stream."""
    if script.usage == "zero":
        return {"inputTokenCount": 0, "outputTokenCount": 0, "invocationLatency": 7}
    read, written = _of_cache(job, script)
    cache = {"cacheReadInputTokenCount": read, "cacheWriteInputTokenCount": written}
    return {
        "inputTokenCount": job.input_tokens - read - written,
        "outputTokenCount": job.output_tokens,
        "invocationLatency": 7,
        "firstByteLatency": 3,
        **(cache if read or written else {}),
    }


def _text(job: Job) -> str:
    return "".join(words(job.output_tokens))


# Anthropic


def _read_anthropic(body: Body) -> tuple[int, int | None]:
    required(body, "anthropic_version", str)
    cap = cap_of(body, "max_tokens")
    if cap is None:
        raise OrderError("max_tokens: Field required", param="max_tokens")
    return text_input([required(body, "messages", list), body.get("system")]), cap


def _anthropic_usage(job: Job, script: Script, output: int) -> Body:
    if script.usage == "zero":
        return {"input_tokens": 0, "output_tokens": 0}
    read, written = _of_cache(job, script)
    return {
        "input_tokens": job.input_tokens - read - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": output,
    }


def _anthropic_message(job: Job, number: int) -> Body:
    return {
        "id": f"msg_bdrk_fake{number:08d}",
        "type": "message",
        "role": "assistant",
        "model": "claude-fake",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _plain_anthropic(job: Job, script: Script, number: int) -> Body:
    body = _anthropic_message(job, number)
    body |= {"content": [{"type": "text", "text": _text(job)}], "stop_reason": stop_reason(job)}
    if script.usage not in ("none", "null"):
        body["usage"] = _anthropic_usage(job, script, job.output_tokens)
    return body


def _stream_anthropic(job: Job, script: Script, number: int) -> Iterator[tuple[Body, int]]:
    reports = script.usage not in ("none", "null")
    message = _anthropic_message(job, number)
    if reports:
        message["usage"] = _anthropic_usage(job, script, 1)
    yield {"type": "message_start", "message": message}, 0
    start = {"type": "text", "text": ""}
    yield {"type": "content_block_start", "index": 0, "content_block": start}, 0
    for word in words(job.output_tokens):
        delta = {"type": "text_delta", "text": word}
        yield {"type": "content_block_delta", "index": 0, "delta": delta}, 1
    yield {"type": "content_block_stop", "index": 0}, 0
    end = {"stop_reason": stop_reason(job), "stop_sequence": None}
    produced = 0 if script.usage == "zero" else job.output_tokens
    usage = {"usage": {"output_tokens": produced}} if reports else {}
    yield {"type": "message_delta", "delta": end, **usage}, 0
    yield {"type": "message_stop"}, 0


# Nova


def _read_nova(body: Body) -> tuple[int, int | None]:
    messages = required(body, "messages", list)
    config = body.get("inferenceConfig")
    cap = cap_of(config, "maxTokens") or cap_of(config, "max_new_tokens")
    return text_input([messages, body.get("system")]), cap


def _plain_nova(job: Job, script: Script, _number: int) -> Body:
    message = {"role": "assistant", "content": [{"text": _text(job)}]}
    body: Body = {"output": {"message": message}, "stopReason": stop_reason(job)}
    if script.usage not in ("none", "null"):
        body["usage"] = aws_usage(job, script, job.output_tokens, end="Count")
    return body


def _stream_nova(job: Job, script: Script, _number: int) -> Iterator[tuple[Body, int]]:
    yield {"messageStart": {"role": "assistant"}}, 0
    for word in words(job.output_tokens):
        yield {"contentBlockDelta": {"delta": {"text": word}, "contentBlockIndex": 0}}, 1
    yield {"contentBlockStop": {"contentBlockIndex": 0}}, 0
    yield {"messageStop": {"stopReason": stop_reason(job)}}, 0
    metadata: Body = {"metrics": {}, "trace": {}}
    if script.usage not in ("none", "null"):
        metadata["usage"] = aws_usage(job, script, job.output_tokens, end="Count")
    yield {"metadata": metadata}, 0


# Titan's text and vectors


def _read_titan(body: Body) -> tuple[int, int | None]:
    cap = cap_of(body.get("textGenerationConfig"), "maxTokenCount")
    return text_input(required(body, "inputText", str)), cap


def _titan_reason(job: Job) -> str:
    return "LENGTH" if job.capped else "FINISH"


def _plain_titan(job: Job, script: Script, _number: int) -> Body:
    result: Body = {"outputText": _text(job), "completionReason": _titan_reason(job)}
    body: Body = {"results": [result]}
    if script.usage not in ("none", "null"):
        is_zero = script.usage == "zero"
        body["inputTextTokenCount"] = 0 if is_zero else job.input_tokens
        result["tokenCount"] = 0 if is_zero else job.output_tokens
    return body


def _stream_titan(job: Job, script: Script, _number: int) -> Iterator[tuple[Body, int]]:
    """The counts stand in the last event, the others have null."""
    empty: Body = dict.fromkeys(
        ("completionReason", "inputTextTokenCount", "totalOutputTextTokenCount")
    )
    for word in words(job.output_tokens):
        yield {"outputText": word, "index": 0, **empty}, 1
    last = empty | {"outputText": "", "index": 0, "completionReason": _titan_reason(job)}
    if script.usage == "normal":
        last["inputTextTokenCount"] = job.input_tokens
        last["totalOutputTextTokenCount"] = job.output_tokens
    yield last, 0


def _plain_titan_embed(job: Job, script: Script, _number: int) -> Body:
    body: Body = {"embedding": [0.25, -0.5, 0.125]}
    if script.usage not in ("none", "null"):
        body["inputTextTokenCount"] = 0 if script.usage == "zero" else job.input_tokens
    return body


# Llama


def _read_llama(body: Body) -> tuple[int, int | None]:
    return text_input(required(body, "prompt", str)), cap_of(body, "max_gen_len")


def _llama(
    job: Job, script: Script, text: str, *, prompt: int | None, produced: int, stop: bool
) -> Body:
    reason = "length" if job.capped else "stop"
    body: Body = {"generation": text, "stop_reason": reason if stop else None}
    if script.usage in ("none", "null"):
        return body
    if script.usage == "zero":
        prompt = produced = 0
    return body | {"prompt_token_count": prompt, "generation_token_count": produced}


def _plain_llama(job: Job, script: Script, _number: int) -> Body:
    prompt, produced = job.input_tokens, job.output_tokens
    return _llama(job, script, _text(job), prompt=prompt, produced=produced, stop=True)


def _stream_llama(job: Job, script: Script, _number: int) -> Iterator[tuple[Body, int]]:
    """The prompt's count stands in the first event only, the output's grows."""
    prompt: int | None = job.input_tokens
    for index, word in enumerate(words(job.output_tokens), start=1):
        yield _llama(job, script, word, prompt=prompt, produced=index, stop=False), 1
        prompt = None
    yield _llama(job, script, "", prompt=prompt, produced=job.output_tokens, stop=True), 0


# Cohere's vectors: nothing in the body tells what was used.


def _read_cohere_embed(body: Body) -> tuple[int, int | None]:
    return text_input(required(body, "texts", list)), None


def _plain_cohere_embed(_job: Job, _script: Script, number: int) -> Body:
    return {
        "id": f"fake{number:08d}",
        "response_type": "embeddings_floats",
        "embeddings": [[0.25, -0.5]],
    }


# Vectors first: the mark of a family may be part of another's id.
_FAMILIES = (
    Family(mark="titan-embed", read=_read_titan, plain=_plain_titan_embed),
    Family(mark="cohere.embed", read=_read_cohere_embed, plain=_plain_cohere_embed, reports=False),
    Family(
        mark="anthropic.",
        read=_read_anthropic,
        plain=_plain_anthropic,
        stream=_stream_anthropic,
    ),
    Family(mark="amazon.nova", read=_read_nova, plain=_plain_nova, stream=_stream_nova),
    Family(mark="amazon.titan", read=_read_titan, plain=_plain_titan, stream=_stream_titan),
    Family(mark="meta.llama", read=_read_llama, plain=_plain_llama, stream=_stream_llama),
)


def family_of(model: str) -> Family:
    """By a part of the model's id. Raises OrderError."""
    for family in _FAMILIES:
        if family.mark in model:
            return family
    raise OrderError("The provided model identifier is invalid.")
