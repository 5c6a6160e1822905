"""Every format's requests and answers, made hostile: what ``make fuzz`` does, in short."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extproc.providers.requests import RequestFacts
from tests.fuzz.answer_seeds import answer_seeds
from tests.fuzz.cases import (
    NAMES,
    AnswerCase,
    RequestCase,
    answer_case,
    request_case,
    text_case,
)
from tests.fuzz.choices import Choices
from tests.fuzz.oracles import check_answer, check_request, check_text, warm_up
from tests.fuzz.request_seeds import request_seeds

SHORT = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
)
INPUTS = st.binary(min_size=24, max_size=300)


@pytest.fixture(scope="module", autouse=True)
def tables() -> None:
    """Loaded before the first case, whose time is looked at."""
    warm_up()


@pytest.mark.parametrize("name", NAMES)
def test_every_format_has_a_request_to_begin_with(name: str) -> None:
    found = [check_request(RequestCase(name, seed, None)) for seed in request_seeds()[name]]
    facts = [one for one in found if isinstance(one, RequestFacts)]
    assert facts
    assert {one.wire_format for one in facts} == {name}


@pytest.mark.parametrize("name", NAMES)
def test_every_format_has_an_answer_to_begin_with(name: str) -> None:
    seeds = answer_seeds()[name]
    usages = [
        check_answer(
            AnswerCase(
                name, [seed.body], seed.content_type, seed.content_encoding, hides_usage=False
            )
        )
        for seed in seeds
    ]
    is_known = any(usage.is_known for usage in usages)
    # Reranking is billed by the call, and reports no output where it reports tokens at all.
    assert is_known or any(usage.server_tool_calls for usage in usages)


@pytest.mark.parametrize("name", NAMES)
@SHORT
@given(data=INPUTS)
def test_hostile_requests_of_every_format(name: str, data: bytes) -> None:
    check_request(request_case(name, Choices(data)))


@pytest.mark.parametrize("name", NAMES)
@SHORT
@given(data=INPUTS)
def test_hostile_answers_of_every_format(name: str, data: bytes) -> None:
    check_answer(answer_case(name, Choices(data)))


@pytest.mark.parametrize("name", NAMES)
def test_every_formats_bytes_to_every_other_reader(name: str) -> None:
    for other in NAMES:
        for seed in answer_seeds()[other][:2]:
            half = len(seed.body) // 2
            for content_type in (seed.content_type, None):
                chunks = [seed.body[:half], seed.body[half:]]
                check_answer(
                    AnswerCase(name, chunks, content_type, seed.content_encoding, hides_usage=True)
                )


@SHORT
@given(data=st.binary(max_size=80))
def test_hostile_texts_are_counted_alike(data: bytes) -> None:
    check_text(text_case(Choices(data)))
