"""TCP ports of loopback that no other worker of this test run chooses.

The kernel's own choice can be given to two processes, one after the other, before the first listens
there, and to the client's end of any connection. A range below the kernel's, of each worker's own,
has neither.
"""

import os
import random
import socket
from collections.abc import Iterator

# Linux gives out ports from 32768 on, other systems from 49152.
_FIRST, _LAST = 20_000, 32_500
_MOST_WORKERS = 16
_MAIN = "main"


def _range_of(worker: str) -> range:
    """Ports of a worker of pytest-xdist ("gw0", "gw1", ...), or of a run without workers."""
    width = (_LAST - _FIRST) // (_MOST_WORKERS + 1)
    share = 0 if worker == _MAIN else 1 + int(worker.removeprefix("gw")) % _MOST_WORKERS
    return range(_FIRST + share * width, _FIRST + (share + 1) * width)


def _endless(ports: range) -> Iterator[int]:
    """All of them in a random order, again and again: two runs at once choose different ones, and
    the port after a chosen one is not soon chosen."""
    shuffled = random.sample(ports, len(ports))
    while True:
        yield from shuffled


_choices = _endless(_range_of(os.environ.get("PYTEST_XDIST_WORKER", _MAIN)))


def own_free_ports(count: int) -> list[int]:
    """``count`` different TCP ports that are free on the loopback address now, and that this
    process does not choose again for a long time."""
    chosen: list[int] = []
    while len(chosen) < count:
        port = next(_choices)
        if _is_free(port):
            chosen.append(port)
    return chosen


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
