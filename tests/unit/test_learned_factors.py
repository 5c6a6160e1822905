"""Learned factors: slow, bounded, by model; in the estimate of a request and from its answer."""

import json
from dataclasses import replace
from typing import Any

import pytest

from extproc.core.learned_factors import LEAST, MOST, LearnedFactors, merged
from extproc.core.usage import Usage
from extproc.envoy_io.metering import Metering
from extproc.providers.counting import compact
from extproc.providers.input_correction import corrected_input, learn_from
from extproc.providers.registry import read_request
from extproc.providers.requests import ReadLimits, RequestFacts
from tests.support.admission import Bench as AdmissionBench
from tests.support.admission import handle_in, message
from tests.support.streams import MemoryContext
from tests.unit.test_metering import ANSWER, HANDLE, body, headers
from tests.unit.test_metering import Bench as MeteringBench

LONG: dict[str, Any] = {
    "model": "gpt-4o",
    "messages": [{"role": "user", "content": "some words " * 100}],
}


def taught(ratio: float, *, answers: int = 500, model: str = "gpt-4o") -> LearnedFactors:
    learned = LearnedFactors()
    for _ in range(answers):
        learned.learn("openai", model, estimated=1000, actual=round(1000 * ratio))
    return learned


def test_the_factor_goes_slowly_to_what_answers_say() -> None:
    assert LearnedFactors().permille("openai", "gpt-4o") == 1000
    assert taught(1.3).permille("openai", "gpt-4o") == 1300
    assert taught(0.8).permille("openai", "gpt-4o") == 800
    assert 1140 < taught(1.3, answers=35).permille("openai", "gpt-4o") < 1160
    learned = taught(1.3)
    assert learned.permille("openai", "gpt-4o-mini") == 1000
    assert learned.permille("anthropic", "gpt-4o") == 1000


@pytest.mark.parametrize("actual", [0, 1, 240, 500, 2000, 3999, 4001, 10**15])
def test_one_odd_answer_hardly_moves_it(actual: int) -> None:
    learned = taught(1.0, answers=3)
    learned.learn("openai", "gpt-4o", estimated=1000, actual=actual)
    assert 990 <= learned.permille("openai", "gpt-4o") <= 1020


def test_it_stays_in_its_bounds_whatever_comes() -> None:
    assert taught(3.9, answers=5000).permille("openai", "gpt-4o") == MOST
    assert taught(0.26, answers=5000).permille("openai", "gpt-4o") == LEAST
    assert taught(50).permille("openai", "gpt-4o") == 1000  # no matter of tokenizers


def test_short_requests_and_names_that_are_none_teach_nothing() -> None:
    learned = LearnedFactors()
    learned.learn("openai", "gpt-4o", estimated=63, actual=90)
    learned.learn("openai", "gpt-4o", estimated=0, actual=90)
    for name in ("", "a b", "a|b", "ü", "x" * 129, "{a}", "-a", "a\n"):
        learned.learn("openai", name, estimated=1000, actual=1300)
    assert learned.all() == {}
    learned.learn("openai", "anthropic/claude-opus-4.7:beta@2", estimated=1000, actual=1300)
    assert len(learned.all()) == 1


def test_the_models_are_bounded_and_the_least_recently_used_goes() -> None:
    learned = LearnedFactors(max_models=3)
    for name in ("a", "b", "c", "a", "d"):
        learned.learn("openai", name, estimated=1000, actual=1300)
    assert {model for _, model in learned.all()} == {"c", "a", "d"}


def test_a_worker_that_saw_more_answers_has_more_to_say() -> None:
    assert merged(1500, 1, None) == 1500
    assert 1000 < merged(1500, 1, 1000) < 1020
    assert 1400 < merged(1500, 200, 1000) <= 1500


def test_what_is_learned_during_an_exchange_is_not_lost() -> None:
    learned = taught(1.2, answers=5)
    ((model, (permille, answers)),) = learned.fresh().items()
    learned.learn("openai", "gpt-4o", estimated=1000, actual=1200)
    learned.exchanged(model, permille, answers=answers)
    assert learned.fresh()[model][1] == 1
    learned.exchanged(model, 1100, answers=1)
    assert learned.fresh() == {}
    assert learned.permille(*model) == 1100
    for odd in (499, 2001, float("nan"), float("inf")):
        learned.exchanged(model, odd, answers=0)
    assert learned.permille(*model) == 1100


