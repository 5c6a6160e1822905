"""Cohere's embeddings of texts and pictures, v2 and v1 (docs.cohere.com/reference/embed)."""

from extproc.providers.cohere_answers import CohereEmbedAnswer
from extproc.providers.counting import Counter
from extproc.providers.error_bodies import cohere_error
from extproc.providers.fields import model_of, wrong
from extproc.providers.media_rules import image_rule
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.tokens import DEFAULT_ENCODING
from extproc.providers.wire_formats import Target, WireFormat

_V1_MODEL = "embed"
_INPUTS = ("texts", "images", "inputs")


def read_embed(body: JsonObject, limits: ReadLimits, target: Target) -> RequestFacts:
    """``POST /v2/embed``, ``/v1/embed``: ``texts``, ``images`` (addresses or base64), ``inputs`` of
    both kinds."""
    del limits  # an embedding has neither choices nor a cap
    model = model_of(body, default=_V1_MODEL if target.before == "v1" else None)
    # Every model here makes vectors, whatever its name says.
    counter = Counter(DEFAULT_ENCODING, images=image_rule("cohere", "embed"))
    texts, images = _strings(body, "texts"), _strings(body, "images")
    inputs = body.get("inputs")
    if inputs is not None and not isinstance(inputs, list):
        raise wrong("inputs", "a list of objects")
    if not any(isinstance(body.get(name), list) for name in _INPUTS):
        raise wrong("texts", "a list of strings, unless there are images or inputs")
    return RequestFacts(
        wire_format="cohere_embed",
        model=model,
        stream=False,
        input_tokens=sum(counter.text(text) for text in texts)
        + sum(counter.picture(image) for image in images)
        + counter.content(inputs),
        output_cap_tokens=0,
        choices=1,
        encoding=DEFAULT_ENCODING,
        parts=counter.parts,
        media_tokens=counter.media_tokens,
    )


def _strings(body: JsonObject, name: str) -> list[str]:
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong(name, "a list of strings")
    for index, item in enumerate(value):
        if not isinstance(item, str):
            raise wrong(f"{name}[{index}]", "a string")
    return value


def _matches(target: Target) -> bool:
    return target.before in ("v1", "v2")


COHERE_EMBED = WireFormat(
    name="cohere_embed",
    provider="cohere",
    ends=("embed",),
    matches=_matches,
    error_shape=cohere_error,
    read=read_embed,
    answer=CohereEmbedAnswer,
    has_text_output=False,
)
