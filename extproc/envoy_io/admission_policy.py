"""What the operator decided about admission."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from extproc.core.known_models import KnownModels
from extproc.core.policies import Scope
from extproc.core.price_list import PriceList
from extproc.envoy_io.identity import IdentitySource


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    """What the operator decided about admission. Times in milliseconds or seconds by name."""

    identity: Sequence[IdentitySource]
    scopes: Mapping[Scope, Sequence[IdentitySource]] = field(default_factory=dict)
    prices: PriceList = field(default_factory=PriceList)
    known_models: KnownModels = field(default_factory=KnownModels)
    default_output_tokens: int
    deadline_ms: int
    timeout_seconds: float
    allows_unmetered: bool
    fails_open: bool
    count_inline_max_bytes: int
    max_body_bytes: int
    strict_cap_tokens: int | None = None
    # Whether to ask for usage where its event cannot be hidden again.
    shows_usage_events: bool = False
    # Request header with a client's idempotency key, in lower case; None: there is no such thing.
    idempotency_header: str | None = None
    idempotency_ttl_ms: int = 0
