"""What a request of a strict root is to SQL: its row before it is sent on, its state afterwards."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Protocol

from extproc.core.durability import ExecutionState, state_after
from extproc.core.handles import Handle
from extproc.core.reservations import Admitted, Settlement, SettleResult, State

# So many roots are remembered as strict or not.
_MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One request that a strict root was admitted for. Times in milliseconds UTC."""

    reservation_id: str
    root: str
    request_id: str
    request_hash: str
    wire_format: str
    model: str
    subject: str
    input_tokens: int
    reserved_tokens: int
    reserved_cost_micros: int
    admitted_at_ms: int
    deadline_at_ms: int


def execution_of(
    handle: Handle, verdict: Admitted, *, request_hash: str, subject: str, deadline_ms: int
) -> Execution:
    """The execution of a request that was admitted now and may stay open for ``deadline_ms``."""
    now = int(time.time() * 1000)
    return Execution(
        reservation_id=handle.reservation_id,
        root=handle.root,
        request_id=handle.request_id,
        request_hash=request_hash,
        wire_format=handle.wire_format,
        model=handle.model,
        subject=subject,
        input_tokens=handle.input_tokens,
        reserved_tokens=handle.reserved_tokens,
        reserved_cost_micros=verdict.reserved_cost_micros,
        admitted_at_ms=now,
        deadline_at_ms=now + deadline_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenExecution:
    """A row whose end is not written. ``number`` grows with every row. ``is_overdue``: the deadline
    of its admission has passed (a stream that still runs has a later one, in Redis)."""

    number: int
    reservation_id: str
    root: str
    state: ExecutionState
    is_overdue: bool


class Committer(Protocol):
    """Makes rows durable."""

    async def commit(self, execution: Execution) -> None:
        """Returns when the rows of ``execution`` are proven to be committed. Raises
        StoreUnavailableError("sql") when they are not; then, and when the caller is cancelled,
        they are not there, or will be CANCELED."""
        ...


class Moves(Protocol):
    """Moves executions in SQL, in the background."""

    def move(self, reservation_id: str, state: ExecutionState) -> None:
        """Soon, if the state then allows it. Never awaits, never raises."""
        ...


class Executions:
    """Strict durability, for the roots that match one of ``globs``; nothing for all others."""

    def __init__(self, globs: Sequence[str], committer: Committer, moves: Moves) -> None:
        self._committer = committer
        self._moves = moves
        self.selects = lru_cache(_MOST_REMEMBERED)(lambda root: matches(globs, root))

    async def commit(self, execution: Execution) -> None:
        """As ``Committer.commit``."""
        await self._committer.commit(execution)

    def reached(self, root: str, reservation_id: str, state: ExecutionState) -> None:
        """A request of ``root`` is so far. Never awaits, never raises."""
        if self.selects(root):
            self._moves.move(reservation_id, state)

    def settling(self, settlement: Settlement) -> None:
        """A settlement was handed over."""
        if settlement.state is not State.RELEASED:
            self.reached(settlement.root, settlement.reservation_id, ExecutionState.FINALIZING)

    def settled(self, settlement: Settlement, result: SettleResult) -> None:
        """The store has answered a settlement."""
        if self.selects(settlement.root):
            state = state_after(settlement, result)
            if state is not None:
                self._moves.move(settlement.reservation_id, state)


def matches(globs: Sequence[str], root: str) -> bool:
    """Whether ``root`` is strict; capitals differ from small letters, as in Redis."""
    return any(fnmatchcase(root, glob) for glob in globs)
