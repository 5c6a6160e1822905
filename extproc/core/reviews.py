"""Reservations of which nobody reported the end, kept for people (reaper policy "review")."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from extproc.core.limits import MAX_LIMIT
from extproc.core.reservations import Knowledge, Outcome, Settlement, Source, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """One that waits. ``since`` is when the reaper gave it up; what is charged is the reserve."""

    reservation_id: str
    root: str
    since: datetime
    admitted_at: datetime | None
    request_id: str
    model: str
    input_tokens: int
    charged_tokens: int
    charged_cost_micros: int | None


class Answer(StrEnum):
    """What a person's decision did."""

    RESOLVED = "resolved"  # it is charged so now
    SAME = "same"  # a person said the same before
    OTHER = "other"  # a person said something else before; nothing changed
    ELSEWHERE = "elsewhere"  # it is a part of one that waits at its own root; nothing changed
    NOT_IN_REVIEW = "not_in_review"  # still open, or ended by a report; nothing changed
    UNREADABLE = "unreadable"  # its record is spoilt; nothing changed
    UNKNOWN = "unknown"  # no record (any more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The answer, and the reservation as it is now (None: unknown). ``source`` said how it ended,
    ``was_charged_tokens`` is what stood before this call, ``own_root`` is where it waits when it
    does so elsewhere."""

    answer: Answer
    state: str | None = None
    source: str = ""
    charged_tokens: int = 0
    was_charged_tokens: int = 0
    own_root: str = ""


def decision(
    reservation_id: str, root: str, *, input_tokens: int = 0, output_tokens: int = 0, release: bool
) -> Settlement:
    """What a person says of a reservation: these tokens, or nothing (``release``). How the request
    ended stays unreported. Raises ValueError for what no request can use."""
    for name, value in (("input", input_tokens), ("output", output_tokens)):
        if not 0 <= value <= MAX_LIMIT:
            raise ValueError(f"{name} must be 0 to {MAX_LIMIT}, got {value}")
    return Settlement(
        reservation_id=reservation_id,
        root=root,
        input_tokens=0 if release else input_tokens,
        output_tokens=0 if release else output_tokens,
        knowledge=Knowledge.KNOWN,
        outcome=Outcome.UNREPORTED,
        source=Source.OPERATOR,
        state=State.RELEASED if release else State.SETTLED,
    )
