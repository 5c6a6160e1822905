"""How much of an answer is read at once, before everything else has its turn."""

from collections.abc import Generator

# 2 ms of the smallest events that there are, 0.1 ms of usual ones.
TURN_BYTES = 1024
# Chunks this long are read at once too when they have few lines: a busy Envoy joins events.
_FEW_LINES_BYTES, _FEW_LINES = 4 * 1024, 48


def is_one_step(chunk: bytes) -> bool:
    """Whether reading it takes a few ms at most."""
    size = len(chunk)
    return size <= TURN_BYTES or (size <= _FEW_LINES_BYTES and chunk.count(b"\n") <= _FEW_LINES)


def step_end(data: bytes, start: int) -> int:
    """Where the next step ends: behind an event, where one ends, because those that are whole are
    read faster."""
    limit = start + TURN_BYTES
    if limit >= len(data):
        return len(data)
    for empty_line in (b"\n\n", b"\n\r\n"):
        at = data.rfind(empty_line, start, limit)
        if at >= 0:
            return at + len(empty_line)
    return limit


def all_of(steps: Generator[None, None, bytes | None]) -> bytes | None:
    """Take all steps at once; what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            replacement: bytes | None = done.value
            return replacement
