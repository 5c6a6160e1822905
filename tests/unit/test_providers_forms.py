"""Multipart forms: read as an object, bounded, and refused where parsers could disagree."""

import time
import wave
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.errors import RequestError
from extproc.providers.multipart import FormFile, read_form
from extproc.providers.registry import read_request
from extproc.providers.requests import ReadLimits, RequestFacts

TRANSCRIPTIONS, EDITS = "/v1/audio/transcriptions", "/v1/images/edits"
TYPE = "multipart/form-data; boundary=XyZ"
LIMITS = ReadLimits()


def form(*parts: tuple[str, bytes], end: bytes = b"--XyZ--\r\n") -> bytes:
    """Parts by what stands in their disposition after "form-data"."""
    return (
        b"".join(
            b"--XyZ\r\nContent-Disposition: form-data; " + head.encode() + b"\r\n\r\n" + data
            + b"\r\n"
            for head, data in parts
        )
        + end
    )  # fmt: skip


def fields(body: bytes, content_type: str = TYPE) -> dict[str, Any]:
    return read_form(body, None, content_type=content_type, limits=LIMITS)


def sound(seconds: float) -> bytes:
    buffer = BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(bytes(int(seconds * 32_000)))
    return buffer.getvalue()


def read(path: str, body: bytes, content_type: str = TYPE) -> RequestFacts:
    facts = read_request(
        path, body, content_type=content_type, content_encoding=None, limits=LIMITS
    )
    assert isinstance(facts, RequestFacts)
    return facts


def refused(body: bytes, path: str = TRANSCRIPTIONS, content_type: str = TYPE) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(path, body, content_type)
    return caught.value


def test_fields_files_and_lists() -> None:
    body = b"preamble\r\n" + form(
        ('name="model"', b"whisper-1"),
        ('name="file"; filename="a.mp3"', b"\x00\r\n--Xy\r\n\xff"),
        ('name="include[]"', b"logprobs"),
        ('name="empty"', b""),
    )
    found = fields(body)
    file = found.pop("file")
    assert found == {"model": "whisper-1", "include": ["logprobs"], "empty": ""}
    assert isinstance(file, FormFile)
    assert (file.filename, bytes(file.data)) == ("a.mp3", b"\x00\r\n--Xy\r\n\xff")


@pytest.mark.parametrize(
    "content_type",
    ['multipart/form-data; boundary="XyZ"', "Multipart/Form-Data;charset=utf-8;Boundary=XyZ"],
)
def test_boundaries_are_read_in_each_spelling(content_type: str) -> None:
    body = form(('name="model"', b"m"), ('name="file"; filename="x"', b"abc"))
    assert read(TRANSCRIPTIONS, body, content_type).model == "m"


def test_the_length_of_sound_is_read_from_a_wave_file() -> None:
    body = form(('name="model"', b"whisper-1"), ('name="file"; filename="x"', sound(30)))
    facts = read(TRANSCRIPTIONS, body)
    assert facts.input_tokens in (300, 310)  # the header takes part of a second
    assert facts.output_cap_tokens == facts.input_tokens
    assert facts.new_body is None
    spoken = form(
        ('name="model"', b"m"),
        ('name="prompt"', b"one two three"),
        ('name="stream"', b"true"),
        ('name="file"; filename="x"', bytes(40_000)),  # ten seconds of the poorest MP3
    )
    facts = read(TRANSCRIPTIONS, spoken)
    assert facts.stream
    assert facts.input_tokens == 103


