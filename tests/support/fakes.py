"""Recording stand-ins for ports of our own. Redis, Envoy and databases are never faked; these exist
for tests of the code between them."""

import asyncio
from dataclasses import dataclass, field

from extproc.core.errors import StoreUnavailableError
from extproc.core.ports import LimitLookup, OpenReservation
from extproc.core.provider_errors import ProviderError, Room
from extproc.core.reservations import (
    Admitted,
    Outcome,
    Rejected,
    ReserveRequest,
    Settlement,
    SettleResult,
    SettleStatus,
    StoreVerdict,
    WindowView,
)

VIEW = WindowView(limit=100, remaining=40, reset_ms=12_000)


def admitted(request: ReserveRequest) -> Admitted:
    return Admitted(
        reservation_id=request.reservation_id,
        root=request.root,
        minute="202611300700",
        input_tokens=request.input_tokens,
        reserved_tokens=request.input_tokens + 10,
        requests=VIEW,
        tokens=VIEW,
    )


@dataclass
class RecordingStore:
    """Answers reserve from ``verdicts`` (or admits), and keeps every settlement."""

    verdicts: list[StoreVerdict | BaseException] = field(default_factory=list)
    settle_errors: list[StoreUnavailableError] = field(default_factory=list)
    renew_errors: list[StoreUnavailableError] = field(default_factory=list)
    reserved: list[ReserveRequest] = field(default_factory=list)
    renewed: list[tuple[str, str, int]] = field(default_factory=list)
    settled: list[Settlement] = field(default_factory=list)
    released: list[Settlement] = field(default_factory=list)
    gate: asyncio.Event | None = None

    async def reserve(self, request: ReserveRequest) -> StoreVerdict:
        self.reserved.append(request)
        if self.gate is not None:
            await self.gate.wait()
        verdict = self.verdicts.pop(0) if self.verdicts else admitted(request)
        if isinstance(verdict, BaseException):
            raise verdict
        return verdict

    async def settle(self, settlement: Settlement) -> SettleResult:
        if self.settle_errors:
            raise self.settle_errors.pop(0)
        self.settled.append(settlement)
        return SettleResult(status=SettleStatus.APPLIED)

    async def release(self, settlement: Settlement) -> SettleResult:
        if self.settle_errors:
            raise self.settle_errors.pop(0)
        self.released.append(settlement)
        return SettleResult(status=SettleStatus.APPLIED)

    async def renew(self, root: str, reservation_id: str, *, deadline_ms: int) -> bool:
        if self.gate is not None:
            await self.gate.wait()
        if self.renew_errors:
            raise self.renew_errors.pop(0)
        self.renewed.append((root, reservation_id, deadline_ms))
        return True

    async def overdue(self, root: str, *, at_most: int) -> list[OpenReservation]:
        return []

    async def open_count(self, root: str) -> int:
        return 0

    async def review_count(self, root: str) -> int:
        return 0

    async def roots(self) -> list[str]:
        return []

    async def ping(self) -> None:
        return None


@dataclass
class ListedLimits:
    """Answers lookups from a list, in order."""

    lookups: list[LimitLookup | BaseException] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def load(self, service_id: str) -> LimitLookup:
        self.asked.append(service_id)
        found = self.lookups.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found


@dataclass
class RecordingTelemetry:
    """Keeps a line for every call."""

    lines: list[str] = field(default_factory=list)
    provider_errors: list[ProviderError] = field(default_factory=list)
    rooms: list[tuple[str, str, Room]] = field(default_factory=list)

    def admitted(self, verdict: Admitted, *, seconds: float) -> None:
        self.lines.append(f"admitted {verdict.root}")

    def rejected(self, verdict: Rejected, *, seconds: float) -> None:
        self.lines.append(f"rejected {verdict.refused_by}")

    def refused(self, reason: str) -> None:
        self.lines.append(f"refused {reason}")

    def unmetered(self, reason: str, *, allowed: bool) -> None:
        self.lines.append(f"unmetered {reason} {'allowed' if allowed else 'refused'}")

    def unread_answer(self, reason: str) -> None:
        self.lines.append(f"unread_answer {reason}")

    def unknown_model(self, *, allowed: bool) -> None:
        self.lines.append(f"unknown_model {'allowed' if allowed else 'refused'}")

    def failed_open(self, reason: str) -> None:
        self.lines.append(f"failed_open {reason}")

    def unreadable_row(self, table: str) -> None:
        self.lines.append(f"unreadable_row {table}")

    def settled(self, settlement: Settlement, result: SettleResult, *, seconds: float) -> None:
        self.lines.append(f"settled {settlement.outcome.value}")

    def settlement_failed(self, source: str) -> None:
        self.lines.append(f"settlement_failed {source}")

    def ended(self, outcome: Outcome | str) -> None:
        self.lines.append(f"ended {outcome}")

    def provider_failed(self, error: ProviderError) -> None:
        self.provider_errors.append(error)

    def provider_room(self, provider: str, model: str, room: Room) -> None:
        self.rooms.append((provider, model, room))

    def renewed(self, result: str) -> None:
        self.lines.append(f"renewed {result}")

    def open_reservations(self, count: int) -> None:
        self.lines.append(f"open {count}")

    def open_reviews(self, count: int) -> None:
        self.lines.append(f"reviews {count}")
