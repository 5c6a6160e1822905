"""Where commands belong in a Redis Cluster, and what a map of it may look like."""

import ast
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

import extproc
from extproc.stores.redis_url import Address
from extproc.stores.slots import SLOTS, read_owners, slot_of, slot_of_command

ASKED = Address("asked", 1)


def test_a_hash_tag_is_the_slot() -> None:
    assert slot_of("rate:rpm:{svc}:2026") == slot_of("pending:{svc}") == key_slot(b"svc")
    assert slot_of_command(("HGET", "a:{svc}", "field")) == key_slot(b"svc")


@pytest.mark.parametrize(
    "command",
    [
        ("FLUSHALL",),
        ("MGET", "a", "b"),
        ("DEL", "a", "b"),
        ("EXISTS", "a", "b"),
        ("GET",),
        ("get", "a"),
    ],
)
def test_no_place_is_guessed(command: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="no place"):
        slot_of_command(command)


def first_words(path: Path) -> set[str]:
    """The first word of every command in a file; where it is a variable, of its tables."""
    tree = ast.parse(path.read_text("utf-8"))
    found: set[str] = set()
    tables = {
        node.elts[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Tuple) and node.elts and isinstance(node.elts[0], ast.Constant)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "command":
            first: ast.expr = node.args[0]
            if isinstance(first, ast.Starred):
                assert isinstance(first.value, ast.Tuple), ast.unparse(node)
                first = first.value.elts[0]
            if isinstance(first, ast.Constant):
                found.add(str(first.value))
            else:
                found |= {word for word in tables if isinstance(word, str) and word.isupper()}
    return found


def test_every_command_that_the_stores_send_has_a_place() -> None:
    """Else it would work with one server and fail at a customer's cluster."""
    own = ("batcher.py", "cluster.py", "topology.py")
    stores = (Path(extproc.__file__).parent / "stores").glob("*.py")
    found = set().union(*(first_words(path) for path in stores if path.name not in own))
    assert len(found) > 10
    for known in found:
        slot_of_command((known, "key"))


def test_a_map_is_read() -> None:
    reply: Any = [
        [0, 99, ["h1", 1, "id", ["ip", "1.2.3.4"]], ["h2", 2, "id"]],
        [100, 16_000, ["", 3, "id"]],
        [16_001, 16_001, [None, 4, "id"]],
        [16_002, 16_100, ["?", 5, "id"]],
        [16_101, 16_101, ["h3", 0, "id"]],
        [16_102, 16_102, ["a/b", 1, "id"]],
        [16_103, 16_103, ["[::1", 1, "id"]],
        [16_104, 16_104, ["h3", 65_536, "id"]],
    ]
    owners = read_owners(reply, asked=ASKED)
    assert len(owners) == SLOTS
    assert (owners[0], owners[99]) == (Address("h1", 1), Address("h1", 1))
    # A node that does not know its own address is where it was asked.
    assert (owners[100], owners[16_001]) == (Address("asked", 3), Address("asked", 4))
    # What cannot be a place leaves the others as they are.
    assert owners[16_002:16_201] == [None] * 199


@pytest.mark.parametrize(
    "reply",
    [
        [],
        None,
        "OK",
        [[0, 1]],
        [[0, 1, []]],
        [[0, 1, ["h", "port"]]],
        [[1, 0, ["h", 1]]],
        [[0, SLOTS, ["h", 1]]],
        [[-1, 5, ["h", 1]]],
        [[slot, slot, ["h", slot + 1]] for slot in range(1001)],
    ],
)
def test_what_is_no_map_is_refused(reply: Any) -> None:
    with pytest.raises(ValueError, match=r"slots|masters"):
        read_owners(reply, asked=ASKED)
