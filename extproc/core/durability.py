"""Strict durability: the life of an execution, which SQL knows before its request is sent on.

| state       | what is certain                                                                   |
| ----------- | --------------------------------------------------------------------------------- |
| READY       | the row is committed; the request may be sent on                                  |
| DISPATCHING | the word to send it on was handed to Envoy                                        |
| STREAMING   | an answer has begun                                                               |
| FINALIZING  | the answer has ended, its settlement is under way                                 |
| DONE        | settled: how it ended is known                                                    |
| CANCELED    | it was never sent on                                                              |
| REVIEW      | nobody can say how it ended, or two words of it disagree: people have to look     |

Nothing ever sends a request again, whatever the state. A row may skip states: READY, the commit, is
all that a request waits for. Every change is conditional on the state before it, in SQL itself.
"""

from collections.abc import Mapping
from enum import StrEnum

from extproc.core.reservations import Outcome, Settlement, SettleResult, SettleStatus, State


class ExecutionState(StrEnum):
    """Where an execution is; the words in SQL are these."""

    READY = "READY"
    DISPATCHING = "DISPATCHING"
    STREAMING = "STREAMING"
    FINALIZING = "FINALIZING"
    DONE = "DONE"
    REVIEW = "REVIEW"
    CANCELED = "CANCELED"


_S = ExecutionState
TRANSITIONS: Mapping[ExecutionState, frozenset[ExecutionState]] = {
    _S.READY: frozenset(
        {_S.DISPATCHING, _S.STREAMING, _S.FINALIZING, _S.DONE, _S.REVIEW, _S.CANCELED}
    ),
    _S.DISPATCHING: frozenset({_S.STREAMING, _S.FINALIZING, _S.DONE, _S.REVIEW, _S.CANCELED}),
    # What has an answer was sent on, so it can no longer be canceled.
    _S.STREAMING: frozenset({_S.FINALIZING, _S.DONE, _S.REVIEW}),
    _S.FINALIZING: frozenset({_S.DONE, _S.REVIEW}),
    _S.DONE: frozenset(),
    # Somebody knows better after all.
    _S.REVIEW: frozenset({_S.DONE, _S.CANCELED}),
    # What was said never to have been sent on was charged: one of the two is wrong.
    _S.CANCELED: frozenset({_S.REVIEW}),
}
# Only tell how far it is; whatever comes after one of them may come instead of it.
PROGRESS = frozenset({_S.DISPATCHING, _S.STREAMING, _S.FINALIZING})
# How it ended is not written yet.
OPEN = frozenset({_S.READY}) | PROGRESS


def sources(target: ExecutionState) -> frozenset[ExecutionState]:
    """The states from which ``target`` may come: the condition of an UPDATE to it."""
    return frozenset(state for state, targets in TRANSITIONS.items() if target in targets)


def state_after(settlement: Settlement, result: SettleResult) -> ExecutionState | None:
    """What a settlement that the store has answered says of the execution; None: nothing, because
    an earlier one has said it."""
    if result.status in (SettleStatus.NOOP, SettleStatus.CLASSIFIED):
        return None
    if result.status is SettleStatus.MISSING and settlement.state is not State.RELEASED:
        return ExecutionState.REVIEW  # its record is gone: charged nowhere
    return state_of_record(settlement.state, settlement.outcome)


def state_of_record(state: str, outcome: str) -> ExecutionState | None:
    """What the record of a reservation says of its execution; None: still open.

    A release that only a missing report has brought, or usage that is unknown, is for people.
    """
    if state == State.RESERVED:
        return None
    if state == State.SETTLED:
        return ExecutionState.DONE
    if state == State.RELEASED and outcome == Outcome.NOT_FORWARDED:
        return ExecutionState.CANCELED
    if state == State.RELEASED and outcome == Outcome.UPSTREAM_REFUSED:
        return ExecutionState.DONE
    return ExecutionState.REVIEW
