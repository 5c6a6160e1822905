"""The Redis scripts: read from ``lua/`` once, known to Redis by their SHA-1."""

import hashlib
from dataclasses import dataclass
from functools import cache

from extproc.assets import lua_folder

_INCLUDE = "--!include "


@dataclass(frozen=True, slots=True)
class Script:
    """One script: ``sha`` is what EVALSHA wants, ``source`` what EVAL wants."""

    name: str
    source: str
    sha: str


@cache
def load_script(name: str) -> Script:
    """The script ``lua/<name>.lua``; its ``--!include FILE`` lines are replaced by that file."""
    folder = lua_folder()
    lines: list[str] = []
    for line in (folder / f"{name}.lua").read_text(encoding="utf-8").splitlines():
        if line.startswith(_INCLUDE):
            included = folder / "include" / line.removeprefix(_INCLUDE).strip()
            lines.append(included.read_text(encoding="utf-8"))
        else:
            lines.append(line)
    source = "\n".join(lines)
    # Redis names scripts by SHA-1; nothing here is a secret.
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name, source, sha)


RESERVE = "reserve"
RESERVE_POLICIES = "reserve_policies"
SETTLE = "settle"
RELEASE = "release"
LEASE = "lease"
BACKFILL = "backfill"
OVERDUE = "overdue"
FORGET_ROOT = "forget_root"
RENEW = "renew"
REVIEWS = "reviews"
SLICE = "slice"
DRAW = "draw"
READ_EVENTS = "read_events"
DROP_EVENTS = "drop_events"
ALL = (
    RESERVE,
    RESERVE_POLICIES,
    SETTLE,
    RELEASE,
    LEASE,
    BACKFILL,
    OVERDUE,
    FORGET_ROOT,
    RENEW,
    REVIEWS,
    SLICE,
    DRAW,
    READ_EVENTS,
    DROP_EVENTS,
)
