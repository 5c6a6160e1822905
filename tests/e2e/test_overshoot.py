"""One limit, several server processes, a thousand requests at once: strict mode never passes it."""

from tests.bench.overshoot import (
    PLATFORM_CAP_TOKENS,
    SERVERS,
    measure_overshoot,
    overshoot_stack,
)


def test_a_thousand_at_once_through_three_processes_never_pass_a_limit_in_strict_mode() -> None:
    with overshoot_stack("strict") as stack:
        seen = measure_overshoot(
            # Every answer is as long as it may be, so whatever is admitted is used.
            stack,
            "at-cap",
            learns=False,
            answers=lambda number: PLATFORM_CAP_TOKENS + number,
        )
    assert seen.overshoot_tokens == 0, seen
    # As many as fit, and not one less.
    assert seen.burst.admitted == seen.fits > 100, seen
    assert seen.other == seen.left_open == 0, seen
    # What the processes settled at their one counter is what the provider says.
    assert seen.used_tokens == seen.reserved_tokens == seen.counted_tokens
    # Each process had its part.
    assert len(seen.asked) == SERVERS
    assert min(seen.asked) > seen.sent // SERVERS // 2
