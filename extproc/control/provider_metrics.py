"""Metrics of the providers themselves: their errors, and what they say they have left."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from extproc.control.children import Buffer, FewModels, Level, counts, levels
from extproc.core.provider_errors import ProviderError, Room


class ProviderMetrics:
    """Labels are names of providers that we know and words of ours; models only of good answers."""

    def __init__(self, registry: CollectorRegistry, buffer: Buffer) -> None:
        self._buffer = buffer
        self._registry = registry
        self._errors = counts(
            Counter(
                "tokenweir_provider_errors_total",
                "Errors of providers, not of our limits, by provider, code and what there was too "
                "much of.",
                ["provider", "code", "dimension"],
                registry=registry,
            ),
            buffer,
        )
        self._room: Callable[..., Level] | None = None
        self._models = FewModels()

    def failed(self, error: ProviderError) -> None:
        self._errors(error.provider, error.code.value, error.dimension.value).inc()

    def has_room(self, provider: str, model: str, room: Room) -> None:
        """The model is as a client spells it, and a provider knew it."""
        if self._room is None:
            self._room = levels(
                Gauge(
                    "tokenweir_provider_remaining",
                    "What the provider said is left of its own limit, with its last answer, by "
                    "provider, model and dimension.",
                    ["provider", "model", "dimension"],
                    registry=self._registry,
                    multiprocess_mode="mostrecent",
                ),
                self._buffer,
            )
        if self._models.takes(provider, model):
            self._room(provider, model, room.dimension.value).set(room.remaining)
