"""OpenAI's images: generations, edits and variations; JSON or form, streamed or not.

DALL-E's pictures are billed by the piece: they have no tokens, and nothing is reported of them.
"""

from collections.abc import Callable, Iterator
from typing import Any

from extproc.demo.fake_answers import Frame, as_json
from extproc.demo.fake_apis.api import Call, Job
from extproc.demo.fake_apis.forms import read_fields
from extproc.demo.fake_apis.openai_shared import CREATED, openai_api, sse
from extproc.demo.fake_orders import OrderError
from extproc.demo.fake_tokens import count
from extproc.demo.provider_script import Script

# OpenAI's guide on image generation, 1024 x 1024.
_TOKENS = {"low": 272, "medium": 1056, "high": 4160}
_PARTIAL_TOKENS = 100
_PICTURE_IN = 323
_SVG_IN, _SVG_OUT = 90, 400
_PICTURE = "iVBORw0KGgo="


def _read(call: Call, script: Script) -> Job:
    fields = read_fields(call)
    model = str(fields.get("model") or "gpt-image-1")
    prompt = fields.get("prompt", "")
    sources = fields.get("image") or ()
    if not prompt and not sources:
        raise OrderError("Missing required parameter: 'prompt'.", param="prompt")
    sources = sources if isinstance(sources, list | tuple) else [sources]
    quality = str(fields.get("quality") or "high")
    has_tokens = not model.startswith("dall-e")
    written, pictures = count(prompt, "o200k_base"), len(sources) * _PICTURE_IN
    is_svg = fields.get("output_format") == "svg"
    counted = written + pictures if script.input is None else script.input
    return Job(
        model=model,
        stream=str(fields.get("stream", "")).lower() == "true",
        input_tokens=counted + (_SVG_IN if is_svg else 0) if has_tokens else 0,
        output_tokens=_TOKENS.get(quality, _TOKENS["high"]) if has_tokens else 0,
        choices=int(fields.get("n") or 1),
        details={
            "own_input": counted,
            "pictures": pictures,
            "quality": quality,
            "is_svg": is_svg,
            "has_tokens": has_tokens,
            "partial": int(fields.get("partial_images") or 0),
        },
    )


def _usage(job: Job, script: Script, produced: int) -> dict[str, Any] | None:
    if not job.details["has_tokens"] or script.usage in ("none", "null"):
        return None
    given = 0 if script.usage == "zero" else job.details["own_input"]
    produced = 0 if script.usage == "zero" else produced
    pictures = min(given, job.details["pictures"])
    return {
        "input_tokens": given,
        "input_tokens_details": {"image_tokens": pictures, "text_tokens": given - pictures},
        "output_tokens": produced,
        "total_tokens": given + produced,
    }


def _plain(job: Job, script: Script, number: int) -> Frame:
    del number
    pictures = job.output_tokens * job.choices
    body: dict[str, Any] = {
        "created": CREATED,
        "data": [{"b64_json": _PICTURE} for _ in range(job.choices)],
    }
    usage = _usage(job, script, pictures)
    if usage is not None:
        body["usage"] = usage
    svg = _SVG_OUT if job.details["is_svg"] else 0
    if svg:
        body["svg_usage"] = {
            "model": "gpt-5.6",
            "input_tokens": _SVG_IN,
            "output_tokens": svg,
            "reasoning_tokens": svg // 4,
            "total_tokens": _SVG_IN + svg,
        }
    return Frame(as_json(body), pictures + svg, usage is not None)


def _stream(prefix: str) -> Callable[[Job, Script, int], Iterator[Frame]]:
    def frames(job: Job, script: Script, number: int) -> Iterator[Frame]:
        del number
        look = {
            "b64_json": _PICTURE,
            "created_at": CREATED,
            "background": "opaque",
            "output_format": "png",
            "quality": job.details["quality"],
            "size": "1024x1024",
        }
        partial = job.details["partial"]
        for index in range(partial):
            event = {"type": f"{prefix}.partial_image", "partial_image_index": index, **look}
            yield sse(event, tokens=_PARTIAL_TOKENS)
        usage = _usage(job, script, job.output_tokens + partial * _PARTIAL_TOKENS)
        event = {"type": f"{prefix}.completed", **look}
        event |= {} if usage is None else {"usage": usage}
        yield sse(event, tokens=job.output_tokens, has_usage=usage is not None)

    return frames


APIS = tuple(
    openai_api(
        name=f"openai_images_{kind}",
        pattern=f"{base}/images/{kind}",
        read=_read,
        plain=_plain,
        stream=_stream("image_edit" if kind == "edits" else "image_generation"),
    )
    for base in ("/v1", "/openai/deployments/{model}")
    for kind in ("generations", "edits", "variations")
)
