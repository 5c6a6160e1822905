"""Slots of a Redis Cluster: where a command belongs, and who owns what."""

from collections.abc import Sequence
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from extproc.stores.redis_url import Address, usable

SLOTS = REDIS_CLUSTER_HASH_SLOTS
# Redis advises against more nodes than this (its cluster specification).
MOST_NODES = 1000

# The commands that stores send: all have one key, their first word. What is not here is refused: a
# command at a wrong node would be redirected, but one without a key would be answered by whom?
_ONE_KEY = frozenset(
    (
        *("DEL", "EXISTS", "PTTL", "GET"),
        "EXPIRE",
        *("HDEL", "HGET", "HGETALL", "HMGET", "HSET"),
        *("SADD", "SMEMBERS", "SSCAN", "LRANGE"),
        "XLEN",
        *("ZADD", "ZCARD", "ZCOUNT", "ZRANGE", "ZRANGEBYSCORE", "ZREMRANGEBYSCORE", "ZSCAN"),
        "ZSCORE",
    )
)
_VARIADIC = frozenset(("DEL", "EXISTS"))
# Any master may answer; it is the owner of this slot.
_KEYLESS = {"TIME": 0}


def slot_of(key: str) -> int:
    """The slot of a key, by its hash tag if it has one."""
    return key_slot(key.encode())


def slot_of_command(command: Sequence[str | int | bytes]) -> int:
    """Raises ValueError for a command whose place is not known, or that has several keys."""
    name = command[0]
    if name in _KEYLESS:
        return _KEYLESS[str(name)]
    if name not in _ONE_KEY or len(command) < 2 or (name in _VARIADIC and len(command) > 2):
        raise ValueError(f"no place in a cluster is known for {' '.join(map(str, command[:1]))}")
    return slot_of(str(command[1]))


def read_owners(reply: Any, *, asked: Address) -> list[Address | None]:
    """The owner of each slot by a reply of CLUSTER SLOTS; ``asked`` is the node that gave it.

    An empty host means that node's own (a node that does not know its address). A node whose name
    is not known yet ("?") or cannot be one owns nothing: no call would reach it. Raises ValueError
    for anything that is no such reply.
    """
    owners: list[Address | None] = [None] * SLOTS
    nodes: set[Address] = set()
    try:
        for start, end, master, *_ in reply:
            if not 0 <= start <= end < SLOTS:
                raise ValueError(f"slots {start} to {end}")
            owner = usable(master[0] or asked.host, int(master[1]))
            if owner is None:
                continue
            nodes.add(owner)
            owners[start : end + 1] = [owner] * (end + 1 - start)
    except (TypeError, LookupError, ValueError) as error:
        raise ValueError(f"not a map of slots: {error}") from error
    if not nodes:
        raise ValueError(f"{asked} knows of no slots that can be reached: no cluster yet?")
    if len(nodes) > MOST_NODES:
        raise ValueError(f"{len(nodes)} masters; {MOST_NODES} at most")
    return owners