def test_a_wave_headers_hint_of_its_rate_is_not_believed() -> None:
    def tokens(data: bytes) -> int:
        body = form(('name="model"', b"m"), ('name="file"; filename="x"', data))
        return read(TRANSCRIPTIONS, body).input_tokens

    whole = sound(30)
    for rate in (b"\xff\xff\xff\xff", b"\x01\x00\x00\x00", bytes(4)):
        assert tokens(whole[:28] + rate + whole[32:]) == tokens(whole)
    # Another codec in the same wrapping: as poor as MP3 can be.
    assert tokens(whole[:20] + b"\x11\x00" + whole[22:]) == -(-len(whole) // 4000) * 10


def test_pictures_to_edit_are_counted() -> None:
    picture = 'name="image[]"; filename="x.png"'
    body = form(
        ('name="model"', b"gpt-image-1"),
        ('name="prompt"', b"one two three"),
        ('name="n"', b"2"),
        ('name="quality"', b"low"),
        (picture, b"a"),
        (picture, b"b"),
        ('name="mask"; filename="m.png"', b"c"),
    )
    facts = read(EDITS, body)
    assert facts.input_tokens == 3 + 3 * 600
    assert facts.output_cap_tokens == 2 * 450
    assert facts.choices == 2


def test_azures_deployment_is_the_model_of_a_form() -> None:
    body = form(('name="file"; filename="x"', b"a"), ('name="model"', b"cheap"))
    path = "/openai/deployments/whisper/audio/transcriptions?api-version=2024-10-21"
    assert read(path, body).model == "whisper"


MODEL = ('name="model"', b"m")
FILE = ('name="file"; filename="x"', b"a")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"--XyZ--",
        form(MODEL, FILE, end=b""),
        form(MODEL, FILE, end=b"--XyZ"),
        form(MODEL, FILE, ('name="model"', b"other")),
        form(MODEL, FILE, ("name*=utf-8''model", b"other")),
        form(FILE, ('name="model"; name="user"', b"m")),
        form(FILE, ('name="mo\\"del"', b"m")),
        form(FILE, ('name="model"', b"\xff")),
        form(FILE, ('name=""', b"m")),
        form(MODEL, FILE).replace(b"\r\n", b"\n"),
        form(MODEL, FILE, ('name="stream"', b"perhaps")),
        form(MODEL, ('name="file"', b"text")).replace(b"form-data;", b"attachment;"),
        form(MODEL, FILE).replace(
            b'name="model"', b'name="model"\r\nContent-Transfer-Encoding: base64'
        ),
        form(MODEL, FILE).replace(b"\r\n\r\n", b"\r\n" + b"x-a: b\r\n" * 2000 + b"\r\n", 1),
        form(MODEL, FILE, *((f'name="x{at}"', b"") for at in range(300))),
        form(MODEL),
        form(FILE),
    ],
    ids=lambda body: body[-60:].hex()[:20] or "empty",
)
def test_what_two_parsers_could_read_differently_is_refused(body: bytes) -> None:
    error = refused(body)
    assert error.status == 400
    assert error.message


def test_a_form_without_boundary_or_too_large_is_refused() -> None:
    assert refused(form(MODEL, FILE), content_type="multipart/form-data").status == 400
    with pytest.raises(RequestError) as caught:
        read_form(bytes(2000), None, content_type=TYPE, limits=ReadLimits(max_decoded_bytes=1000))
    assert caught.value.status == 413


def test_only_formats_with_forms_read_them() -> None:
    assert refused(form(MODEL, FILE), path="/v1/chat/completions").code == "invalid_json"


def test_time_is_linear_in_the_bytes() -> None:
    almost = b"\r\n--Xy" * 2_000_000
    body = form(MODEL, ('name="file"; filename="x"', almost))
    started = time.process_time()
    assert len(fields(body)["file"].data) == len(almost)
    assert time.process_time() - started < 1


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(
        st.sampled_from(
            [
                b"--XyZ",
                b"--",
                b"\r\n",
                b"\r",
                b"\n",
                b"Content-Disposition: form-data",
                b"; ",
                b'name="model"',
                b"name*=x",
                b'filename="f"',
                b":",
                b"\x00",
                b"\xff",
                b"abc",
                b"\\",
            ]
        ),
        max_size=40,
    ).map(b"".join)
    | st.binary(max_size=100)
)
def test_any_bytes_are_a_form_or_refused(body: bytes) -> None:
    for whole in (body, b"--XyZ\r\n" + body + b"\r\n--XyZ--"):
        try:
            fields(whole)
        except RequestError as error:
            if error.status != 400:
                raise
