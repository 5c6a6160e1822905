"""Redis against the fake provider's journal, for the requests of one service.

A request belongs to a service by its script's label, which is the service's id."""

import asyncio

from extproc.demo.books import Books, chargeable_tokens, drift
from extproc.demo.fake_provider import JournalEntry
from tests.support.client import StackClient
from tests.support.sdk_calls import KNOWN


def script(client: StackClient, more: str = "") -> dict[str, str]:
    """The header that carries ``more`` and the label."""
    return {"x-fake": f"label={client.service};{more}"}


def journal_of(client: StackClient) -> list[JournalEntry]:
    """What the provider did for this service."""
    return [JournalEntry(**entry) for entry in client.journal(client.service)]


def drift_of(client: StackClient) -> int:
    """Tokens by which the root's windows differ from what the journal says is due."""

    async def look() -> int:
        books = Books(
            redis_url=client.stack.redis_url,
            provider_url=client.stack.provider_url,
            services=[client.service],
        )
        try:
            return drift(await books.windows(), await books.records(), journal_of(client))
        finally:
            await books.close()

    return asyncio.run(look())


def settled_as_produced(
    client: StackClient, count: int = 1, *, knowledge: str = KNOWN
) -> list[JournalEntry]:
    """The journal's entries, once each reservation is settled with its entry's tokens."""
    records = client.settled(count)
    journal = journal_of(client)
    assert [record["state"] for record in records] == ["SETTLED"] * count
    assert {record["rank"] for record in records} == {knowledge}
    charged = {record["request_id"]: int(record["charged"]) for record in records}
    assert charged == {entry.request_id: chargeable_tokens(entry) for entry in journal}
    assert client.counted("rpm") == count
    assert drift_of(client) == 0
    return journal
