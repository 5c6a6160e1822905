"""Calls of official clients, each with what its reservation has to look like at its end.

A call's label in the fake provider's journal is its name with a prefix, so that all calls of a
module can share one root, and the root's windows can be compared with the journal as a whole.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from extproc.demo.books import Books, chargeable_tokens, drift
from extproc.demo.fake_provider import JournalEntry
from extproc.demo.fake_tokens import words
from tests.support.client import StackClient, eventually

Client = TypeVar("Client")
# Of one reservation: how well its end knows the tokens.
GUESSED, COUNTED, KNOWN = "1", "2", "3"


@dataclass(frozen=True)
class SdkCall(Generic[Client]):
    """``ask`` makes the call with these headers and asserts what the client makes of the answer."""

    ask: Callable[[Client, dict[str, str]], None]
    wire_format: str
    script: str
    knowledge: str = KNOWN


@dataclass
class Calls(Generic[Client]):
    """The calls of one module by name; ``prefix`` tells their labels from others'."""

    prefix: str
    by_name: dict[str, SdkCall[Client]] = field(default_factory=dict)

    def add(
        self, wire_format: str, *, script: str = "output=7", knowledge: str = KNOWN
    ) -> Callable[[Callable[[Client, dict[str, str]], None]], None]:
        """Decorates an ``ask``."""

        def register(ask: Callable[[Client, dict[str, str]], None]) -> None:
            name: str = getattr(ask, "__name__", "")
            assert name not in self.by_name
            self.by_name[name] = SdkCall(ask, wire_format, script, knowledge)

        return register

    def make(self, name: str, client: Client, stack: StackClient) -> None:
        """Make a call, and compare its reservation with the provider's journal."""
        call = self.by_name[name]
        label = f"{self.prefix}-{name}"
        call.ask(client, {"x-fake": f"label={label};{call.script}"})
        entry, record = ended(stack, label)
        assert record["state"] == "SETTLED"
        assert record["wire_format"] == call.wire_format
        assert (int(record["charged"]), record["rank"]) == (
            chargeable_tokens(entry),
            call.knowledge,
        )
        assert record["outcome"] == (
            "complete" if call.knowledge == KNOWN else "complete_estimated"
        )

    @staticmethod
    def drift(stack: StackClient, *tables: "Calls[Any]") -> int:
        """Tokens between the root's windows and the journal, once nothing is open. A call of these
        tables that has no record counts whole."""
        eventually(lambda: stack.pending() == 0)
        return asyncio.run(_drift(stack, tuple(f"{table.prefix}-" for table in tables)))


async def _drift(stack: StackClient, prefixes: tuple[str, ...]) -> int:
    books = Books(
        redis_url=stack.stack.redis_url,
        provider_url=stack.stack.provider_url,
        services=[stack.service],
    )
    try:
        windows, records = await books.windows(), await books.records()
        assert windows
        # A window lasts two minutes, its records a quarter of an hour.
        known = {record.request_id for record in records}
        now = {r.request_id for r in records if (r.root, r.minute) in windows}
        ours = [
            entry
            for entry in await books.journal()
            if entry.request_id in now
            or (entry.label.startswith(prefixes) and entry.request_id not in known)
        ]
        return drift(windows, records, ours)
    finally:
        await books.close()


def ended(stack: StackClient, label: str) -> tuple[JournalEntry, dict[str, str]]:
    """The journal's entry of the call with this label, and its reservation once it has ended."""
    (found,) = stack.journal(label)
    entry = JournalEntry(**found)

    def look() -> dict[str, str]:
        for record in stack.records():
            if record["request_id"] == entry.request_id and record["state"] != "RESERVED":
                return record
        return {}

    return entry, eventually(look)


def text(count: int, *, start: int = 0) -> str:
    """What the provider says in ``count`` tokens."""
    return "".join(words(count, start=start))


def joined(parts: Any) -> str:
    """The texts of a stream's pieces, those without one left out."""
    return "".join(part for part in parts if part)
