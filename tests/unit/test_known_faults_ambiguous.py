"""AMBIG: faults that others reported about requests of which two readers make two things; see
docs/known-faults.md.

Each instance is among the recorded requests of test_providers_requests.py; these are of their kind.
"""

import json
from itertools import pairwise

import pytest

from extproc.core.errors import RequestError
from extproc.providers.answers import answer_reader
from extproc.providers.registry import read_request
from extproc.providers.requests import ReadLimits, RequestFacts
from tests.unit.test_known_faults_encode import REQUESTS

PATHS = pytest.mark.parametrize("path", REQUESTS)
CHAT = "/v1/chat/completions"


def read(path: str, body: bytes, content_type: str | None = "application/json") -> RequestFacts:
    facts = read_request(
        path, body, content_type=content_type, content_encoding=None, limits=ReadLimits()
    )
    assert isinstance(facts, RequestFacts)
    return facts


def refused(path: str, body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(path, body)
    return caught.value


def escaped(key: str) -> str:
    """The same name to whoever reads JSON, another one to whoever compares bytes."""
    return f"\\u{ord(key[0]):04x}{key[1:]}"


@PATHS
@pytest.mark.parametrize("spell", [str, escaped, str.upper, str.title, str.swapcase])
@pytest.mark.parametrize("first", [True, False])
def test_a_field_that_occurs_twice_is_refused_in_any_spelling(
    path: str, spell: object, first: bool
) -> None:
    """B103, B104: escaped, and in another case, which readers in Go take for the same."""
    assert callable(spell)
    body = REQUESTS[path]("Say hi")
    plain = json.dumps(body)
    assert read(path, plain.encode()).input_tokens > 0
    for key in body:
        again = f'"{spell(key)}":null'
        twice = "{" + again + "," + plain[1:] if first else plain[:-1] + "," + again + "}"
        error = refused(path, twice.encode())
        assert (error.status, error.code) == (400, "duplicate_key")
        assert str(error.param).lower() == key.lower()


def test_names_of_the_client_itself_may_differ_in_case() -> None:
    """Schemas and arguments are no fields of ours."""
    schema = {"properties": {"id": {}, "ID": {}, "Id": {}}, "type": "object"}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    body = {"model": "m", "messages": [], "tools": tools, "metadata": {"a": "1", "A": "2"}}
    assert read(CHAT, json.dumps(body).encode()).model == "m"


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[],"stream":true,"stream":false}',
        b'{"model":"m","messages":[],"stream_options":{"include_usage":true,"include_usage":false}}',
        b'{"model":"m","messages":[{"role":"user","content":"a","content":"b"}]}',
        b'{"model":"m","messages":[],"tools":[{"function":{"name":"a","n\\u0061me":"b"}}]}',
        b'{"model":"m","messages":[],"max_tokens":10,"max_tokens":100000}',
        b'{"model":"m","messages":[],"max_tokens":10,"max_tokens":10}',
        b'{"model":"m","messages":[]}{"model":"n","messages":[]}',
        b'{"model":"m","messages":[]}\x00',
        b'{"model":"m","messages":[],}',
        b'{"model":"m",/* "model":"n", */"messages":[]}',
        b"{'model':'m','messages':[]}",
        b'{"model":"m","messages":[],"max_tokens":0x10}',
        b'{"model":"m","messages":[],"max_tokens":+10}',
        b'{"model":"m","messages":[],"max_tokens":010}',
        b'{"model":"m","messages":[],"max_tokens":"10"}',
        b'{"model":"m","messages":[],"max_tokens":1e1}',
    ],
)
def test_what_two_parsers_read_differently_is_refused(body: bytes) -> None:
    """B104 and siblings: twice at any depth, two documents, what only some parsers take."""
    assert refused(CHAT, body).status == 400


@PATHS
@pytest.mark.parametrize(
    "label",
    [
        None,
        "",
        "text/plain",
        "Application/JSON",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=UTF-8",
        "\x00",
    ],
)
def test_a_label_hides_no_request(path: str, label: str | None) -> None:
    """B105: JSON under any type is counted."""
    body = json.dumps(REQUESTS[path]("Say hi")).encode()
    assert read(path, body, label) == read(path, body)


