"""What single decisions and ends do to the metrics."""

from dataclasses import replace

from prometheus_client import CollectorRegistry

from extproc.control.metrics import Metrics
from extproc.core.reservations import SettleResult, SettleStatus
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
