"""What single decisions and ends do to the metrics."""

from dataclasses import replace

from prometheus_client import CollectorRegistry

from extproc.control.metrics import Metrics
from extproc.core.provider_errors import Dimension, ErrorCode, ProviderError, Room
from extproc.core.reservations import SettleResult, SettleStatus
from extproc.core.usage import Usage
from tests.support.fakes import admitted
from tests.support.reservations import request, settlement


def _value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_how_full_the_tightest_limits_were() -> None:
    metrics = Metrics()
    metrics.admitted(admitted(request(root="acme")), seconds=0.001)
    used = _value(metrics.registry, "tokenweir_limit_used_ratio", service_id="acme", kind="tokens")
    assert used == 0.6


def test_how_well_reservations_fit_is_of_answers_that_reported_usage() -> None:
    metrics = Metrics()
    result = SettleResult(status=SettleStatus.APPLIED, reserved_tokens=100, charged_tokens=30)
    metrics.settled(settlement("r1", history=True), result, seconds=0.001)
    metrics.settled(settlement("r2"), result, seconds=0.001)
    assert _value(metrics.registry, "tokenweir_reservation_used_ratio_count") == 1
    assert _value(metrics.registry, "tokenweir_reservation_used_ratio_sum") == 0.3


def test_shared_roots_are_one_label_whatever_clients_ask_for() -> None:
    metrics = Metrics()
    result = SettleResult(status=SettleStatus.APPLIED, reserved_tokens=100, charged_tokens=30)
    metrics.settled(replace(settlement("r1"), root="across:model:made-up"), result, seconds=0.001)
    used = _value(metrics.registry, "tokenweir_tokens_total", service_id="across", kind="used")
    assert used == 30


def test_reported_kinds_are_counted_once_for_each_answer_that_is_settled() -> None:
    metrics = Metrics()
    usage = Usage(
        input_tokens=900,
        output_tokens=40,
        cached_input_tokens=0,
        cache_write_1h_tokens=300,
        audio_output_tokens=7,
        server_tool_calls=2,
    )
    end = replace(settlement("r1"), usage=usage, wire_format="anthropic_messages")
    for status in SettleStatus:
        metrics.settled(end, SettleResult(status=status), seconds=0.001)
    across = replace(end, root="across:model:x")
    metrics.settled(across, SettleResult(status=SettleStatus.APPLIED), seconds=0.001)
    labels = {"provider": "anthropic", "wire_format": "anthropic_messages"}

    def counted(kind: str) -> float | None:
        name = "tokenweir_usage_tokens_total"
        return _value(metrics.registry, name, kind=kind, **labels)

    # Applied once, and once improved.
    kinds = ("input", "output", "cache_write_1h", "audio_output")
    assert [counted(kind) for kind in kinds] == [1800, 80, 600, 14]
    assert (counted("cached_input"), counted("server_tool_calls")) == (None, None)
    calls = _value(metrics.registry, "tokenweir_server_tool_calls_total", **labels)
    assert calls == 4


def test_providers_errors_and_what_they_have_left_are_shown() -> None:
    metrics = Metrics()
    error = ProviderError(
        provider="openai", status=429, code=ErrorCode.RATE_LIMITED, dimension=Dimension.TOKENS
    )
    metrics.provider_failed(error)
    labels = {"provider": "openai", "dimension": "tokens"}
    name = "tokenweir_provider_errors_total"
    assert _value(metrics.registry, name, code="rate_limited", **labels) == 1
    for number in range(2000):
        metrics.provider_room("openai", f"model-{number}", Room(Dimension.TOKENS, number))
    name = "tokenweir_provider_remaining"
    assert _value(metrics.registry, name, model="model-7", **labels) == 7
    assert _value(metrics.registry, name, model="model-1999", **labels) is None
