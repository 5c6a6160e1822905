"""What providers reported, by kind of tokens, and the calls that they bill beside tokens."""

from prometheus_client import CollectorRegistry, Counter

from extproc.control.children import Buffer, counts
from extproc.core.ids import ACROSS_PREFIX
from extproc.core.reservations import Settlement
from extproc.core.usage import CALLS
from extproc.providers.registry import provider_of


class UsageMetrics:
    """Counts each settled answer once. Nothing is guessed: what was not reported is not there."""

    def __init__(self, registry: CollectorRegistry, buffer: Buffer) -> None:
        self._tokens = counts(
            Counter(
                "tokenweir_usage_tokens_total",
                "Tokens as providers reported them, by kind; those other than input and output are "
                "parts of these.",
                ["provider", "wire_format", "kind"],
                registry=registry,
            ),
            buffer,
        )
        self._calls = counts(
            Counter(
                "tokenweir_server_tool_calls_total",
                "Searches and other tools that providers ran, which they bill by the call.",
                ["provider", "wire_format"],
                registry=registry,
            ),
            buffer,
        )

    def count(self, settlement: Settlement) -> None:
        """One applied settlement; the shares of limits across roots are of the same answer."""
        if settlement.usage is None or settlement.root.startswith(ACROSS_PREFIX):
            return
        provider = provider_of(settlement.wire_format)
        for kind, number in settlement.usage.kinds().items():
            if kind == CALLS:
                self._calls(provider, settlement.wire_format).inc(number)
            else:
                self._tokens(provider, settlement.wire_format, kind).inc(number)
