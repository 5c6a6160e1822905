"""Google's requests: generateContent and embeddings.

Model and streaming stand in the path. Google reads bodies as JSON of protocol buffers: every field
may be spelled in camelCase or snake_case, a whole number may be a string or have ".0", and a single
object may stand for a list of one. A field in both spellings is refused, as Google does.
"""

import re
from functools import lru_cache

from extproc.core.errors import RequestError
from extproc.providers.counting import Counter
from extproc.providers.fields import model_of, wrong
from extproc.providers.gemini_media import CACHED_CONTENT, GeminiCounter
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.tokens import encoding_for
from extproc.providers.wire_formats import Target

# What a verb is asked of: a model, a tuned model, an endpoint, a dynamic set of models.
_HOLDERS = frozenset({"models", "tunedmodels", "endpoints", "dynamic"})
_CAPITAL = re.compile(r"[A-Z]")
_DIGITS = re.compile(r"[0-9]{1,12}")


def holder_at(target: Target) -> int | None:
    """Where in the path stands what holds the model: ``models`` in ``models/MODEL:verb``."""
    for at in range(len(target.lowered) - 2, -1, -1):
        if target.lowered[at] in _HOLDERS:
            return at
    return None


def has_model(target: Target) -> bool:
    """Whether the path ends with MODEL:verb."""
    return holder_at(target) is not None


def publisher_of(target: Target) -> str:
    """Whose model it is in Vertex's paths, in lower case; "" where the path does not say."""
    at = holder_at(target)
    if at is None or at < 2 or target.lowered[at - 2] != "publishers":
        return ""
    return target.lowered[at - 1]


def is_vertex(target: Target) -> bool:
    """Whether a path is Vertex AI's: below a project and a location, a publisher, an endpoint."""
    at = holder_at(target)
    if at is not None and target.lowered[at] == "endpoints":
        return True
    return publisher_of(target) != "" or ("projects" in target.lowered[:-1])


def path_model(target: Target) -> str:
    """The model in ``models/MODEL:verb``; raises RequestError 400 when there is none.

    Gateways have models with a slash in their name.
    """
    at = holder_at(target)
    name = "/".join(target.segments[at + 1 :]) if at is not None else target.segments[-1]
    return model_of({"model": name.rpartition(":")[0]})


def path_verb(target: Target) -> str:
    """What stands behind the colon, in lower case."""
    return target.lowered[-1].rpartition(":")[2]


@lru_cache(maxsize=64)
def _snake(name: str) -> str:
    return _CAPITAL.sub(lambda match: "_" + match[0].lower(), name)


def spelling(body: JsonObject, name: str) -> str:
    """How ``body`` spells its field ``name`` (given in camelCase), which it may not have."""
    other = _snake(name)
    if other == name or body.get(other) is None:
        # Of two that are absent or null the one that is written already is taken.
        return other if name not in body and other in body else name
    if body.get(name) is not None:
        message = f"'{name}' is there twice, also as '{other}'"
        raise RequestError(400, "duplicate_key", message, param=name)
    return other


def member(body: JsonObject, name: str) -> object:
    """The value of a field in either spelling; None when it is absent."""
    return body.get(spelling(body, name))


def whole_number(value: object, name: str, *, at_most: int) -> int | None:
    """A positive integer as Google takes it: 5, 5.0 or "5". ``name`` is for the error."""
    if value is None:
        return None
    if isinstance(value, str):
        value = int(value) if _DIGITS.fullmatch(value) else None
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= at_most:
        raise wrong(name, f"an integer between 1 and {at_most}")
    return value


def read_generate(body: JsonObject, limits: ReadLimits, target: Target) -> RequestFacts:
    """``POST .../models/MODEL:generateContent`` and ``:streamGenerateContent``.

    Thoughts are inside ``maxOutputTokens``. A cached content is not here to be counted: it is taken
    for the least that can be cached, and the answer says what it was.
    """
    model = path_model(target)
    contents = body.get("contents")
    if not isinstance(contents, list | dict):
        raise wrong("contents", "a list of objects")
    for index, item in enumerate(contents if isinstance(contents, list) else ()):
        if not isinstance(item, dict):
            raise wrong(f"contents[{index}]", "an object")
    system_name = spelling(body, "systemInstruction")
    system = body.get(system_name)
    if system is not None and not isinstance(system, dict):
        raise wrong(system_name, "an object")
    config_name = spelling(body, "generationConfig")
    config = body.get(config_name)
    if config is None:
        config = {}
    elif not isinstance(config, dict):
        raise wrong(config_name, "an object")
    cap_name, count_name = spelling(config, "maxOutputTokens"), spelling(config, "candidateCount")
    cap = whole_number(
        config.get(cap_name), f"{config_name}.{cap_name}", at_most=limits.max_output_tokens
    )
    choices = whole_number(
        config.get(count_name), f"{config_name}.{count_name}", at_most=limits.max_choices
    )
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list | dict):
        raise wrong("tools", "a list of objects")
    encoding = encoding_for(model)
    counter = GeminiCounter(model, encoding, resolution=member(config, "mediaResolution"))
    input_tokens = counter.contents(contents) + counter.json(tools)
    if system is not None:
        input_tokens += counter.contents(system, "system")
    for name in ("responseSchema", "responseJsonSchema"):
        input_tokens += counter.json(member(config, name), "schema")
    is_cached = bool(member(body, "cachedContent"))
    if is_cached:
        input_tokens += counter.media("cached", CACHED_CONTENT)
    return RequestFacts(
        wire_format="gemini",
        model=model,
        stream=path_verb(target) == "streamgeneratecontent",
        input_tokens=input_tokens,
        output_cap_tokens=None if cap is None else cap * (choices or 1),
        choices=choices or 1,
        encoding=encoding,
        cap_path=(config_name, cap_name),
        parts=counter.parts,
        media_tokens=counter.media_tokens,
        hidden_input=is_cached,
    )


def read_embeddings(body: JsonObject, _limits: ReadLimits, target: Target) -> RequestFacts:
    """``POST .../models/MODEL:embedContent`` and ``:batchEmbedContents``: input only."""
    model = path_model(target)
    encoding = encoding_for(model)
    counter = GeminiCounter(model, encoding)
    if path_verb(target) == "batchembedcontents":
        requests = body.get("requests")
        if not isinstance(requests, list):
            raise wrong("requests", "a list of objects")
        input_tokens = sum(
            _embedded(request, f"requests[{index}].", counter)
            for index, request in enumerate(requests)
        )
    else:
        input_tokens = _embedded(body, "", counter)
    return embedding_facts("gemini_embeddings", model, input_tokens, encoding, counter)


def embedding_facts(
    wire_format: str, model: str, input_tokens: int, encoding: str, counter: Counter
) -> RequestFacts:
    """What there is to say of a request that has input only."""
    return RequestFacts(
        wire_format=wire_format,
        model=model,
        stream=False,
        input_tokens=input_tokens,
        output_cap_tokens=0,
        choices=1,
        encoding=encoding,
        parts=counter.parts,
        media_tokens=counter.media_tokens,
    )


def _embedded(request: object, where: str, counter: GeminiCounter) -> int:
    if not isinstance(request, dict):
        raise wrong(where.rstrip("."), "an object")
    content = request.get("content")
    if not isinstance(content, dict):
        raise wrong(f"{where}content", "an object")
    # Vertex has the title among the settings of its embedContent.
    config = member(request, "embedContentConfig")
    titles = [request.get("title"), config.get("title") if isinstance(config, dict) else None]
    return counter.contents(content, "text") + sum(counter.content(title) for title in titles)