def read(path: str, content: dict[str, Any]) -> RequestFacts:
    facts = read_request(
        path,
        compact(content).encode(),
        content_type="application/json",
        content_encoding=None,
        limits=ReadLimits(),
    )
    assert isinstance(facts, RequestFacts)
    return facts


def test_the_factor_concerns_what_a_tokenizer_made() -> None:
    facts = read("/v1/chat/completions", LONG)
    assert corrected_input(None, facts) == (facts.input_tokens, 0)
    assert corrected_input(LearnedFactors(), facts) == (facts.input_tokens, 1000)
    tokens, permille = corrected_input(taught(1.5), facts)
    assert (tokens, permille) == (-(-facts.input_tokens * 3 // 2), 1500)
    picture = {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}}
    seen = read(
        "/v1/chat/completions", {**LONG, "messages": [{"role": "user", "content": [picture]}]}
    )
    text = seen.input_tokens - 765
    assert corrected_input(taught(1.5), seen) == (-(-text * 3 // 2) + 765, 0)


@pytest.mark.parametrize("field", ["previous_response_id", "conversation"])
def test_what_the_provider_remembers_teaches_nothing(field: str) -> None:
    facts = read("/v1/responses", {"model": "gpt-4o", "input": "x " * 200, field: "resp_1"})
    assert corrected_input(taught(1.5), facts)[1] == 0


def test_tools_of_the_provider_teach_nothing() -> None:
    handle = replace(HANDLE, input_tokens=1000, learned_permille=1000)
    learned = LearnedFactors()
    learn_from(learned, handle, Usage(input_tokens=1500, output_tokens=1, server_tool_calls=2))
    learn_from(learned, replace(handle, learned_permille=0), Usage(input_tokens=1500))
    learn_from(learned, handle, Usage(output_tokens=5))
    assert learned.all() == {}
    learn_from(learned, replace(handle, learned_permille=2000), Usage(input_tokens=500))
    assert learned.all() == {("openai", "gpt-4o"): 1000}  # of 500 tokens without the factor


async def test_admission_reserves_by_the_factor_and_says_so_in_the_handle() -> None:
    plain = handle_in(await AdmissionBench().ask(message(LONG)))
    learned = handle_in(await AdmissionBench(learned=taught(1.5)).ask(message(LONG)))
    assert (plain.learned_permille, learned.learned_permille) == (0, 1500)
    assert learned.input_tokens == -(-plain.input_tokens * 3 // 2)


@pytest.mark.parametrize(
    ("usage", "status", "permille"),
    [
        ({"prompt_tokens": 1500, "completion_tokens": 2}, "200", 1010),
        ({"prompt_tokens": 1500}, "200", None),
        ({"prompt_tokens": 1500, "completion_tokens": 2}, "500", None),
        ({}, "200", None),
    ],
)
async def test_metering_learns_from_complete_answers_with_usage(
    usage: dict[str, int], status: str, permille: int | None
) -> None:
    learned = LearnedFactors()
    bench = MeteringBench()
    metering = Metering(bench.settler, bench.telemetry, is_stopping=lambda: False, learned=learned)
    handle = replace(HANDLE, input_tokens=1000, learned_permille=1000)
    data = json.dumps({**ANSWER, "usage": usage}).encode()
    start = headers(status, content_type="application/json", handle=handle)
    context: Any = MemoryContext([start, body(data, end=True)])
    await metering.process(context)
    await bench.settler.flush(timeout_seconds=1)
    assert len(bench.ends) == 1
    expected = {} if permille is None else {("openai", "gpt-4o"): permille}
    assert learned.all() == expected


async def test_an_answer_that_was_cut_teaches_nothing() -> None:
    learned = LearnedFactors()
    bench = MeteringBench()
    metering = Metering(bench.settler, bench.telemetry, is_stopping=lambda: False, learned=learned)
    handle = replace(HANDLE, input_tokens=1000, learned_permille=1000)
    event = b'data: {"choices":[],"usage":{"prompt_tokens":1500,"completion_tokens":1}}\n\n'
    context: Any = MemoryContext([headers(handle=handle), body(event)])
    await metering.process(context)
    await bench.settler.flush(timeout_seconds=1)
    assert len(bench.ends) == 1
    assert learned.all() == {}


def test_strict_mode_never_reserves_less_than_was_counted() -> None:
    facts = read("/v1/chat/completions", LONG)
    low, high = taught(0.6), taught(1.5)
    assert corrected_input(low, facts)[0] < facts.input_tokens
    assert corrected_input(low, facts, never_less=True) == (facts.input_tokens, 1000)
    assert corrected_input(high, facts, never_less=True) == corrected_input(high, facts)
