"""The life of an execution: every pair of states, what ends say of it, which roots are strict."""

import itertools

import pytest

from extproc.core.durability import (
    OPEN,
    PROGRESS,
    TRANSITIONS,
    ExecutionState,
    sources,
    state_after,
    state_of_record,
)
from extproc.core.executions import Executions, matches
from extproc.core.reservations import (
    Knowledge,
    Outcome,
    Settlement,
    SettleResult,
    SettleStatus,
    Source,
    State,
)
from extproc.stores.execution_moves import add_step

READY, DISPATCHING, STREAMING, FINALIZING, DONE, REVIEW, CANCELED = ExecutionState

# From the row's state to the column's: the whole table once more, as a picture.
ALLOWED = """
READY       -> DISPATCHING STREAMING FINALIZING DONE REVIEW CANCELED
DISPATCHING -> STREAMING FINALIZING DONE REVIEW CANCELED
STREAMING   -> FINALIZING DONE REVIEW
FINALIZING  -> DONE REVIEW
DONE        ->
REVIEW      -> DONE CANCELED
CANCELED    -> REVIEW
"""


def test_every_pair_of_states_is_decided() -> None:
    allowed = set()
    for line in ALLOWED.strip().splitlines():
        state, _, targets = line.partition("->")
        allowed |= {(state.strip(), target) for target in targets.split()}
    for pair in itertools.product(ExecutionState, repeat=2):
        assert (pair[1] in TRANSITIONS[pair[0]]) == (pair in allowed), pair
        assert (pair[0] in sources(pair[1])) == (pair in allowed), pair


def test_nothing_becomes_ready_again_and_nothing_that_ended_is_sent() -> None:
    assert sources(READY) == set()
    assert sources(DISPATCHING) == {READY}
    assert {DONE, REVIEW, CANCELED} == set(ExecutionState) - OPEN
    for ended in (DONE, REVIEW, CANCELED):
        assert not TRANSITIONS[ended] & OPEN


@pytest.mark.parametrize("first", sorted(PROGRESS))
def test_a_state_of_progress_can_be_left_out(first: ExecutionState) -> None:
    """What may follow it may also come from wherever it may come from."""
    for before in sources(first):
        assert TRANSITIONS[first] <= TRANSITIONS[before]


def test_steps_that_were_not_written_yet_are_joined() -> None:
    steps = [DISPATCHING]
    for state in (STREAMING, FINALIZING, DONE):
        add_step(steps, state)
    assert steps == [DONE]
    add_step(steps, STREAMING)  # a late word
    assert steps == [DONE]
    steps = [CANCELED]
    add_step(steps, REVIEW)
    assert steps == [CANCELED, REVIEW]  # the row may be in a state that allows the first only


def test_every_end_of_a_reservation_says_something_of_its_execution() -> None:
    expected = {
        State.RESERVED: None,
        State.SETTLED: DONE,
        State.EXPIRED: REVIEW,
        State.RECONCILING: REVIEW,
    }
    for state, outcome in itertools.product(State, Outcome):
        if state is State.RELEASED:
            wanted: ExecutionState | None = {
                Outcome.NOT_FORWARDED: CANCELED,
                Outcome.UPSTREAM_REFUSED: DONE,
            }.get(outcome, REVIEW)
        else:
            wanted = expected[state]
        assert state_of_record(state.value, outcome.value) is wanted
    assert state_of_record("", "") is REVIEW  # a spoilt record


def end(state: State, outcome: Outcome) -> Settlement:
    return Settlement(
        reservation_id="r1",
        root="svc",
        input_tokens=1,
        output_tokens=1,
        knowledge=Knowledge.KNOWN,
        outcome=outcome,
        source=Source.METERING,
        state=state,
    )


@pytest.mark.parametrize(
    ("state", "outcome", "status", "wanted"),
    [
        (State.SETTLED, Outcome.COMPLETE, SettleStatus.APPLIED, DONE),
        (State.SETTLED, Outcome.COMPLETE, SettleStatus.IMPROVED, DONE),
        (State.SETTLED, Outcome.COMPLETE, SettleStatus.NOOP, None),
        (State.SETTLED, Outcome.COMPLETE, SettleStatus.MISSING, REVIEW),
        (State.RECONCILING, Outcome.UPSTREAM_BROKEN, SettleStatus.APPLIED, REVIEW),
        (State.RELEASED, Outcome.NOT_FORWARDED, SettleStatus.APPLIED, CANCELED),
        (State.RELEASED, Outcome.NOT_FORWARDED, SettleStatus.MISSING, CANCELED),
        (State.RELEASED, Outcome.UPSTREAM_REFUSED, SettleStatus.APPLIED, DONE),
    ],
)
def test_a_settlement_moves_its_execution(
    state: State, outcome: Outcome, status: SettleStatus, wanted: ExecutionState | None
) -> None:
    assert state_after(end(state, outcome), SettleResult(status=status)) is wanted


class Recorded:
    def __init__(self) -> None:
        self.moves: list[tuple[str, ExecutionState]] = []

    async def commit(self, execution: object) -> None:
        raise AssertionError("nothing is to be committed here")

    def move(self, reservation_id: str, state: ExecutionState) -> None:
        self.moves.append((reservation_id, state))


def test_only_selected_roots_are_moved() -> None:
    recorded = Recorded()
    for globs, moves in ((("bank-*", "svc"), [("r1", FINALIZING), ("r1", DONE)]), (("SVC",), [])):
        recorded.moves.clear()
        executions = Executions(globs, recorded, recorded)
        executions.settling(end(State.SETTLED, Outcome.COMPLETE))
        executions.settled(
            end(State.SETTLED, Outcome.COMPLETE), SettleResult(status=SettleStatus.APPLIED)
        )
        assert recorded.moves == moves


def test_globs() -> None:
    assert matches(["*"], "anything")
    assert matches(["a", "b-?"], "b-1")
    assert not matches(["b-?"], "b-12")
    assert not matches([], "a")
