"""OpenAI's audio: transcription and translation (forms), speech.

After OpenAI's API reference (Audio) and, for what a second of sound costs, its documented 10 input
tokens a second.
"""

import struct

from extproc.core.usage import Usage
from extproc.providers.counting import Counter
from extproc.providers.fields import flag, model_of, wrong
from extproc.providers.json_answer import child
from extproc.providers.multipart import FormFile
from extproc.providers.openai_usage import ReportedAnswer
from extproc.providers.paths import has_api_prefix
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.sse import SseEvent
from extproc.providers.tally import TextTally
from extproc.providers.tokens import encoding_for
from extproc.providers.wire_formats import Target, WireFormat

TOKENS_PER_SECOND = 10
# MP3 with 32 kbit/s, the least that speech is sent with: no shorter file holds more sound.
_LEAST_BYTES_PER_SECOND = 4000
# A RIFF/WAVE header up to its format: tags and sizes, codec, channels, samples a second, bytes a
# second, bytes a frame, bits a sample. Codec 1 is PCM, 0xFFFE the same with more about channels.
_WAVE = struct.Struct("<4s4x4s4s4xHHIIHH")
_PCM = (1, 0xFFFE)
# Where sound is given by an address its length is not known: a minute.
_UNKNOWN_SECONDS = 60
# gpt-4o-mini-tts: 20 tokens a second of speech (0.015 dollars a minute at 12 dollars a million,
# OpenAI's pricing page), and some 3 tokens of text are spoken in a second; with room for pauses.
_SPEECH_TOKENS_PER_TOKEN = 10


def read_transcription(body: JsonObject, limits: ReadLimits, _target: Target) -> RequestFacts:
    """``POST /v1/audio/transcriptions`` and ``/translations``.

    Nobody speaks more tokens in a second than the sound itself takes, so that is the cap.
    """
    model = model_of(body)
    stream = body.get("stream")
    if isinstance(stream, str):  # a form has texts only
        stream = {"true": True, "1": True, "false": False, "0": False, "": None}.get(
            stream.strip().lower(), stream
        )
    file = body.get("file")
    if isinstance(file, FormFile):
        seconds = _seconds(file)
    elif isinstance(file, str) or isinstance(body.get("url"), str):
        seconds = _UNKNOWN_SECONDS
    else:
        raise wrong("file", "a file")
    prompt = body.get("prompt")
    if prompt is not None and not isinstance(prompt, str):
        raise wrong("prompt", "a string")
    encoding = encoding_for(model)
    counter = Counter(encoding)
    sound = counter.media("audio", min(seconds * TOKENS_PER_SECOND, limits.max_output_tokens))
    return RequestFacts(
        wire_format="openai_transcription",
        model=model,
        stream=flag({"stream": stream}, "stream"),
        input_tokens=sound + counter.text(prompt or ""),
        output_cap_tokens=sound,
        choices=1,
        encoding=encoding,
        parts=counter.parts,
        media_tokens=counter.media_tokens,
    )


def _seconds(file: FormFile) -> int:
    """At most so long is the sound of a file, at least a second."""
    rate = _LEAST_BYTES_PER_SECOND
    if len(file.data) >= _WAVE.size:
        riff, kind, part, codec, channels, samples, _, _, bits = _WAVE.unpack_from(file.data)
        if (riff, kind, part) == (b"RIFF", b"WAVE", b"fmt ") and codec in _PCM:
            # From the fields that a decoder goes by, so a lie is one to the provider too.
            rate = max(channels * samples * bits // 8, rate)
    return max(1, -(-len(file.data) // rate))


class TranscriptionAnswer(ReportedAnswer):
    """Text with usage in tokens; or in seconds (whisper-1), which are no tokens: not reported."""

    def take_event(self, event: SseEvent) -> None:
        value = event.value
        if value is None:
            self._done = self._done or event.done
            return
        kind = value.get("type")
        if kind == "transcript.text.delta":
            self._add("", value.get("delta"))
        elif kind == "transcript.text.done":
            self._done = True
            self._take_whole(value)
        elif kind == "error" or event.name == "error" or value.get("error"):
            self.error = True
        else:
            self._take_report(value)

    def take_json(self, value: JsonObject) -> None:
        if value.get("error"):
            self.error = True
        self._take_whole(value)

    def _take_whole(self, value: JsonObject) -> None:
        if not self.saw_output:
            self._add("", value.get("text"))
        self._take_report(value)

    def _take_report(self, value: JsonObject) -> None:
        report = child(value, "usage")
        if report is not None:
            self._take_usage(report)


def read_speech(body: JsonObject, limits: ReadLimits, _target: Target) -> RequestFacts:
    """``POST /v1/audio/speech``: text in, sound out."""
    model = model_of(body)
    text = body.get("input")
    if not isinstance(text, str):
        raise wrong("input", "a string")
    instructions = body.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise wrong("instructions", "a string")
    encoding = encoding_for(model)
    counter = Counter(encoding)
    spoken = counter.text(text)
    return RequestFacts(
        wire_format="openai_speech",
        model=model,
        stream=body.get("stream_format") == "sse",
        input_tokens=spoken + counter.text(instructions or ""),
        output_cap_tokens=min(spoken * _SPEECH_TOKENS_PER_TOKEN, limits.max_output_tokens),
        choices=1,
        encoding=encoding,
        reserves_cap=True,
        parts=counter.parts,
    )


class SpeechAnswer(ReportedAnswer):
    """Sound: usage comes with the last event of a stream; else the reserve stands."""

    def __init__(self, tally: TextTally) -> None:
        super().__init__(tally)
        self._has_sound = False

    @property
    def unread(self) -> bool:
        return self._has_sound and not self._usage.is_known

    def take_event(self, event: SseEvent) -> None:
        value = event.value
        if value is None:
            self._done = self._done or event.done
            return
        kind = value.get("type")
        if kind == "speech.audio.delta":
            self.saw_output = self._has_sound = True
        elif kind == "speech.audio.done":
            self._done = True
        elif kind == "error" or event.name == "error" or value.get("error"):
            self.error = True
        self._take_report(value)

    def take_json(self, value: JsonObject) -> None:
        """Some servers answer with the sound in base64."""
        if value.get("error"):
            self.error = True
        elif value:
            self.saw_output = self._has_sound = True
        self._take_report(value)

    def _take_report(self, value: JsonObject) -> None:
        report = child(value, "usage")
        if report is not None:
            self._take_usage(report)
            produced = self._usage.output_tokens
            self._usage = self._usage.merged(Usage(audio_output_tokens=produced))


def _matches(target: Target) -> bool:
    return target.before == "audio" and has_api_prefix(target, words=2)


OPENAI_TRANSCRIPTION = WireFormat(
    name="openai_transcription",
    provider="openai",
    ends=("transcriptions", "translations"),
    matches=_matches,
    read=read_transcription,
    answer=TranscriptionAnswer,
    takes_forms=True,
    plain_answer="text",  # response_format text, srt, vtt
)
OPENAI_SPEECH = WireFormat(
    name="openai_speech",
    provider="openai",
    ends=("speech",),
    matches=_matches,
    read=read_speech,
    answer=SpeechAnswer,
    has_text_output=False,
    plain_answer="binary",
)
