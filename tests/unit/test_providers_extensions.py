"""Wire formats: their names and paths, the unknown one, and those of other packages."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from extproc.core.errors import SettingsError
from extproc.providers import registry
from extproc.providers.answers import answer_reader
from extproc.providers.errors_shape import error_body
from extproc.providers.formats import BUILT_IN
from extproc.providers.formats.openai_chat import OPENAI_CHAT
from extproc.providers.registry import (
    Routes,
    format_named,
    load_extensions,
    provider_of,
    read_request,
    use_routes,
    wire_format_of,
)
from extproc.providers.requests import ReadLimits, RequestFacts, Unmetered
from extproc.providers.wire_formats import ANY_END, Route, Target, WireFormat

CHAT_BODY = b'{"model":"m","messages":[]}'
Install = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def built_in_again() -> Iterator[None]:
    yield
    use_routes(Routes(BUILT_IN))


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A package of somebody else: an entry point and the module behind it."""

    def write(module: str, code: str) -> None:
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        entry = f"[tokenweir.wire_formats]\n{module}_point = {module}:FORMATS\n"
        (info / "entry_points.txt").write_text(entry)
        (tmp_path / f"{module}.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)

    return write


OWN = """
from dataclasses import replace
from extproc.providers.formats.openai_chat import OPENAI_CHAT

def matches(target):
    return target.host == "llm.example"

FORMATS = replace(OPENAI_CHAT, name="acme_chat", provider="acme", ends=("generate", "completions"),
                  matches=matches, read=lambda body, limits, target: replace(
                      OPENAI_CHAT.read(body, limits, target), wire_format="acme_chat"))
"""


def read_at(path: str, host: str = "") -> RequestFacts | Unmetered:
    return read_request(
        path,
        CHAT_BODY,
        content_type=None,
        content_encoding=None,
        limits=ReadLimits(),
        host=host,
    )


def test_a_package_brings_its_own_format_and_is_asked_first(install: Install) -> None:
    install("acme_formats", OWN)
    known = "server_generate"
    assert read_at("/generate", "llm.example") == Unmetered(known, wire_format=known)
    load_extensions()
    facts = read_at("/generate", "LLM.example:443")
    assert isinstance(facts, RequestFacts)
    assert facts.wire_format == "acme_chat"
    assert provider_of("acme_chat") == "acme"
    theirs = read_at("/v1/chat/completions", "llm.example")
    ours = read_at("/v1/chat/completions", "api.openai.com")
    assert isinstance(theirs, RequestFacts)
    assert isinstance(ours, RequestFacts)
    assert (theirs.wire_format, ours.wire_format) == ("acme_chat", "openai_chat")


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("FORMATS = ['x']", "'x' is no WireFormat"),
        (OWN.replace("acme_chat", "openai_chat"), "'openai_chat' is taken"),
        (OWN.replace("acme_chat", "Acme Chat"), "'Acme Chat'"),
    ],
)
def test_a_broken_one_stops_the_start_with_its_name(
    install: Install, code: str, word: str, request: pytest.FixtureRequest
) -> None:
    module = f"broken_{request.node.callspec.indices['code']}"
    install(module, code)
    with pytest.raises(SettingsError) as caught:
        load_extensions()
    assert f"{module}_point" in str(caught.value)
    assert word in str(caught.value)


def test_every_name_is_its_own_and_every_end_in_lower_case() -> None:
    names = [route.name for route in BUILT_IN]
    assert len(names) == len(set(names))
    for route in BUILT_IN:
        assert all(end == end.lower() for end in route.ends)


def test_every_format_names_itself_in_its_facts() -> None:
    """What the handle says is what the answer is read by."""
    body = {
        "model": "m",
        "messages": [],
        "input": "x",
        "query": "x",
        "questions": [],
        "documents": ["y"],
        "url": "https://x",
    }
    for route in BUILT_IN:
        if isinstance(route, WireFormat) and route.provider in ("openai", "anthropic"):
            target = Target((), ())
            facts = route.read(dict(body), ReadLimits(), target)
            assert facts.wire_format == route.name
            assert format_named(route.name) is route


def test_a_format_of_another_release_is_read_as_openais() -> None:
    assert format_named("of_tomorrow") is OPENAI_CHAT
    assert provider_of("of_tomorrow") == "openai"
    reader = answer_reader(
        "of_tomorrow",
        content_type=None,
        content_encoding=None,
        hides_usage=False,
        encoding="o200k_base",
    )
    reader.feed(b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}', end=True)
    assert reader.usage.is_known


def test_verbs_behind_a_colon_and_any_end_are_found() -> None:
    def route(name: str, *ends: str) -> Route:
        return replace(OPENAI_CHAT, name=name, ends=ends, matches=lambda _: True)

    use_routes(Routes([route("verb", ":generate"), route("whole", "x:generate")]))
    assert wire_format_of("/models/abc:Generate") == "verb"
    assert wire_format_of("/models/x:generate") == "whole"
    assert wire_format_of("/models/generate:abc") is None
    use_routes(Routes([route("any", ANY_END)]))
    assert wire_format_of("/whatever") == "any"
    assert wire_format_of("/") is None


def test_long_paths_are_looked_up_but_not_kept() -> None:
    registry._cached_lookup.cache_clear()
    assert wire_format_of("/" + "x" * 10_000 + "/v1/messages") == "anthropic_messages"
    assert registry._cached_lookup.cache_info().currsize == 0


@pytest.mark.parametrize(
    ("path", "reason", "is_free"),
    [
        ("/v1/messages/count_tokens", "anthropic_count_tokens", True),
        ("/v1/messages/batches", "anthropic_batches", False),
        ("/v1/batches", "openai_batches", False),
        ("/v1/responses/input_tokens", "openai_input_tokens", True),
        ("/openai/v1/responses/input_tokens?api-version=1", "openai_input_tokens", True),
        ("/v1/input_tokens", "unknown_path", False),
        ("/v1/realtime/client_secrets", "openai_realtime", False),
        ("/v1/realtime/calls", "openai_realtime", False),
        ("/v1/nowhere", "unknown_path", False),
    ],
)
def test_known_paths_that_are_not_metered(path: str, reason: str, is_free: bool) -> None:
    unmetered = read_at(path)
    assert isinstance(unmetered, Unmetered)
    assert (unmetered.reason, unmetered.is_free) == (reason, is_free)
    if reason.startswith("anthropic"):
        assert provider_of(unmetered.wire_format) == "anthropic"
        assert b'"type": "error"' in error_body(path, status=403, code="x", message="y")
