"""OpenAI's audio: transcriptions and translations (forms), speech.

whisper-1 is billed by the second and speech without events reports nothing: what they really took
goes into the journal all the same, sound as ten tokens a second.
"""

import base64
import io
import wave
from collections.abc import Iterator
from typing import Any

from extproc.demo.fake_answers import Frame, as_json
from extproc.demo.fake_apis.api import Call, Job
from extproc.demo.fake_apis.forms import read_fields
from extproc.demo.fake_apis.openai_shared import openai_api, sse
from extproc.demo.fake_orders import OrderError, json_object, required
from extproc.demo.fake_tokens import count, encoding_of, words
from extproc.demo.provider_script import Script

_TOKENS_PER_SECOND = 10
_BYTES_PER_SECOND = 4000
_SOUND = b"ID3\x04" + bytes(range(256)) * 8
_TEXT_TYPES = {"text": "text/plain", "srt": "text/plain", "vtt": "text/vtt"}


def _seconds(data: bytes) -> float:
    try:
        with wave.open(io.BytesIO(data)) as sound:
            return float(sound.getnframes() / sound.getframerate())
    except (wave.Error, EOFError):
        return len(data) / _BYTES_PER_SECOND


def _read(call: Call, script: Script) -> Job:
    fields = read_fields(call)
    model = call.match.get("model") or required(fields, "model", str)
    file = fields.get("file")
    if not isinstance(file, bytes):
        raise OrderError("Missing required parameter: 'file'.", param="file")
    seconds = _seconds(file)
    prompt = count(str(fields.get("prompt", "")), encoding_of(model))
    sound = -(-int(seconds * 1000) * _TOKENS_PER_SECOND // 1000)
    by_time = "whisper" in model
    shape = str(fields.get("response_format") or "json")
    return Job(
        model=model,
        stream=fields.get("stream") == "true" and not by_time,
        input_tokens=sound + prompt if script.input is None else script.input,
        output_tokens=script.output,
        details={"seconds": seconds, "prompt": prompt, "by_time": by_time, "format": shape},
        content_type=_TEXT_TYPES.get(shape),
    )


def _usage(job: Job, script: Script) -> dict[str, Any] | None:
    if script.usage in ("none", "null"):
        return None
    if job.details["by_time"]:
        return {"type": "duration", "seconds": job.details["seconds"]}
    prompt = job.details["prompt"]
    return {
        "type": "tokens",
        "input_tokens": job.input_tokens,
        "input_token_details": {"audio_tokens": job.input_tokens - prompt, "text_tokens": prompt},
        "output_tokens": job.output_tokens,
        "total_tokens": job.input_tokens + job.output_tokens,
    }


def _plain(job: Job, script: Script, number: int) -> Frame:
    del number
    text = "".join(words(job.output_tokens))
    shape = job.details["format"]
    if shape == "text":
        return Frame(text.encode() + b"\n", job.output_tokens)
    if shape in _TEXT_TYPES:
        return Frame(f"WEBVTT\n\n00:00.000 --> 00:01.000\n{text}\n".encode(), job.output_tokens)
    body: dict[str, Any] = {"text": text}
    if shape == "verbose_json":
        span = {"start": 0.0, "end": job.details["seconds"], "text": text}
        body |= {"task": "transcribe", "language": "english", "segments": [{"id": 0, **span}]}
        body["duration"] = job.details["seconds"]
    usage = _usage(job, script)
    if usage is not None:
        body["usage"] = usage
    return Frame(as_json(body), job.output_tokens, usage is not None)


def _stream(job: Job, script: Script, number: int) -> Iterator[Frame]:
    del number
    for word in words(job.output_tokens):
        yield sse({"type": "transcript.text.delta", "delta": word}, tokens=1)
    done: dict[str, Any] = {
        "type": "transcript.text.done",
        "text": "".join(words(job.output_tokens)),
    }
    usage = _usage(job, script)
    if usage is not None:
        done["usage"] = usage
    yield sse(done, has_usage=usage is not None)


def _read_speech(call: Call, script: Script) -> Job:
    body = json_object(call.body)
    model = call.match.get("model") or required(body, "model", str)
    encoding = encoding_of(model)
    text = count(required(body, "input", str), encoding)
    text += count(str(body.get("instructions", "")), encoding)
    return Job(
        model=model,
        stream=body.get("stream_format") == "sse",
        input_tokens=text if script.input is None else script.input,
        output_tokens=script.output,
    )


def _sound(job: Job, script: Script, number: int) -> Frame:
    del script, number
    return Frame(_SOUND, job.output_tokens)


def _sound_events(job: Job, script: Script, number: int) -> Iterator[Frame]:
    del number
    piece = base64.b64encode(_SOUND[:96]).decode()
    for _ in range(job.output_tokens):
        yield sse({"type": "speech.audio.delta", "audio": piece}, tokens=1)
    done: dict[str, Any] = {"type": "speech.audio.done"}
    reports = script.usage not in ("none", "null")
    if reports:
        total = job.input_tokens + job.output_tokens
        done["usage"] = {
            "input_tokens": job.input_tokens,
            "output_tokens": job.output_tokens,
            "total_tokens": total,
        }
    yield sse(done, has_usage=reports)


APIS = tuple(
    api
    for base in ("/v1", "/openai/deployments/{model}")
    for api in (
        openai_api(
            name="openai_transcriptions",
            pattern=f"{base}/audio/transcriptions",
            read=_read,
            plain=_plain,
            stream=_stream,
        ),
        openai_api(
            name="openai_translations",
            pattern=f"{base}/audio/translations",
            read=_read,
            plain=_plain,
        ),
        openai_api(
            name="openai_speech",
            pattern=f"{base}/audio/speech",
            read=_read_speech,
            plain=_sound,
            stream=_sound_events,
            plain_type="audio/mpeg",
        ),
    )
)
