"""Settings of what has to do with money; parts of ``settings``."""

from typing import Annotated

from pydantic import Field

from extproc.settings_base import Section


class PriceSettings(Section):
    """Micro-USD for a million tokens of models that match the glob, for cost limits."""

    model: str = Field(min_length=1, max_length=256)
    input_micros: int = Field(ge=0, le=2**32)
    output_micros: int = Field(ge=0, le=2**32)


class DurabilitySettings(Section):
    """Requests that SQL must know before they are sent on (docs/durability.md)."""

    # Globs over roots; of none by default.
    strict_roots: tuple[Annotated[str, Field(min_length=1, max_length=128)], ...] = ()
    # How long a request waits for its commit, and the connection for any answer.
    timeout_ms: int = Field(default=500, ge=10, le=10_000)


class LedgerSettings(Section):
    """Usage events, and the ledger in SQL that `work` writes of them (docs/ledger.md)."""

    # For `serve`, `work` and `reviews` alike.
    enabled: bool = False
    # In one transaction.
    batch_events: int = Field(default=1000, ge=1, le=5000)
    # How long to wait when there was nothing to write.
    interval_seconds: float = Field(default=0.5, gt=0, le=60)
    # Events that a writer has read and neither written nor given up for so long are another's.
    reclaim_seconds: float = Field(default=60.0, ge=1, le=3600)
