"""Requests for models that nobody expected: counted, named once, and refused by the setting."""

import logging
from dataclasses import replace

import pytest

from extproc.core.known_models import KnownModels
from extproc.core.price_list import Price, PriceList
from tests.support.admission import ANTHROPIC, CHAT, POLICY, Bench, fields_of, message

PRICES = PriceList((Price(model="gpt-4o*", input_micros=1, output_micros=1),))


def bench(known: KnownModels) -> Bench:
    return Bench(policy=replace(POLICY, prices=known.prices, known_models=known))


@pytest.mark.parametrize("model", ["gpt-4o", "llama-3"])
async def test_a_priced_or_named_model_is_nothing_to_count(model: str) -> None:
    asked = bench(KnownModels(PRICES, ("llama*",), refuses_others=True))
    reply = await asked.ask(message({**CHAT, "model": model}))
    assert "rid" in fields_of(reply)
    assert not [line for line in asked.telemetry.lines if "unknown" in line]


async def test_an_unknown_model_passes_and_is_counted_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="tokenweir.admission")
    asked = bench(KnownModels(PRICES))
    admission = message({**CHAT, "model": "gpt-9"})
    service = asked.admission()
    asked.admission = lambda: service  # type: ignore[method-assign]
    for _ in range(3):
        assert "rid" in fields_of(await asked.ask(admission))
    assert asked.telemetry.lines.count("unknown_model allowed") == 3
    (record,) = caplog.records
    assert (record.message, vars(record)["model"]) == ("unknown_model", "gpt-9")


async def test_an_unknown_model_is_refused_before_any_limit_is_asked() -> None:
    asked = bench(KnownModels(PRICES, refuses_others=True))
    reply = (await asked.ask(message({**ANTHROPIC}, path="/v1/messages"))).immediate_response
    assert reply.status.code == 403
    assert reply.details == "tokenweir_unknown_model"
    assert b"claude-sonnet-4-5" in reply.body
    assert asked.store.reserved == []
    assert asked.telemetry.lines == ["unknown_model refused", "refused unknown_model"]


async def test_without_prices_and_names_no_model_is_unknown() -> None:
    asked = bench(KnownModels())
    assert "rid" in fields_of(await asked.ask(message({**CHAT, "model": "gpt-9"})))
    assert not [line for line in asked.telemetry.lines if "unknown" in line]