@pytest.mark.parametrize("verb", ["generateContent", "streamGenerateContent"])
@pytest.mark.parametrize(
    "spelling", [":{}", "%3A{}", "%3a{}", ":{}/", ":{}?alt=sse", ":{}?alt=json&key=x"]
)
@pytest.mark.parametrize("prefix", ["/v1beta/", "/v1/", "/v1beta//", "/gemini/v1beta/./"])
def test_the_path_of_gemini_says_model_and_stream(verb: str, spelling: str, prefix: str) -> None:
    """B106: whatever the body says about them."""
    body = b'{"contents":[{"parts":[{"text":"Say hi"}]}],"model":"other","stream":false}'
    facts = read(f"{prefix}models/gemini-2.5-pro{spelling.format(verb)}", body)
    assert facts.model == "gemini-2.5-pro"
    assert facts.stream is (verb == "streamGenerateContent")


ARNS = [
    "arn:aws:bedrock:eu-west-1:1:inference-profile/eu.m",
    "arn:aws:bedrock:eu-west-1:1:inference-profile%2Feu.m",
    "arn%3Aaws%3Abedrock%3Aeu-west-1%3A1%3Ainference-profile%2Feu.m",
    "arn%3aaws%3abedrock%3aeu-west-1%3a1%3ainference-profile%2feu.m",
    "arn%3Aaws:bedrock%3Aeu-west-1:1:inference-profile/eu.m",
    "%61rn:aws:bedrock:eu-west-1:1:inference-profile/eu%2Em",
]


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("converse", b'{"messages":[{"role":"user","content":[{"text":"hi"}]}]}'),
        ("converse-stream", b'{"messages":[{"role":"user","content":[{"text":"hi"}]}]}'),
        ("invoke", b'{"inputText":"hi"}'),
        ("invoke-with-response-stream", b'{"inputText":"hi"}'),
    ],
)
def test_one_model_has_one_name_and_so_one_limit(operation: str, body: bytes) -> None:
    """B107: a slash, escapes of either case, and escapes of what needs none."""
    names = {read(f"/model/{arn}/{operation}", body).model for arn in ARNS}
    assert names == {ARNS[0]}


def sse(*values: object) -> list[bytes]:
    return [b"data: " + json.dumps(value).encode() + b"\n\n" for value in values]


@pytest.mark.parametrize(
    "options", ["absent", None, {}, {"include_usage": False}, {"include_usage": None}]
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_usage_that_was_not_asked_for_never_reaches_the_client(path: str, options: object) -> None:
    """B108: we ask, we read, we take the event out; each event that stays has a choice."""
    body: dict[str, object] = {"model": "m", "messages": [], "prompt": "x", "stream": True}
    if options != "absent":
        body["stream_options"] = options
    facts = read(path, json.dumps(body).encode())
    assert facts.hides_usage
    assert facts.new_body is not None
    sent = json.loads(facts.new_body)
    assert sent.pop("stream_options")["include_usage"] is True
    assert sent == {key: value for key, value in body.items() if key != "stream_options"}
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    events = sse({"choices": [{"index": 0, "delta": {"content": "hi"}, "text": "hi"}]})
    events += [*sse({"choices": [], "usage": usage}), b"data: [DONE]\n\n"]
    stream = b"".join(events)
    for cuts in ([0, len(stream)], [*range(0, len(stream), 5), len(stream)]):
        reader = answer_reader(
            facts.wire_format,
            content_type="text/event-stream",
            content_encoding=None,
            hides_usage=True,
            encoding="o200k_base",
        )
        out = b""
        for start, end in pairwise(cuts):
            piece = stream[start:end]
            replaced = reader.feed(piece, end=end == len(stream))
            out += piece if replaced is None else replaced
        assert out == events[0] + events[2]
        assert (reader.usage.input_tokens, reader.usage.output_tokens) == (3, 1)


def test_usage_that_was_asked_for_stays() -> None:
    body = {"model": "m", "messages": [], "stream": True}
    facts = read(CHAT, json.dumps({**body, "stream_options": {"include_usage": True}}).encode())
    assert (facts.new_body, facts.hides_usage) == (None, False)
