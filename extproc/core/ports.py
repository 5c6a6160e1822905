"""What the core and the Envoy conversations need of the outside world."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from extproc.core.limits import ServiceLimit
from extproc.core.policies import Descriptor, PolicySet
from extproc.core.provider_errors import ProviderError, Room
from extproc.core.reservations import (
    Admitted,
    Outcome,
    Rejected,
    ReserveRequest,
    Settlement,
    SettleResult,
    StoreVerdict,
)
from extproc.core.resolve import Resolved


@dataclass(frozen=True, slots=True)
class LimitLookup:
    """Answer of a cold lookup. An unknown service has neither a limit nor policies.

    ``limit`` is the row of ``service_limit``; a root that has policies of its own needs none.
    ``policies`` is None for a simple root: no policy and no block concerns it. ``cached`` says that
    Redis now holds all this, so that reserve can read it there.
    """

    limit: ServiceLimit | None
    cached: bool
    policies: PolicySet | None = None

    @property
    def is_known(self) -> bool:
        """Whether there is such a service at all; it may be disabled."""
        return self.limit is not None or self.policies is not None


class PolicyView(Protocol):
    """The compiled policies of one root."""

    @property
    def version(self) -> str: ...

    def resolve(self, descriptor: Descriptor, now: datetime) -> Resolved:
        """What one request meets at ``now`` (with a time zone)."""
        ...


class PolicyViews(Protocol):
    """What this worker believes of policies; every decision compares it with Redis."""

    def get(self, root: str) -> PolicyView | None: ...

    def put(self, root: str, version: str, view: str) -> PolicyView | None:
        """Keep what Redis says; both empty: the root has no policies. Raises
        StoreUnavailableError for a view that is not understood: SQL can still say."""
        ...

    def learn(self, policies: PolicySet) -> PolicyView: ...


class LimitSource(Protocol):
    """The cold path of A4: singleflight, second look in Redis, SQL, backfill."""

    async def load(self, service_id: str) -> LimitLookup:
        """Raises StoreUnavailableError when neither Redis nor SQL can say."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReservation:
    """An overdue reservation, as the reaper sees it; ``is_slice``: it was taken ahead of requests
    (``core.slices``), and what is left of it was never used."""

    reservation_id: str
    root: str
    input_tokens: int
    reserved_tokens: int
    overdue_ms: int
    is_slice: bool = False


class ReservationStore(Protocol):
    """Reserve, settle, release: each one round trip, atomic, repeatable by reservation id.

    Every method raises StoreUnavailableError on failure and nothing else.
    """

    async def reserve(self, request: ReserveRequest) -> StoreVerdict: ...

    async def settle(self, settlement: Settlement) -> SettleResult: ...

    async def release(self, settlement: Settlement) -> SettleResult:
        """Give the tokens back, keep the request count (unless it is an undo). Unknown ids are
        remembered for a while, so that a reserve which arrives late takes nothing."""
        ...

    async def renew(self, root: str, reservation_id: str, *, deadline_ms: int) -> bool:
        """Keep a long request open: its deadline and its leases end ``deadline_ms`` from now at the
        earliest. False when it is not open any more."""
        ...

    async def overdue(self, root: str, *, at_most: int) -> list[OpenReservation]: ...

    async def open_count(self, root: str) -> int: ...

    async def review_count(self, root: str) -> int:
        """How many wait for people's word, since the reaper's policy is "review"."""
        ...

    async def roots(self) -> list[str]:
        """Every root that may hold a reservation."""
        ...

    async def ping(self) -> None: ...


class Telemetry(Protocol):
    """Counters and latencies; labels come from small fixed sets and never hold a client's text."""

    def admitted(self, verdict: Admitted, *, seconds: float) -> None: ...

    def rejected(self, verdict: Rejected, *, seconds: float) -> None: ...

    def refused(self, reason: str) -> None:
        """A request refused before any limit was asked: identity, body, service, store."""
        ...

    def unmetered(self, reason: str, *, allowed: bool) -> None: ...

    def unread_answer(self, reason: str) -> None:
        """An answer whose rest was passed on unread: reading it took too long."""
        ...

    def unknown_model(self, *, allowed: bool) -> None:
        """A request for a model that neither a price nor a setting names."""
        ...

    def failed_open(self, reason: str) -> None: ...

    def unreadable_row(self, table: str) -> None:
        """A stored limit could not be read when limits were loaded."""
        ...

    def settled(self, settlement: Settlement, result: SettleResult, *, seconds: float) -> None: ...

    def settlement_failed(self, source: str) -> None: ...

    def ended(self, outcome: Outcome | str) -> None: ...

    def provider_failed(self, error: ProviderError) -> None:
        """The provider, not one of our limits, answered with an error, or not at all."""
        ...

    def provider_room(self, provider: str, model: str, room: Room) -> None:
        """What a provider says it has left, with its answer to a request for ``model``."""
        ...

    def renewed(self, result: str) -> None:
        """A heartbeat of a long stream: renewed, ended (before), failed, or dropped."""
        ...

    def open_reservations(self, count: int) -> None: ...

    def open_reviews(self, count: int) -> None: ...
