"""From what is known at the end of a request to exactly one settlement (the table of outcomes).

| what happened                               | charge                 | knowledge |
| ------------------------------------------- | ---------------------- | --------- |
| complete, usage reported                    | the usage              | KNOWN     |
| complete, no usage                          | input + counted output | COUNTED   |
| stopped in the middle                       | input + counted output | COUNTED   |
| produced, but in bytes that nobody can read | the reserve            | GUESSED   |
| error answer without usage, no answer       | nothing                | KNOWN     |
| ended, metering saw nothing of it           | the reserve            | GUESSED   |

RPM is always kept. History is written only for the first row.
"""

from dataclasses import dataclass

from extproc.core.handles import Handle
from extproc.core.reservations import Knowledge, Outcome, Settlement, Source, State
from extproc.core.usage import Usage


@dataclass(slots=True, kw_only=True)
class AnswerFacts:
    """What metering saw of an answer. ``ended`` is Envoy's end of stream, not our loop's."""

    usage: Usage
    counted_output_tokens: int
    saw_output: bool
    ended: bool
    finished: bool
    error: bool
    # Part of it was in an encoding, or of a size, that we do not read.
    unread: bool = False


def settle_answer(handle: Handle, facts: AnswerFacts) -> Settlement:
    """The settlement of an answer with a success status, as metering saw it."""
    usage = facts.usage
    complete = facts.ended and (facts.finished or not facts.error)
    # A running total, behind which more was produced, of an answer whose own end never came.
    is_running = not facts.finished and facts.counted_output_tokens > (usage.output_tokens or 0)
    if usage.is_known and not is_running and (complete or facts.error or facts.finished):
        assert usage.input_tokens is not None
        assert usage.output_tokens is not None
        return _settlement(
            handle,
            Source.METERING,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            knowledge=Knowledge.KNOWN,
            outcome=Outcome.UPSTREAM_BROKEN if facts.error else Outcome.COMPLETE,
            writes_history=not facts.error,
            usage=usage,
        )
    if facts.error and not facts.saw_output:
        return release(handle, Outcome.UPSTREAM_REFUSED, Source.METERING)
    input_tokens = handle.input_tokens if usage.input_tokens is None else usage.input_tokens
    output_tokens = max(facts.counted_output_tokens, usage.output_tokens or 0)
    knowledge = Knowledge.COUNTED
    if facts.unread:
        # What is not known keeps at least its reserve.
        output_tokens = max(output_tokens, handle.reserved_tokens - input_tokens)
        knowledge = Knowledge.GUESSED
    if facts.error:
        outcome = Outcome.UPSTREAM_BROKEN
    elif facts.ended:
        outcome = Outcome.COMPLETE_ESTIMATED
    else:
        outcome = Outcome.CUT
    return _settlement(
        handle,
        Source.METERING,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        knowledge=knowledge,
        outcome=outcome,
        state=State.RECONCILING if facts.error else State.SETTLED,
        usage=usage,
    )


def settle_interrupted(handle: Handle, facts: AnswerFacts) -> Settlement:
    """Metering had to stop while the answer went on: at least the reserve, as a guess."""
    seen = handle.input_tokens + max(facts.counted_output_tokens, facts.usage.output_tokens or 0)
    total = max(handle.reserved_tokens, seen)
    input_tokens = min(handle.input_tokens, total)
    return _settlement(
        handle,
        Source.METERING,
        input_tokens=input_tokens,
        output_tokens=total - input_tokens,
        knowledge=Knowledge.GUESSED,
        outcome=Outcome.CUT,
    )


def release(
    handle: Handle, outcome: Outcome, source: Source, *, knowledge: Knowledge = Knowledge.KNOWN
) -> Settlement:
    """Nothing was produced: tokens go back, the request stays counted."""
    end = release_of(handle.reservation_id, handle.root, outcome, source)
    end.knowledge = knowledge
    end.slip = handle.slip
    return end


def release_of(reservation_id: str, root: str, outcome: Outcome, source: Source) -> Settlement:
    """The same without a handle, for a reservation that may not even exist."""
    return Settlement(
        reservation_id=reservation_id,
        root=root,
        input_tokens=0,
        output_tokens=0,
        knowledge=Knowledge.KNOWN,
        outcome=outcome,
        source=source,
        state=State.RELEASED,
    )


def undo_of(reservation_id: str, root: str, source: Source) -> Settlement:
    """What was taken at ``root`` alone is given back, the count of requests too."""
    end = release_of(reservation_id, root, Outcome.NOT_FORWARDED, source)
    end.undo, end.follows = True, False
    return end


def settle_ending(handle: Handle, outcome: Outcome, *, undelivered: bool = False) -> Settlement:
    """The ending knows how a request ended but not its tokens.

    Nothing produced: released. Otherwise the reserve stands as a guess, which metering's word, if
    it comes, improves; where metering spoke first, only the reason of a plain cut is filled in.
    ``undelivered``: the upstream broke off so early that the client got an error instead of the
    answer; then the guess is the input alone.
    """
    if outcome in (Outcome.UPSTREAM_REFUSED, Outcome.NOT_FORWARDED):
        return release(handle, outcome, Source.ENDING)
    output = 0 if undelivered else max(0, handle.reserved_tokens - handle.input_tokens)
    return _settlement(
        handle,
        Source.ENDING,
        input_tokens=min(handle.input_tokens, handle.reserved_tokens),
        output_tokens=output,
        knowledge=Knowledge.GUESSED,
        outcome=outcome,
        state=State.RECONCILING if outcome is Outcome.UPSTREAM_BROKEN else State.SETTLED,
    )


def settle_native(
    handle: Handle, outcome: Outcome, usage: Usage, *, guessed_output_tokens: int
) -> Settlement:
    """The settlement of an answer whose usage Envoy read itself; ``guessed_output_tokens`` is what
    its size tells where it did not, and then at least the reserve stands."""
    state = State.RECONCILING if outcome is Outcome.UPSTREAM_BROKEN else State.SETTLED
    if usage.is_known:
        assert usage.input_tokens is not None
        assert usage.output_tokens is not None
        is_whole = outcome is Outcome.COMPLETE_ESTIMATED
        return _settlement(
            handle,
            Source.ENDING,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            # Of an answer that was cut it may be the running total.
            knowledge=Knowledge.KNOWN if is_whole else Knowledge.COUNTED,
            outcome=Outcome.COMPLETE if is_whole else outcome,
            state=state,
            writes_history=is_whole,
            usage=usage,
        )
    input_tokens = handle.input_tokens if usage.input_tokens is None else usage.input_tokens
    reserved = handle.reserved_tokens - input_tokens
    return _settlement(
        handle,
        Source.ENDING,
        input_tokens=input_tokens,
        output_tokens=max(guessed_output_tokens, usage.output_tokens or 0, reserved),
        usage=usage,
        knowledge=Knowledge.GUESSED,
        outcome=outcome,
        state=state,
    )


def _settlement(
    handle: Handle,
    source: Source,
    *,
    input_tokens: int,
    output_tokens: int,
    knowledge: Knowledge,
    outcome: Outcome,
    state: State = State.SETTLED,
    writes_history: bool = False,
    usage: Usage | None = None,
) -> Settlement:
    return Settlement(
        reservation_id=handle.reservation_id,
        root=handle.root,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        knowledge=knowledge,
        outcome=outcome,
        source=source,
        state=state,
        writes_history=writes_history,
        model=handle.model,
        usage=usage,
        wire_format=handle.wire_format,
        slip=handle.slip,
    )
