"""Who runs where while latency is measured: the server has a core, all others have the rest.

Where four processes share two cores, the longest waits are those for a core, whose turns are of
milliseconds: they tell of the machine and of the generator, not of the server.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import psutil

_FEWEST_CORES = 2


def _place(processes: Iterable[psutil.Process], cores: set[int]) -> None:
    for process in processes:
        with suppress(psutil.Error, OSError):  # it has ended
            for thread in process.threads():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread.id, cores)


@contextmanager
def server_apart(pids: Iterable[int]) -> Iterator[bool]:
    """Within the block the processes ``pids`` and their children share one core, and this process
    and all its other children the rest; processes that are started meanwhile are as their parents.
    False, and nothing is done, with less than two cores and where the system cannot do it."""
    if not hasattr(os, "sched_setaffinity"):
        yield False
        return
    cores = os.sched_getaffinity(0)
    if len(cores) < _FEWEST_CORES:
        yield False
        return
    own = max(cores)
    us = psutil.Process()
    everybody = {each.pid: each for each in (us, *us.children(recursive=True))}
    servers: dict[int, psutil.Process] = {}
    for pid in pids:
        server = everybody.get(pid) or psutil.Process(pid)
        servers |= {each.pid: each for each in (server, *server.children(recursive=True))}
    others = [each for pid, each in everybody.items() if pid not in servers]
    _place(servers.values(), {own})
    _place(others, cores - {own})
    try:
        yield True
    finally:
        _place([*servers.values(), *others], cores)
