"""Who a request was, as the note of its refusal tells it."""

import pytest

from extproc.core.policies import Descriptor, Scope
from extproc.core.subjects import MAX_BYTES, Subject, read_subject, subject_text


def of(**values: str) -> Descriptor:
    named = {Scope(name): value for name, value in values.items()}
    return Descriptor(root="acme", values=named, requested_model="m")


@pytest.mark.parametrize("is_priced", [True, False])
def test_what_is_told_comes_back(is_priced: bool) -> None:
    who = of(service="acme", user='zoë, "x" \udcff', provider="openai")
    text = subject_text(who, is_priced=is_priced)
    assert text.isascii()
    assert read_subject(text) == Subject(values=who.values, is_priced=is_priced)


def test_a_key_is_never_told() -> None:
    text = subject_text(of(user="eve", api_key="sk-secret"), is_priced=True)
    assert "secret" not in text
    assert read_subject(text) == Subject(values={Scope.USER: "eve"}, hidden=(Scope.API_KEY,))


def test_it_stays_small_whatever_clients_send() -> None:
    scopes = [scope for scope in Scope if scope is not Scope.MODEL]
    text = subject_text(of(**dict.fromkeys(scopes, "😀" * 256)), is_priced=False)
    assert len(text) <= MAX_BYTES
    assert read_subject(text) == Subject(hidden=tuple(read_subject(text).hidden), is_priced=False)
    assert set(read_subject(text).hidden) == set(scopes)
    one_long = read_subject(subject_text(of(user="u" * 256, agent="a" * 256), is_priced=True))
    assert one_long == Subject(values={Scope.AGENT: "a" * 256}, hidden=(Scope.USER,))


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"planet":"mars"}', '{"user":5}'])
def test_what_is_no_subject_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_subject(text)


def test_an_older_release_told_nothing() -> None:
    assert read_subject("") == Subject()
